"""A trial of a tune on a real cluster: its JobSet, the keeper in the driver's own image, and an eviction in its middle. Its
engine is the tests' own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import obstore
import pyarrow as pa
import pytest
import yaml

from local.cluster import images
from local.cluster.cluster import Cluster
from nightshift.hooks.runtime import runtime_for
from nightshift.jobset.manifest.constants import DRIVER, SERVER
from nightshift.preview.outcome import EngineTaken
from nightshift.settings import Settings
from nightshift.tuner.engines import JobSetEngines
from tests.builders import a_spec
from tests.cluster.kube import a_namespace
from tests.cluster.nights import BUCKET, ENGINE, PATIENCE_S, SMALL, Place, a_place
from tests.cluster.scenes import evict
from tests.integration.emulators import PROJECT

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

ROWS = 40
SEATS, ROW_S = 4, 0.5
"""Five seconds for the rows of a trial."""
SPEC = a_spec(job="tuned", request__input="{{ body }}")


@pytest.fixture
def place(cluster: Cluster, driver_tar: Path, tmp_path: Path) -> Iterator[Place]:
    with a_namespace(cluster) as namespace:
        namespace.kubectl("create", "serviceaccount", "nightshift-worker")
        with a_place(cluster, tmp_path, namespace) as place:
            yield place


@pytest.fixture
def engines(place: Place) -> JobSetEngines:
    environment = [{"name": "ENGINE_SEATS", "value": str(SEATS)}, {"name": "ENGINE_ROW_S", "value": str(ROW_S)}]
    server = {
        "name": SERVER,
        "command": ["python3", "-u", "-c", ENGINE.read_text()],
        "args": [],
        "env": environment,
        "resources": SMALL,
        "startupProbe": {"periodSeconds": 1, "failureThreshold": 300},
    }
    driver = {"name": DRIVER, "env": [{"name": "STORAGE_EMULATOR_HOST", "value": place.storage}], "resources": SMALL}
    patch = place.folder / "tuned.yaml"
    patch.write_text(yaml.safe_dump({"spec": {"initContainers": [server], "containers": [driver]}}))
    settings = Settings(
        bucket=BUCKET,
        project=PROJECT,
        namespace=place.namespace.name,
        server_image=images.PYTHON,
        cpu_server_image=images.PYTHON,
        image_pull_policy="IfNotPresent",
        pod_patch=str(patch),
    )
    return JobSetEngines(place.store, settings, lambda: runtime_for(settings).runtime)


def rows(count: int) -> pa.Table:
    return pa.table({"id": list(range(count)), "body": [f"text {number}" for number in range(count)]})


def taken(place: Place) -> int:
    """Questions that a keeper has begun to answer."""
    return sum("/taken/" in meta["path"] for page in obstore.list(place.store, f"_workers/{SPEC.job}") for meta in page)


def test_a_pod_that_is_evicted_in_a_trial_costs_the_trial_and_the_next_attempt_measures(
    place: Place, engines: JobSetEngines
) -> None:
    def evicts() -> None:
        """When the rows have begun, after the warm-up."""
        end = time.monotonic() + PATIENCE_S
        while taken(place) < 2 and time.monotonic() < end:
            time.sleep(0.2)
        (pod,) = place.namespace.get("pods")
        evict(place.namespace, pod)

    thread = threading.Thread(target=evicts)
    thread.start()
    with pytest.raises(EngineTaken):
        engines.trial(SPEC, ["t-1"], rows(8), rows(ROWS))
    thread.join()

    found = engines.trial(SPEC, ["t-1", "t-2"], rows(8), rows(ROWS))

    assert (found.dead, found.losses) == (0, 0)
    assert ROWS / found.seconds == pytest.approx(SEATS / ROW_S, rel=0.5)
    assert place.namespace.get("jobsets.jobset.x-k8s.io") == [], "no engine is left"
