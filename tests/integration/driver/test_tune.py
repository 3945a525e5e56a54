"""A trial of a tune as a JobSet: the keeper beside the engine, HTTP, the numbers that it measures, and the engine's end."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pytest
from aiohttp import web
from obstore.store import LocalStore, ObjectStore

from nightshift.formats import PREVIEW
from nightshift.jobset.labels import RUN_URL_ANNOTATION
from nightshift.jobset.observation import Observation
from nightshift.run.names import canonical_json, split_run_url
from nightshift.settings import Settings
from nightshift.store import ObjectStorage, get_bytes
from nightshift.trial import engine_jobset
from nightshift.trial.engine_folder import EngineFolder
from nightshift.trial.engine_jobset import EngineFailed, JobSetEngines
from nightshift.trial.keeper import Keeper
from nightshift.trial.outcomes import Cause, EngineGone, EngineTaken
from nightshift.trial.rows import to_parquet
from nightshift.trial.tune.points import Point
from nightshift.trial.tune.space import at, space_of
from tests.builders import a_spec
from tests.integration.driver.canned import CannedEngine

pytestmark = [pytest.mark.integration, pytest.mark.gate]

SETTINGS = Settings(bucket="b", project="p", runtime="local:/nowhere")
SPEC = a_spec(request__input="{{ body }}")


class CountingEngine(CannedEngine):
    """Says of itself that it has preempted `preempted` rows, and that its cache is nearly full."""

    preempted = 0

    def routes(self) -> list[web.RouteDef]:
        return [*super().routes(), web.get("/metrics", self._metrics)]

    async def _metrics(self, request: web.Request) -> web.Response:
        self.preempted += 1
        lines = (
            "vllm:num_requests_running 0",
            "vllm:num_requests_waiting 0",
            "vllm:kv_cache_usage_perc 0.97",
            f"vllm:num_preemptions_total {self.preempted}",
        )
        return web.Response(text="\n".join(lines))


@pytest.fixture
def engine() -> Iterator[CountingEngine]:
    with CountingEngine() as serving:
        yield serving


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return LocalStore(tmp_path / "bucket", mkdir=True)


class Runtime:
    """A keeper in a thread in place of each pod. words: those of a server that ends again and again. status: of each pod,
    besides."""

    def __init__(self, store: ObjectStore, url: str, words: str = "", status: Mapping[str, Any] | None = None) -> None:
        self._store, self._url, self._words, self._status = store, url, words, status or {}
        self.there: dict[str, threading.Event] = {}
        self.manifests: list[Mapping[str, Any]] = []
        self._threads: list[threading.Thread] = []

    def submit(self, manifest: Mapping[str, Any]) -> str:
        self.manifests.append(manifest)
        over = self.there[manifest["metadata"]["name"]] = threading.Event()
        if not self._words:
            _, run = split_run_url(manifest["metadata"]["annotations"][RUN_URL_ANNOTATION])
            keep = self._until(over, EngineFolder(run.job, run.digest))
            self._threads.append(threading.Thread(target=lambda: asyncio.run(keep)))
            self._threads[-1].start()
        return ""

    async def _until(self, over: threading.Event, folder: EngineFolder) -> None:
        keeper = asyncio.create_task(Keeper(ObjectStorage(self._store), folder, self._url, pod="pod").keep())
        await asyncio.to_thread(over.wait)
        keeper.cancel()

    def observe(self, name: str, *, closely: bool = False) -> Observation:
        if name not in self.there:
            return Observation(None)
        server = {"name": "server", "restartCount": 3 if self._words else 0}
        status = {"initContainerStatuses": [server], **self._status}
        return Observation({"metadata": {"name": name}}, pods=({"metadata": {"name": "pod"}, "status": status},))

    def logs(self, name: str, pod: str, container: str, *, last: int | None = None) -> Iterator[str]:
        return iter([self._words])

    def stop(self, name: str, uid: str = "") -> None:
        self.there.pop(name).set()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()


DISRUPTED: dict[str, Any] = {
    "phase": "Failed",
    "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}],
}
OOM_KILLED: dict[str, Any] = {
    "phase": "Running",
    "initContainerStatuses": [
        {
            "name": "server",
            "restartCount": 1,
            "state": {"running": {}},
            "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
        }
    ],
}


def rows(count: int) -> pa.Table:
    return pa.table({"id": list(range(count)), "body": [f"text {number}" for number in range(count)]})


def engines(store: ObjectStore, runtime: Runtime) -> JobSetEngines:
    there: Any = runtime
    return JobSetEngines(store, SETTINGS, lambda: there)


def test_a_trial_measures_its_rows_on_an_engine_of_its_own(store: ObjectStore, engine: CountingEngine) -> None:
    runtime, space = Runtime(store, engine.url), space_of(SPEC)
    point = Point(4096, 16)

    found = engines(store, runtime).trial(at(SPEC, point, space.default), ["t-1"], rows(4), rows(40))

    runtime.join()
    (manifest,) = runtime.manifests
    (server,) = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["initContainers"]
    assert {"--max-num-seqs=16", "--max-num-batched-tokens=4096"} <= set(server["args"])
    assert runtime.there == {}, "the engine is stopped"
    assert (found.rows, found.dead, found.losses) == ((), 0, 0)
    assert found.seconds > 0
    assert found.kv_cache == 0.97
    assert found.preemptions >= 1
    assert found.prompt_tokens > 0


def test_a_night_s_priority_is_not_the_tune_s(store: ObjectStore, engine: CountingEngine) -> None:
    runtime, spec = Runtime(store, engine.url), a_spec(request__input="{{ body }}", queue="nights", priority="first")

    engines(store, runtime).trial(spec, ["t-1"], rows(4), rows(8))

    runtime.join()
    labels = runtime.manifests[0]["metadata"]["labels"]
    assert labels["kueue.x-k8s.io/queue-name"] == "nights"
    assert "kueue.x-k8s.io/priority-class" not in labels


class TestAMachineThatIsTaken:
    """It says nothing of the point: Spot, a node's end, a night that comes first."""

    def test_while_its_engine_answers(
        self, store: ObjectStore, engine: CountingEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The keeper is gone with its pod, and nobody else answers what it has taken."""

        async def ends(self: Keeper, ask: Mapping[str, Any]) -> None:
            raise asyncio.CancelledError

        monkeypatch.setattr(engine_jobset, "PATIENT_S", 0.0)
        monkeypatch.setattr(Keeper, "_computed", ends)
        runtime = Runtime(store, engine.url, status=DISRUPTED)

        with pytest.raises(EngineTaken, match="took pod pod away while its engine answered"):
            engines(store, runtime).trial(SPEC, ["t-1"], rows(4), rows(8))

        assert runtime.there == {}

    def test_when_it_is_seen_only_afterwards(self, store: ObjectStore, engine: CountingEngine) -> None:
        with pytest.raises(EngineTaken):
            engines(store, Runtime(store, engine.url, status=DISRUPTED)).trial(SPEC, ["t-1"], rows(4), rows(8))


def test_a_question_is_answered_however_long_its_machine_took_to_come(store: ObjectStore, engine: CountingEngine) -> None:
    """And one for which nobody waits any longer is not."""
    folder = EngineFolder("tickets", "0" * 16)
    for id_, waits_s in (("patient", 7200.0), ("gone", 0.0)):
        spec, body = SPEC.model_dump(mode="json"), base64.b64encode(to_parquet(rows(4))).decode()
        at_ = (datetime.now(UTC) - timedelta(hours=2)).isoformat()
        ask = {**PREVIEW.stamp(), "at": at_, "spec": spec, "rows": body, "brief": True, "waits_s": waits_s}
        obstore.put(store, folder.ask_path(id_), canonical_json(ask))

    asyncio.run(asyncio.wait_for(Keeper(ObjectStorage(store), folder, engine.url, idle_s=0.5).keep(), 60))

    assert get_bytes(store, folder.answer_path("patient")) is not None
    assert get_bytes(store, folder.taken_path("gone")) is None


@pytest.mark.parametrize(
    ("name", "body", "problem"),
    [
        ("answer", b"[" * 50_000, "is not an answer of an engine: .*nested too deeply"),
        ("answer", b"{", "is not an answer of an engine"),
        ("answer", b"[]", "is not an answer of an engine"),
        ("answer", b'{"outcome": {}}', "is not an answer of an engine"),
        ("answer", b'{"outcome": {"rows": 7}}', "is not an answer of an engine"),
        ("answer", b" " * ((16 << 20) + (1 << 20) + 1), "has 17,825,793 bytes, more than 17,825,792: no engine writes that"),
        ("taken", b" " * 2_000, "has 2,000 bytes, more than 1,024: no engine writes that"),
    ],
)
def test_what_a_worker_has_put_in_place_of_an_answer_is_measured_and_checked(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, name: str, body: bytes, problem: str
) -> None:
    """4 rows may have 16 MiB and 4 times 256 KiB."""
    monkeypatch.setattr(engine_jobset, "new_id", lambda: "asked")
    monkeypatch.setattr(engine_jobset, "PATIENT_S", 0.0)
    folder = engine_jobset.folder_of(SPEC, SETTINGS)
    obstore.put(store, folder.taken_path("asked"), b"pod" if name == "answer" else body)
    if name == "answer":
        obstore.put(store, folder.answer_path("asked"), body)
    engine = JobSetEngines(store, SETTINGS, lambda: pytest.fail("it was taken"), lambda sentence: None)

    with pytest.raises(EngineGone, match=problem):
        engine.answers(SPEC, rows(4))


def test_a_question_that_cannot_be_read_costs_no_other_its_answer(store: ObjectStore, engine: CountingEngine) -> None:
    folder = EngineFolder("tickets", "0" * 16)
    obstore.put(store, folder.ask_path("a-deep"), b"[" * 50_000)
    ask = {**PREVIEW.stamp(), "at": datetime.now(UTC).isoformat(), "spec": SPEC.model_dump(mode="json"), "brief": True}
    ask["rows"] = base64.b64encode(to_parquet(rows(4))).decode()
    obstore.put(store, folder.ask_path("b"), canonical_json(ask))

    asyncio.run(asyncio.wait_for(Keeper(ObjectStorage(store), folder, engine.url, idle_s=0.5).keep(), 60))

    assert b"nested too deeply" in (get_bytes(store, folder.answer_path("a-deep")) or b"")
    assert b"outcome" in (get_bytes(store, folder.answer_path("b")) or b"")


def test_no_machine_is_no_failure_of_the_engine(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_jobset, "LOOK_S", 0.05)
    monkeypatch.setattr(engine_jobset, "TAKEN_S", 0.05)
    waiting = {"phase": "Pending", "initContainerStatuses": [], "conditions": [{"type": "PodScheduled", "status": "False"}]}
    runtime: Any = Runtime(store, "http://127.0.0.1:9", " ", waiting)

    with pytest.raises(engine_jobset.NoMachine, match="no machine for"):
        JobSetEngines(store, SETTINGS, lambda: runtime, lambda sentence: None, machine_s=0.3).answers(SPEC, rows(4))


def test_an_engine_that_is_killed_for_memory_is_out_of_memory(
    store: ObjectStore, engine: CountingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(self: Keeper, ask: Mapping[str, Any]) -> None:
        raise EngineGone("The engine went away.")

    monkeypatch.setattr(Keeper, "_computed", gone)
    runtime = Runtime(store, engine.url, status=OOM_KILLED)

    with pytest.raises(EngineFailed) as caught:
        engines(store, runtime).trial(SPEC, ["t-1"], rows(4), rows(8))

    runtime.join()
    assert caught.value.cause is Cause.OUT_OF_MEMORY


def test_what_a_killed_tune_has_left_is_ended_first(store: ObjectStore, engine: CountingEngine) -> None:
    runtime = Runtime(store, engine.url)
    engines(store, runtime).trial(SPEC, ["t-1"], rows(4), rows(8))
    left = runtime.manifests[0]["metadata"]["name"]
    runtime.there[left] = threading.Event()

    engines(store, runtime).trial(SPEC, ["t-1", "t-2"], rows(4), rows(8))

    runtime.join()
    assert len(runtime.manifests) == 2
    assert runtime.there == {}


@pytest.mark.parametrize(
    ("words", "cause"),
    [("torch.OutOfMemoryError: CUDA out of memory", Cause.OUT_OF_MEMORY), ("no such flag", Cause.CANNOT_START)],
)
def test_an_engine_that_does_not_start_is_a_trial_with_a_cause(store: ObjectStore, words: str, cause: Cause) -> None:
    runtime = Runtime(store, "http://127.0.0.1:9", words)

    with pytest.raises(EngineFailed, match=words.split(":")[0]) as caught:
        engines(store, runtime).trial(SPEC, ["t-1"], rows(4), rows(8))

    assert caught.value.cause is cause
    assert runtime.there == {}
