"""A run with real vLLM in its pods, through the death of an engine and a Spot preemption; the rest of this folder holds every
other disruption against an engine that starts in no time."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from local.cluster.cluster import Cluster
from local.cluster.deployment import NAMESPACE, deploy
from local.cluster.faults import Faults
from nightshift import exits
from nightshift.jobset.labels import RUN_LABEL
from nightshift.jobset.manifest.constants import DRIVER, SERVER
from nightshift.jobset.verdict.outcome import Ending
from tests.chaos.inputs import CHUNK_ROWS, Input, a_job, real_texts
from tests.cluster.kube import Namespace
from tests.cluster.nights import Document, Night, a_place, container, disruption, exit_code

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

ROWS = 800
SEED = 20261121


@pytest.fixture
def night(own_cluster: Cluster, tmp_path: Path) -> Iterator[Night]:
    """Real text with some rows that no model can answer."""
    deployment = deploy(own_cluster, tmp_path, print)
    with a_place(own_cluster, tmp_path, Namespace(own_cluster, NAMESPACE)) as place:
        rng = random.Random(SEED)
        rows = Input.of(real_texts(ROWS, SEED), rng)
        pod = with_room_for_two(deployment.pod_patch(place.storage)["spec"])
        night = Night(place, 1, a_job(), rows, chunk_rows=CHUNK_ROWS, workers=2, pod=pod)
        # Two engines start on two cores, and once more each.
        night.patience_s = 2 * night.patience_s
        yield night


def with_room_for_two(pod: Document) -> Document:
    """One node takes both pods when the other node is gone; until then each has its own."""
    asks = {SERVER: {"requests": {"cpu": "500m", "memory": "3Gi"}}, DRIVER: {"requests": {"cpu": "100m", "memory": "200Mi"}}}
    for each in (*pod["initContainers"], *pod["containers"]):
        each["resources"] = asks[each["name"]]
    apart = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchExpressions": [{"key": RUN_LABEL, "operator": "Exists"}]},
    }
    preferred = [{"weight": 100, "podAffinityTerm": apart}]
    return {**pod, "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}}


def at_work(night: Night) -> set[str]:
    """Pods that have committed something, and run."""
    return night.writers() & {pod["metadata"]["name"] for pod in night.living()}


@contextmanager
def in_the_middle(night: Night, faults: Faults) -> Iterator[None]:
    """Both workers have committed something, have something left, and stand still. Two cores start one engine long before the
    other, and an engine is done in seconds."""
    stopped: dict[str, int] = {}
    try:
        while len(stopped) < 2:
            night.wait_until("the first commit of a pod that runs", lambda: bool(at_work(night) - set(stopped)))
            name = min(at_work(night) - set(stopped))
            stopped[name] = faults.container_pid(NAMESPACE, name, DRIVER)
            os.kill(stopped[name], signal.SIGSTOP)
        yield
    finally:
        for pid in stopped.values():
            os.kill(pid, signal.SIGCONT)


def test_vllm_dies_in_one_pod_while_spot_takes_the_node_of_the_other(night: Night, faults: Faults) -> None:
    night.start()
    with in_the_middle(night, faults):
        unarmed, taken = night.pod(0), night.pod(1)
        assert unarmed["spec"]["nodeName"] != taken["spec"]["nodeName"]
        assert len(night.committed()) < night.prepared.plan.chunk_count

        night.strike(lambda: faults.kill_container(NAMESPACE, unarmed["metadata"]["name"], SERVER))
        night.strike(lambda: faults.preempt(taken["spec"]["nodeName"]), taken)
    night.finish()

    assert night.problems() == []
    assert night.endings() == [(Ending.SUCCEEDED, "ChunksCommitted")]
    assert len(night.jobsets()) == 1
    assert night.failures_counted() == 0
    (unarmed,) = night.pods(0)
    assert container(unarmed, SERVER)["restartCount"] == 1
    assert exit_code(unarmed) == exits.DONE
    taken, _ = night.pods(1)
    assert (disruption(taken), exit_code(taken)) == ("TerminationByKubelet", exits.RESUME)
    name = taken["metadata"]["name"]
    (stopped,) = [line for line in night.said_by(name) if line["message"] == "stopped"]
    assert stopped["rows_from_partials"] == stopped["rows_lost"] == 0
    # All that it had a prediction for, by its own count.
    assert night.kept_of(name) == stopped["rows_answered"] > 0
