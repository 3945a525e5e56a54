"""A run is paused on a real cluster: with Kueue, which owns whether its JobSets are suspended, and without."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest

from nightshift.jobset.fleet import pause
from nightshift.jobset.kubernetes.runtime import KubernetesRuntime
from nightshift.jobset.labels import QUEUE_LABEL, RUN_LABEL, RUN_URL_ANNOTATION
from nightshift.jobset.observation import finished
from nightshift.run.pauses import PauseRequest
from tests.cluster.kube import Kubernetes, Namespace, a_queue, require
from tests.cluster.runtime import Api
from tests.cluster.scenes import UNTIL_LET_GO, a_short_jobset, at_work, letting_go, pod_of, running

pytestmark = pytest.mark.cluster

URL = "gs://b/job/2026-11-20/0123456789abcdef"
PAUSED = PauseRequest(True, "ada", "2026-11-20T02:00:00+00:00")
RESUMED = PauseRequest(False, "ada", "2026-11-20T03:00:00+00:00")


@pytest.mark.parametrize("queued", [True, False], ids=["kueue", "no-queue"])
def test_its_pods_go_and_come_again(cluster: Kubernetes, namespace: Namespace, queued: bool) -> None:
    if queued:
        require(cluster, "clusterqueues.kueue.x-k8s.io")
    document = a_short_jobset("night", UNTIL_LET_GO)
    pod_of(document)["containers"][0]["resources"] = {"requests": {"cpu": "10m"}}
    meta: dict[str, Any] = document["metadata"]
    meta["namespace"] = namespace.name
    meta["labels"] = {RUN_LABEL: URL.rpartition("/")[2], **({QUEUE_LABEL: "nightly"} if queued else {})}
    meta["annotations"] = {RUN_URL_ANNOTATION: URL}
    runtime = KubernetesRuntime(Api(cluster.kubeconfig), namespace.name)
    with a_queue(namespace, {"cpu": "1"}) if queued else nullcontext():
        uid = runtime.submit(document)
        at_work(namespace)

        assert pause.apply(runtime, URL, PAUSED) == [meta["name"]]
        namespace.wait_until("the pods' end", lambda: not namespace.get("pods"))
        runtime.claim(meta["name"], uid, "another attempt")
        seen = runtime.observe(meta["name"]).jobset
        assert seen is not None
        assert pause.is_paused(seen)
        assert seen["spec"]["suspend"] is True
        assert not running(namespace)

        assert pause.apply(runtime, URL, RESUMED) == [meta["name"]]
        at_work(namespace)
        with letting_go(namespace):
            namespace.wait_until("the end of the JobSet", partial(_is_over, runtime, meta["name"]))


def _is_over(runtime: KubernetesRuntime, name: str) -> bool:
    jobset = runtime.observe(name).jobset
    return jobset is not None and finished(jobset)
