"""A tune on a real cluster: its JobSets, the keeper in the driver's own image, an eviction in the middle of a trial. Its engine
is the tests' own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pytest
import yaml

from local.cluster import images
from local.cluster.cluster import Cluster
from nightshift.hooks.runtime import runtime_for
from nightshift.jobset.manifest.constants import DRIVER, SERVER
from nightshift.planner.costs.prices import Prices
from nightshift.settings import Settings
from nightshift.spec import JobSpec
from nightshift.trial.engine_jobset import JobSetEngines
from nightshift.trial.outcomes import EngineTaken
from nightshift.trial.tune import tuner
from nightshift.trial.tune.points import Point, Space
from nightshift.trial.tune.search import Measure
from nightshift.trial.tune.trials import Trial
from nightshift.trial.world import World
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
LARGEST_BATCH = 16
"""Of the engine that is tuned: more rows at once make it no faster."""
AS_TOLD = f"""
import os, sys
told = next(int(each.partition("=")[2]) for each in sys.argv if each.startswith("--max-num-seqs="))
os.environ["ENGINE_SEATS"] = str(min(told, {LARGEST_BATCH}))
"""


@pytest.fixture
def place(cluster: Cluster, driver_tar: Path, tmp_path: Path) -> Iterator[Place]:
    with a_namespace(cluster) as namespace:
        namespace.kubectl("create", "serviceaccount", "nightshift-worker")
        with a_place(cluster, tmp_path, namespace) as place:
            yield place


@pytest.fixture
def engines(place: Place) -> JobSetEngines:
    return engines_of(place, command=["python3", "-u", "-c", ENGINE.read_text()], args=[])


def engines_of(place: Place, **started: Any) -> JobSetEngines:
    """started: how the server's container starts the tests' engine."""
    environment = [{"name": "ENGINE_SEATS", "value": str(SEATS)}, {"name": "ENGINE_ROW_S", "value": str(ROW_S)}]
    server = {
        "name": SERVER,
        **started,
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


class Texts:
    """The warehouse of `nightshift.trial.rows`."""

    def query_bytes(self, spec: JobSpec, partition: str) -> int | None:
        return None

    def some_rows(self, spec: JobSpec, partition: str, count: int) -> tuple[int, pa.Table]:
        return count, rows(count)


def test_a_tune_finds_what_is_faster_and_leaves_no_engine(place: Place) -> None:
    # The kubelet passes the arguments of the manifest on to the engine, as to vLLM.
    engines = engines_of(place, command=["python3", "-u", "-c", f"{AS_TOLD}exec({ENGINE.read_text()!r})"])
    lines: list[str] = []
    world = World(place.store, engines.settings, Texts, engines.runtime, Prices("USD"), {}, lines.append)

    def told(number: int, trial: Trial, space: Space, rate: float | None) -> None:
        lines.append(f"{number} {asdict(trial)}")

    spec = a_spec(job="tuned", request__input="{{ body }}", engine__max_num_seqs=SEATS)

    result = tuner.tune(tuner.Task(spec, "2026-11-20", 2 * ROWS, budget_s=240.0), world, told, engines)

    print(*lines, result.sentence, sep="\n")
    first, *_ = result.trials
    assert first.question.point == result.space.default
    assert isinstance(result.choice.point, Point)
    assert result.choice.point.max_num_seqs > SEATS
    assert result.choice.better
    soaked = [trial.question.point for trial in result.trials if trial.question.measure is Measure.SOAK]
    assert result.choice.point in soaked
    assert place.namespace.get("jobsets.jobset.x-k8s.io") == [], "no engine is left"
