"""What bounds a run from outside: the settings' limit, and Kueue's quota as a canned API says it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from nightshift.hooks.deployment import Deployment
from nightshift.jobset.kubernetes import kueue
from nightshift.jobset.kubernetes.limits import limits_of
from nightshift.planner.model import model_of
from nightshift.planner.plan import Refused, decide, table
from nightshift.planner.speed import Known, tokens_of
from nightshift.profiles import PROFILES
from nightshift.profiles.limits import Limits
from nightshift.settings import Settings
from tests.builders import a_spec
from tests.canned_cluster import CLUSTER_QUEUE, KUEUE, LOCAL_QUEUE, CannedApi, Cluster
from tests.unit import model_configs as configs

pytestmark = pytest.mark.unit

OVERLAY = Path(__file__).parents[3] / "k8s/overlays/gke-gpu-spot/cluster-queue.yaml"
L4: dict[str, Any] = {"profile": "gpu-l4-spot", "rows_per_worker_per_second": 10}
QUEUED = a_spec(queue="nightly", compute=L4)


class Asked:
    """`limits_of`, with what it said. cluster: what the API answers; None for the local runtime."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster: Cluster | None = Cluster()
        self.told: list[str] = []
        self.warned: list[str] = []
        self.times = 0
        for document in yaml.safe_load_all(OVERLAY.read_text()):
            kind, name = document["kind"], document["metadata"]["name"]
            self.cluster.objects[f"{KUEUE}/{kind.lower()}s/{name}"] = document
        monkeypatch.setattr(Deployment, "cluster", lambda _: self._api())

    def _api(self) -> CannedApi | None:
        self.times += 1
        return CannedApi(self.cluster) if self.cluster else None

    def __call__(self, spec: Any = QUEUED, **settings: Any) -> Limits:
        deployed = Settings("runs", "acme", **settings)
        cluster = Deployment(deployed).cluster
        return limits_of(spec, deployed, "2026-11-20", cluster, self.told.append, self.warned.append)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """With the ClusterQueue of the overlay for GPUs: 32 L4, 64 cpus for pods without an accelerator."""
    return Asked(monkeypatch)


def test_the_quota_of_each_profile(asked: Asked) -> None:
    limits = asked(workers_max=50)

    assert (limits.workers_max, limits.quota) == (50, 32)
    assert limits.quotas.keys() == PROFILES.keys()
    assert {limits.of(name).quota for name in ("gpu-l4-spot", "gpu-l4", "gpu-l4-flex", "gpu-l4-any")} == {32}
    assert limits.of("gpu-l4-reservation").quota == 0, "the deployment names no reservation"
    assert asked(reservations="g2-standard-8=nights").of("gpu-l4-reservation").quota == 32
    assert limits.of("gpu-h100-spot").quota == 0, "the queue has no flavor of it"
    assert 0 < (limits.of("cpu").quota or 0) <= 64
    assert (set(asked.told), asked.warned) == ({"Quota: ClusterQueue 'nightshift' allows gpu-l4-spot 32 accelerators"}, [])


def test_a_worker_of_several_accelerators(asked: Asked) -> None:
    """Of eight accelerators for each worker: 32 would be enough for four, but the queue's memory is not."""
    assert asked(a_spec(queue="nightly", compute={**L4, "tensor_parallel": 8})).quota == 24


def test_a_plan_stays_within_it(asked: Asked) -> None:
    spec = a_spec(queue="nightly", compute=L4, deadline="1h", engine__max_num_seqs=8)
    limits, known = asked(spec), Known(tokens_of(spec))

    assert decide(spec, 32 * 10 * 2090, known, limits).workers == 32
    with pytest.raises(Refused, match="there is room for 32 workers"):
        decide(spec, 32 * 10 * 4000, known, limits)
    by_profile = {row.profile: row for row in table(spec, 1000, known, limits)}
    assert by_profile["gpu-l4-spot"].fits


def test_a_way_out_is_one_that_the_queue_admits(asked: Asked) -> None:
    """Without a queue, larger GPUs come first; this one has only L4."""
    spec = a_spec(
        queue="nightly",
        task="chat",
        request={"user": "{{ text }}", "max_tokens": 256},
        engine={"max_num_seqs": 256, "max_model_len": 4096},
        compute={"profile": "gpu-l4-spot"},
        deadline="3h",
    )
    known = Known(tokens_of(spec, 500), model_of(configs.LLAMA3_8B))

    def ways(limits: Limits) -> list[str]:
        with pytest.raises(Refused) as refused:
            decide(spec, 1_000_000, known, limits)
        return [way.words for way in refused.value.ways]

    assert any("gpu-b200-spot" in words for words in ways(Limits(quota=32)))
    admitted = ways(asked(spec))
    assert admitted
    assert not any("profile:" in words and "gpu-l4" not in words for words in admitted)


def test_a_profile_that_the_queue_never_admits_is_refused(asked: Asked) -> None:
    spec = a_spec(queue="nightly", compute={"profile": "gpu-h100-spot", "rows_per_worker_per_second": 10})

    with pytest.raises(Refused, match="1 worker with 1 accelerator: the queue's quota is 0"):
        decide(spec, 1000, Known(tokens_of(spec)), asked(spec))


def test_a_job_without_a_queue_asks_nobody(asked: Asked) -> None:
    assert asked(a_spec(compute=L4), workers_max=3) == Limits(3)
    assert (asked.times, asked.told, asked.warned) == (0, [], [])


def test_on_the_local_runtime_queues_have_no_effect(asked: Asked) -> None:
    asked.cluster = None

    assert asked() == Limits()
    assert (asked.told, asked.warned) == ([], [])


def test_a_cohort_that_lends_without_a_limit(asked: Asked) -> None:
    assert asked.cluster
    asked.cluster.objects[CLUSTER_QUEUE]["spec"]["cohortName"] = "all"

    assert asked().quota is None
    assert "what its cohort lends, without a limit" in asked.told[0]


@pytest.mark.parametrize("path", [LOCAL_QUEUE, CLUSTER_QUEUE])
def test_without_the_right_it_says_how_to_grant_it(asked: Asked, path: str) -> None:
    assert asked.cluster
    asked.cluster.hidden.add(path)

    assert asked() == Limits()
    [warning] = asked.warned
    assert warning.startswith("The quota of queue 'nightly' is unknown; planning continues without it: Airflow's account may")
    assert warning.endswith(f"to allow it: kubectl apply -f {kueue.READERS}")


def test_a_queue_that_is_not_there(asked: Asked) -> None:
    assert asked.cluster
    del asked.cluster.objects[LOCAL_QUEUE]

    assert asked() == Limits()
    assert "there is no LocalQueue nightly in namespace nightshift; to fix it: kubectl apply" in asked.warned[0]


def test_a_cluster_that_does_not_answer(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: Deployment) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(Deployment, "cluster", fails)

    assert asked() == Limits()
    assert asked.warned[0].endswith("OSError: no route to host")
