"""Engines that cannot start, on a real kubelet: the real operator, its trigger, and what the kubelet makes of such a container.

The nights of this module go on at the same time. The same with real vLLM, on the local runtime, is in
`tests/integration/driver/test_engines_that_cannot_start.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from local.cluster.cluster import Cluster
from nightshift.jobset.labels import RUN_LABEL
from nightshift.jobset.manifest.constants import DRIVER, SERVER
from nightshift.jobset.verdict import cannot_start
from nightshift.jobset.verdict.cannot_start import WHAT_TO_DO, Cause
from nightshift.operators.jobset_errors import JobSetApplicationFailure
from nightshift.run.observed.pods_kept import load
from nightshift.run.observed.pods_now import Stage
from tests.builders import a_spec
from tests.chaos.inputs import Input
from tests.cluster.kube import a_namespace
from tests.cluster.nights import SMALL, Night, Place, a_place
from tests.unit.jobset import test_last_words as said

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

IMAGE_S: Final = 90.0
"""In the place of its five minutes: longer than it takes the trigger to ask for events."""
MEMORY: Final = {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "64Mi"}}
FUSE: Final = {"driver": "gcsfuse.csi.storage.gke.io", "readOnly": True, "volumeAttributes": {"bucketName": "models"}}
"""What `nightshift.jobset.manifest.weights` mounts; only GKE has its driver."""


@dataclass(frozen=True)
class Case:
    """server: of the container, besides. pod: of the pod's spec, besides. words: in the error. lines: in the log."""

    server: Mapping[str, Any]
    cause: Cause
    words: str
    lines: str = ""
    pod: Mapping[str, Any] | None = None


def _says(text: str, code: int) -> dict[str, Any]:
    """An engine that says what vLLM says, and exits."""
    return {"command": ["python3", "-u", "-c", f"import sys; print({text!r}, file=sys.stderr); sys.exit({code})"]}


CASES: Final = {
    "wrong-model": Case(
        _says(said.OFFLINE, 1), Cause.MODEL, "exit code 1, 3 times, on the only pod", "Last lines of server in"
    ),
    "too-little-memory": Case(
        {"command": ["python3", "-c", "kept = []\nwhile True: kept.append(bytearray(1 << 20))"], "resources": MEMORY},
        Cause.MEMORY,
        "The engine cannot start: exit code 137 (SIGKILL, out of memory), 3 times, on the only pod",
    ),
    "bad-flag": Case(_says(said.FLAG, 2), Cause.FLAG, "error: unrecognized arguments", "Last lines of server in"),
    "no-image": Case(
        {"image": "registry.invalid/nightshift/server:none"},
        Cause.IMAGE,
        "A container cannot be started on the only pod: server: ",
    ),
    "no-volume": Case(
        {"volumeMounts": [{"name": "weights", "mountPath": "/weights"}]},
        Cause.IMAGE,
        "A container cannot be started on the only pod: FailedMount: ",
        pod={"volumes": [{"name": "weights", "csi": FUSE}]},
    ),
}


@dataclass
class Ended:
    """after_s: from the start of the task to its error."""

    night: Night
    error: BaseException | None
    after_s: float


@pytest.fixture(scope="module")
def place(cluster: Cluster, driver_tar: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with a_namespace(cluster) as namespace:
        namespace.kubectl("create", "serviceaccount", "nightshift-worker")
        with a_place(cluster, tmp_path_factory.mktemp("nights"), namespace) as place:
            yield place


@pytest.fixture(scope="module")
def ended(request: pytest.FixtureRequest, place: Place) -> Iterator[dict[str, Ended]]:
    """The night of every case that this session has a test of."""
    tests = [item for item in request.session.items if isinstance(item, pytest.Function) and item.module is request.module]
    chosen = [str(test.callspec.params["name"]) for test in tests]

    def told(name: str) -> Ended:
        began = time.monotonic()
        night = _night(place, list(CASES).index(name), CASES[name])
        error: BaseException | None = None
        night.start()
        try:
            night.finish()
        except (JobSetApplicationFailure, AssertionError) as raised:
            error = raised
        return Ended(night, error, time.monotonic() - began)

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor() as pool:
        patch.setattr(cannot_start, "IMAGE_S", IMAGE_S)
        yield dict(zip(chosen, pool.map(told, chosen), strict=True))


def _night(place: Place, number: int, case: Case) -> Night:
    server = {
        "name": SERVER,
        "args": [],
        "resources": SMALL,
        "startupProbe": {"periodSeconds": 1, "failureThreshold": 300},
        **case.server,
    }
    storage = {"name": "STORAGE_EMULATOR_HOST", "value": place.storage}
    pod = {
        "initContainers": [server],
        "containers": [{"name": DRIVER, "env": [storage], "resources": SMALL}],
        **(case.pod or {}),
    }
    rows = Input(tuple(f"row {ordinal}" for ordinal in range(8)), {})
    return Night(place, number, a_spec(job="night", deadline="3600s"), rows, chunk_rows=4, workers=1, pod=pod)


IN_THE_GATE: Final = ("wrong-model", "too-little-memory")


@pytest.mark.parametrize("name", [pytest.param(each, marks=[pytest.mark.gate] * (each in IN_THE_GATE)) for each in CASES])
def test_an_engine_that_cannot_start_ends_the_night(ended: dict[str, Ended], name: str) -> None:
    case, found = CASES[name], ended[name]
    night = found.night

    print(f"{name}: after {found.after_s:.0f} s: {found.error}")
    assert isinstance(found.error, JobSetApplicationFailure), found.error
    assert case.words in str(found.error)
    assert WHAT_TO_DO[case.cause] in str(found.error)
    assert any(case.lines in line for line in night.log.lines)
    (now,) = load(night.place.store, night.prepared.run)
    assert now.stage is Stage.ENDED
    left = night.place.namespace.get("jobsets", f"{RUN_LABEL}={night.run_id}")
    assert [each["metadata"]["name"] for each in left if "deletionTimestamp" not in each["metadata"]] == []
