"""Previews against an engine that answers over HTTP: the command from its arguments to the result, by URL and by the keeper."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from aiohttp import web
from obstore.store import LocalStore, ObjectStore

from local.ports import new_port
from nightshift import exits
from nightshift.cli import preview as command
from nightshift.jobset.labels import RUN_URL_ANNOTATION
from nightshift.jobset.observation import Observation
from nightshift.planner.costs.prices import Prices
from nightshift.run.names import WORKERS, split_run_url
from nightshift.settings import Settings
from nightshift.spec import JobSpec
from nightshift.store import ObjectStorage
from nightshift.trial.compute import compute
from nightshift.trial.engine_folder import EngineFolder
from nightshift.trial.keeper import Keeper
from nightshift.trial.outcomes import UnfitEngine
from nightshift.trial.preview import results
from nightshift.trial.world import World
from tests.integration.driver.canned import CannedEngine, vector_of

pytestmark = [pytest.mark.integration, pytest.mark.gate]

JOB: dict[str, Any] = {
    "job": "tickets",
    "owner": "support",
    "start_date": "2026-11-01",
    "source": {"query": "SELECT id, body FROM `support.tickets` WHERE day = @partition", "key": ["id"]},
    "task": "chat",
    "request": {"system": "You label tickets.", "user": "Label: {{ body }}", "max_tokens": 8},
    "model": {"name": "m", "uri": "hf://org/m", "revision": "r1"},
    "engine": {"max_num_seqs": 8},
    "destination": {"table": "support.labels", "column": "label"},
    "deadline": "1h",
    "compute": {"profile": "cpu", "workers": 1, "rows_per_worker_per_second": 10.0},
}
BODIES = ["refund please", "it crashes", None, "lost parcel"]
SETTINGS = Settings(bucket="b", project="p", runtime="local:/nowhere")
DAY = "2026-11-20"


class Warehouse:
    """Four rows of two thousand. asked: how often it was read."""

    def __init__(self) -> None:
        self.asked = 0

    def query_bytes(self, spec: JobSpec, partition: str) -> int | None:
        return 3 * 10**9

    def some_rows(self, spec: JobSpec, partition: str, rows: int) -> tuple[int, pa.Table]:
        self.asked += 1
        return 2_000, pa.table({"id": list(range(len(BODIES))), "body": pa.array(BODIES, pa.string())}).slice(0, rows)


class ChatEngine(CannedEngine):
    """Answers with the last words of the prompt, and says `length` for one of them."""

    async def _chat(self, request: web.Request) -> web.Response:
        messages = (await request.json())["messages"]
        text = messages[-1]["content"]
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text.rpartition(" ")[2].upper()},
            "finish_reason": "length" if "crashes" in text else "stop",
        }
        self.seen.append(text)
        usage = {"prompt_tokens": sum(len(each["content"].split()) for each in messages), "completion_tokens": 2}
        return web.json_response({"choices": [choice], "usage": usage})


@pytest.fixture
def engine() -> Iterator[ChatEngine]:
    with ChatEngine() as serving:
        yield serving


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return LocalStore(tmp_path / "bucket", mkdir=True)


class Tried:
    """The command in surroundings of its own. said: what it told on the way."""

    def __init__(self, folder: Path, store: ObjectStore, runtime: Callable[[], Any]) -> None:
        self.folder, self.store, self.warehouse, self.said = folder, store, Warehouse(), list[str]()
        self.environment: dict[str, str] = {}
        self._runtime = runtime

    def file(self, name: str = "tickets.yaml", **changes: Any) -> Path:
        body = json.loads(json.dumps(JOB))
        for place, value in changes.items():
            *parents, last = place.split("__")
            target = body
            for parent in parents:
                target = target[parent]
            target[last] = value
        path = self.folder / name
        path.write_text(yaml.safe_dump(body))
        return path

    def run(self, file: Path, **options: Any) -> int:
        given = {"rows": 20, "partition": DAY, "against": None, "engine": None, "as_json": False, **options}
        return command.run(command.Options(file, **given), self.environment, self._world)

    def _world(self, environment: Mapping[str, str]) -> World:
        return World(
            self.store,
            SETTINGS,
            lambda **_: self.warehouse,
            self._runtime,
            Prices("USD", machines={"cpu": 36.0}),
            {**environment, "HF_HUB_OFFLINE": "1"},
            self.said.append,
        )


def none_is_needed() -> Any:
    raise AssertionError("no runtime is needed")


def test_a_preview_by_url_shows_each_row_and_what_the_night_would_take(
    tmp_path: Path, store: ObjectStore, engine: ChatEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    tried = Tried(tmp_path, store, none_is_needed)

    code = tried.run(tried.file(), engine=engine.url, as_json=True)

    said = json.loads(capsys.readouterr().out)
    assert code == exits.DONE
    (variant,) = said["variants"]
    assert [row["answer"] for row in variant["rows"]] == ["PLEASE", "CRASHES", "", "PARCEL"]
    assert variant["rows"][0]["prompt"] == "system: You label tickets.\nuser: Label: refund please"
    assert [row["finish_reason"] for row in variant["rows"]] == ["stop", "length", "stop", "stop"]
    assert (variant["rows"][0]["prompt_tokens"], variant["rows"][0]["output_tokens"]) == (6, 2)
    assert variant["rows"][0]["key"] == {"id": 0}
    night = variant["night"]
    assert (night["rows"], night["output_tokens"], night["workers"]) == (2_000, 4_000, 1)
    assert night["cost"] > 0
    assert any("3.000 GB, by a dry run" in sentence for sentence in tried.said)
    assert results.load(store, "tickets", said["id"]) == results.newest(store, "tickets", 5)[0]


def test_the_second_preview_of_a_changed_prompt_reads_no_table_and_the_answers_are_compared(
    tmp_path: Path, store: ObjectStore, engine: ChatEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    tried = Tried(tmp_path, store, none_is_needed)
    tried.run(tried.file(), engine=engine.url)
    changed = tried.file("other.yaml", request__user="Label: {{ body }} urgent")
    capsys.readouterr()

    tried.run(tried.file(), engine=engine.url, against=changed)

    shown = capsys.readouterr().out
    assert tried.warehouse.asked == 1
    newest, _ = results.newest(store, "tickets", 2)
    assert (newest.changed_answers, newest.changed_prompts, newest.rows_kept) == (4, 4, True)
    assert newest.pairs[0].answer == (("-", "PLEASE"), ("+", "URGENT"))
    assert "{+urgent+}" in shown
    assert "4 of 4 answers changed" in shown


def test_a_row_that_would_be_a_dead_letter_is_shown_with_its_reason(
    tmp_path: Path, store: ObjectStore, engine: ChatEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    tried = Tried(tmp_path, store, none_is_needed)

    code = tried.run(tried.file(request__user="{{ body }}"), engine=engine.url)

    shown = capsys.readouterr().out
    assert code == exits.FAILED
    assert "bad_input: the template rendered to nothing" in shown
    assert "3 answered, 1 cut, 1 dead letter (1 bad_input)" in shown


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"model__name": "another"}, exits.CONFIG, "another"),
        ({"model__uri": "hf://org/tuned"}, exits.CONFIG, "serves 'm' from 'org/m', but must serve it from 'org/tuned'"),
        ({"request__user": "{{ boddy }}"}, exits.BAD_INPUT, "Did you mean 'body'?"),
    ],
)
def test_what_is_wrong_is_said(
    tmp_path: Path,
    store: ObjectStore,
    engine: ChatEngine,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    code: int,
    words: str,
) -> None:
    tried = Tried(tmp_path, store, none_is_needed)

    assert tried.run(tried.file(**changes), engine=engine.url) == code
    assert words in capsys.readouterr().err


def test_a_server_may_have_the_models_files_from_where_the_person_says(
    tmp_path: Path, store: ObjectStore, engine: ChatEngine
) -> None:
    engine.model["root"] = "/weights/m"
    tried = Tried(tmp_path, store, none_is_needed)

    assert tried.run(tried.file(), engine=engine.url) == exits.CONFIG
    assert engine.seen == []
    tried.environment = {"NIGHTSHIFT_MODEL_ROOT": "/weights/m"}
    assert tried.run(tried.file(), engine=engine.url) == exits.DONE


class Runtime:
    """Starts a keeper in a thread in place of a pod, once; `broken`: its server ends again and again."""

    def __init__(self, store: ObjectStore, url: str, *, broken: bool = False) -> None:
        self._store, self._url, self._broken = store, url, broken
        self.submitted: list[Mapping[str, Any]] = []
        self.stopped: list[str] = []
        self._threads: list[threading.Thread] = []
        self._over = threading.Event()

    def submit(self, manifest: Mapping[str, Any]) -> str:
        self.submitted.append(manifest)
        if not self._broken:
            _, run = split_run_url(manifest["metadata"]["annotations"][RUN_URL_ANNOTATION])
            self._threads.append(threading.Thread(target=self._keep, args=(EngineFolder(run.job, run.digest),)))
            self._threads[-1].start()
        return ""

    def _keep(self, folder: EngineFolder) -> None:
        asyncio.run(self._until_over(folder))

    async def _until_over(self, folder: EngineFolder) -> None:
        keeper = asyncio.create_task(Keeper(ObjectStorage(self._store), folder, self._url).keep())
        await asyncio.to_thread(self._over.wait)
        keeper.cancel()

    def observe(self, name: str, *, closely: bool = False) -> Observation:
        status = {"initContainerStatuses": [{"name": "server", "restartCount": 3 if self._broken else 0}]}
        return Observation({"metadata": {"name": name}}, pods=({"metadata": {"name": "pod"}, "status": status},))

    def logs(self, name: str, pod: str, container: str, *, last: int | None = None) -> Iterator[str]:
        return iter(["LocalEntryNotFoundError: no such model"])

    def stop(self, name: str, uid: str = "") -> None:
        self.stopped.append(name)

    def join(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


def test_a_warm_engine_is_started_once_and_asked_in_the_bucket(
    tmp_path: Path, store: ObjectStore, engine: ChatEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime = Runtime(store, engine.url)
    tried = Tried(tmp_path, store, lambda: runtime)

    codes = [tried.run(tried.file(request__user=f"{word}: {{{{ body }}}}")) for word in ("Label", "Tag")]

    runtime.join()
    (manifest,) = runtime.submitted
    (driver,) = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"]
    assert codes == [exits.DONE, exits.DONE]
    assert driver["command"] == ["python3", "-m", "nightshift.trial.keeper"]
    second, first = results.newest(store, "tickets", 2)
    assert first.variants[0].rows[0].answer == second.variants[0].rows[0].answer == "PLEASE"
    # Workers may create below their own prefix alone.
    own = [path for path in (tmp_path / "bucket" / WORKERS).rglob("*") if path.is_file()]
    assert len(own) == 4


def test_an_engine_that_does_not_start_is_stopped_and_its_last_words_are_said(
    tmp_path: Path, store: ObjectStore, engine: ChatEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime = Runtime(store, engine.url, broken=True)
    tried = Tried(tmp_path, store, lambda: runtime)

    assert tried.run(tried.file()) == exits.CONFIG
    assert "LocalEntryNotFoundError: no such model" in capsys.readouterr().err
    assert len(runtime.stopped) == 1


def test_rows_that_share_a_request_have_their_own_answers_and_the_tokens_of_all(
    tmp_path: Path, store: ObjectStore, engine: ChatEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    tried = Tried(tmp_path, store, none_is_needed)
    file = tried.file(task="embedding", request={"input": "{{ body }}"}, destination__column="vector")

    assert tried.run(file, engine=engine.url, as_json=True) == exits.FAILED

    (variant,) = json.loads(capsys.readouterr().out)["variants"]
    assert [row["prompt"] for row in variant["rows"]] == ["refund please", "it crashes", None, "lost parcel"]
    assert variant["rows"][0]["answer"] == vector_of("refund please")
    assert variant["rows"][0]["prompt_tokens"] is None
    assert variant["prompt_tokens"] == sum(len(each) for each in BODIES if each)


class TestSeveralEngines:
    """As a job with engines beside each other has them."""

    def test_a_question_goes_to_all_of_them(self, engine: ChatEngine) -> None:
        spec = JobSpec.model_validate({**JOB, "engine": {"max_num_seqs": 1}})
        rows = pa.table({"id": list(range(40)), "body": [f"number {n}" for n in range(40)]})

        with ChatEngine() as other:
            outcome = asyncio.run(compute(spec, rows, engine.url, other.url))

        assert [row.answer for row in outcome.rows] == [str(n) for n in range(40)]
        assert len(engine.seen) + len(other.seen) == 40
        assert engine.seen
        assert other.seen

    def test_they_must_serve_the_same(self, engine: ChatEngine) -> None:
        spec, rows = JobSpec.model_validate(JOB), pa.table({"id": [1], "body": ["one"]})

        with ChatEngine() as other:
            other.model["id"] = "another"
            with pytest.raises(UnfitEngine, match="another"):
                asyncio.run(compute(spec, rows, engine.url, other.url))


def test_an_engine_that_nobody_asks_ends_by_itself(store: ObjectStore, engine: ChatEngine) -> None:
    keeper = Keeper(ObjectStorage(store), EngineFolder("tickets", "0" * 16), engine.url, idle_s=0.1)

    asyncio.run(asyncio.wait_for(keeper.keep(), 60))


def test_an_engine_that_comes_back_with_another_model_is_asked_no_row() -> None:
    class Slow(ChatEngine):
        async def _chat(self, request: web.Request) -> web.Response:
            await asyncio.sleep(0.1)
            return await super()._chat(request)

    port, over = new_port(), threading.Event()
    asked: list[str] = []

    def serve() -> None:
        with Slow(port=port) as engine:
            ready.set()
            while len(engine.seen) < 20 and not over.wait(0.01):
                pass
        with Slow(port=port) as other:
            other.model["root"] = "org/another"
            over.wait(60)
            asked.extend(other.seen)

    ready, rows = threading.Event(), pa.table({"id": list(range(200)), "body": [f"number {n}" for n in range(200)]})
    server = threading.Thread(target=serve)
    server.start()
    assert ready.wait(60)
    try:
        with pytest.raises(UnfitEngine, match=r"Expected: 'm', from org/m.* Found: 'm', from org/another"):
            asyncio.run(compute(JobSpec.model_validate(JOB), rows, f"http://127.0.0.1:{port}"))
    finally:
        over.set()
        server.join()
    assert asked == []
