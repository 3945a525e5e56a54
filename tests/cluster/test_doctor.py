"""The doctor's questions to a real API server with JobSet and Kueue, asked as Airflow's account."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from local.environments import ROOT
from nightshift.doctor import autoscaling, cluster_objects, priority, queue
from nightshift.doctor import cluster as _cluster
from nightshift.doctor.context import Surroundings
from nightshift.doctor.findings import Failed, Finding, Ok, Skipped
from nightshift.doctor.runner import Check, examine
from nightshift.hooks.deployment import Deployment
from nightshift.hooks.jobset import JobSetHook
from nightshift.jobset.kubernetes import kueue
from nightshift.jobset.kubernetes.limits import limits_of
from nightshift.jobset.kubernetes.rbac import RIGHTS
from nightshift.profiles.limits import Limits
from nightshift.settings import Settings
from nightshift.spec import JobSpec
from nightshift.stream.manifests.render import render
from nightshift.stream.manifests.render_request import StreamRequest
from tests.builders import a_spec
from tests.cluster.api_proxy import ApiProxy
from tests.cluster.kube import Kubernetes, Namespace, a_queue, require
from tests.stream_manifests import a_stream
from tests.unit.doctor.fakes import FakeConnections

pytestmark = pytest.mark.cluster

ACCOUNT = "nightshift-airflow"
RIGHTS_FILE = ROOT / "k8s/base/airflow.yaml"
READERS = ROOT / kueue.READERS
DOCTOR = ROOT / cluster_objects.READER
QUOTA = {"cpu": "2", "memory": "8Gi", "ephemeral-storage": "100Gi"}


@pytest.fixture
def api(cluster: Kubernetes, namespace: Namespace, tmp_path: Any) -> Iterator[JobSetHook]:
    """As Airflow's account, with the rights that this repository gives it."""
    documents = list(yaml.safe_load_all(RIGHTS_FILE.read_text()))
    for document in documents:
        for subject in document.get("subjects", ()):
            subject["namespace"] = namespace.name
    namespace.kubectl("create", "-f", "-", text=yaml.safe_dump_all(documents))
    token = namespace.kubectl("create", "token", ACCOUNT).strip()
    with ApiProxy(cluster.kubeconfig, tmp_path, token=token) as proxy:
        yield JobSetHook(conn_id=None, config_file=str(proxy.kubeconfig))


@contextmanager
def readers(namespace: Namespace, file: Path = READERS, name: str = "nightshift-queue-reader") -> Iterator[None]:
    """What lets the account read queues, under a name of this test's own: it belongs to the whole cluster."""
    text = file.read_text().replace(name, namespace.name)
    text = text.replace("namespace: nightshift\n", f"namespace: {namespace.name}\n")
    namespace.cluster.kubectl("create", "-f", "-", text=text)
    try:
        yield
    finally:
        namespace.cluster.kubectl("delete", "--wait=false", "-f", "-", text=text)


def asked(
    check: Callable[[Surroundings], Iterable[Finding]], api: JobSetHook, namespace: Namespace, job: JobSpec | None = None
) -> list[Finding]:
    settings = Settings(bucket="runs", project="acme", namespace=namespace.name)
    return list(check(Surroundings(settings, FakeConnections(api=api), job)))


def examined(check: Check, api: JobSetHook, namespace: Namespace, **settings: Any) -> list[Finding]:
    """As `nightshift doctor` runs it, for the stream of the examples."""
    of = Settings(bucket="runs", project="acme", namespace=namespace.name, **settings)
    here = Surroundings(of, FakeConnections(api=api), stream=a_stream())
    return list(examine([check], here).findings)


@pytest.mark.gate
def test_priorities_and_autoscalers_are_read_with_the_rights_of_the_component_and_not_without(
    namespace: Namespace, api: JobSetHook
) -> None:
    name = f"{namespace.name}-low"
    low = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": -100}
    document = next(each for each in manifests(namespace) if each["kind"] == "HorizontalPodAutoscaler")
    classes = Check("priority class", priority.classes, "infer")
    autoscalers = Check("autoscalers", autoscaling.health, "the stream")
    adapter = Check("metrics adapter", autoscaling.adapter, "the stream")
    namespace.cluster.kubectl("create", "-f", "-", text=yaml.safe_dump(low))
    try:
        namespace.kubectl("create", "-f", "-", text=yaml.safe_dump(document))
        for check in (classes, autoscalers, adapter):
            [hidden] = examined(check, api, namespace, priority_class=name)
            assert isinstance(hidden, Skipped)
            assert f"kubectl apply -f {cluster_objects.READER}" in hidden.because
        assert [type(each) for each in examined(Check("p", priority.pods, "infer"), api, namespace)] == [Ok]
        with readers(namespace, DOCTOR, "nightshift-doctor"):

            def wrong() -> list[str]:
                return [
                    each.problem for each in examined(classes, api, namespace, priority_class=name) if isinstance(each, Failed)
                ]

            namespace.wait_until("the right to read priorities", lambda: wrong() != [])
            assert wrong() == [f"PriorityClass {name} has the value -100, which is less than -10"]
            [gone] = examined(classes, api, namespace, priority_class=f"{name}-gone")
            assert isinstance(gone, Failed)
            assert f"the cluster has no PriorityClass {name}-gone" in gone.problem
            # The test cluster may run the controller, or none: either way nothing serves the metric.
            [scaled] = examined(autoscalers, api, namespace)
            assert isinstance(scaled, Failed)
            [served] = examined(adapter, api, namespace)
            assert isinstance(served, Failed | Ok)
    finally:
        namespace.cluster.kubectl("delete", "priorityclass", name, "--wait=false")


def manifests(namespace: Namespace) -> list[dict[str, Any]]:
    """What `nightshift render` prints of the stream, in this namespace."""
    settings = Settings(bucket="runs", project="acme", namespace=namespace.name)
    return render(StreamRequest(a_stream(), "job: package-texts\n", settings))


@pytest.mark.gate
def test_everything_is_there(cluster: Kubernetes, namespace: Namespace, api: JobSetHook) -> None:
    require(namespace.cluster, "clusterqueues.kueue.x-k8s.io")

    [there] = asked(_cluster.there, api, namespace)

    assert isinstance(there, Ok)
    assert f"authenticates Airflow as system:serviceaccount:{namespace.name}:{ACCOUNT}" in there.found
    assert [type(each) for each in asked(_cluster.jobset, api, namespace)] == [Ok]
    assert [type(each) for each in asked(_cluster.kueue, api, namespace)] == [Ok]
    assert asked(_cluster.rights, api, namespace) == [Ok(str(right), f"in namespace {namespace.name}") for right in RIGHTS]


def test_a_right_that_is_taken_away_is_named(namespace: Namespace, api: JobSetHook) -> None:
    patch = '[{"op": "test", "path": "/rules/2/resources/0", "value": "pods"}, {"op": "remove", "path": "/rules/2"}]'
    namespace.kubectl("patch", "role", ACCOUNT, "--type=json", "-p", patch)

    def missing() -> list[str]:
        return [each.check for each in asked(_cluster.rights, api, namespace) if isinstance(each, Failed)]

    namespace.wait_until("the loss of the right", lambda: missing() == ["list pods", "watch pods"])


def test_the_queue_is_read_with_the_rights_of_its_component_and_not_without(
    namespace: Namespace, api: JobSetHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the doctor, and by the task plan."""
    require(namespace.cluster, "clusterqueues.kueue.x-k8s.io")
    job = a_spec(queue="nightly")
    monkeypatch.setattr(Deployment, "cluster", lambda _: api)
    settings = Settings(bucket="runs", project="acme", namespace=namespace.name)
    told: list[str] = []

    def limits() -> Limits:
        return limits_of(job, settings, "2026-11-20", lambda: api, told.append, told.append)

    with a_queue(namespace, QUOTA):
        [hidden] = asked(queue.queue, api, namespace, job)
        assert isinstance(hidden, Skipped)
        assert kueue.READERS in hidden.because
        assert limits() == Limits()
        assert told.pop().endswith(f"to allow it: kubectl apply -f {kueue.READERS}")
        with readers(namespace):

            def active() -> bool:
                return [type(each) for each in asked(queue.queue, api, namespace, job)] == [Ok]

            namespace.wait_until("the queue's readiness", active)
            assert [type(each) for each in asked(queue.quotas, api, namespace, job)] == [Ok]
            [small] = asked(queue.quotas, api, namespace, a_spec(queue="nightly", compute__workers=2))
            assert isinstance(small, Failed)
            assert "2 workers need 3 of cpu, and it has 2" in small.problem
            found = limits()
            assert (found.quota, found.of("gpu-l4-spot").quota) == (1, 0), told
            [gone] = asked(queue.queue, api, namespace, a_spec(queue="weekly"))
            assert isinstance(gone, Failed)
            assert "there is no LocalQueue weekly" in gone.problem
