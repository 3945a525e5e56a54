"""The real driver process against engine faults: what it retries, bisects, gives up, saves and resumes."""

import asyncio
import contextlib
import json
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import obstore
import pytest
from aiohttp import web

from local.ports import new_port
from nightshift import exits
from nightshift.driver.scheduler import ALONE_DEATHS, SUSPECT_DEATHS
from nightshift.run import seal
from nightshift.run.names import RunRef
from nightshift.store import open_store
from tests.builders import a_chunk
from tests.integration.driver.canned import Behaviour, CannedEngine, Outage, vector_of
from tests.integration.driver.runs import TO_THE_END, DriverProcess, PreparedRun, prepare

pytestmark = pytest.mark.integration

WAITING = "waiting for the engine: it reports that it is healthy, but answers no request"
TEXTS: list[str | None] = [f"text number {n}" for n in range(60)]


def check_all_answered(prepared: PreparedRun, texts: list[str | None], dead: dict[int, str] | None = None) -> None:
    """Each ordinal once, each with its own vector or its reason."""
    dead = dead or {}
    rows = prepared.rows()
    assert sorted(rows) == list(range(len(texts)))
    for ordinal, text in enumerate(texts):
        row = rows[ordinal]
        assert row["id"] == ordinal
        assert row["dead_reason"] == dead.get(ordinal)
        if ordinal not in dead:
            assert row["prediction"] == vector_of(text or "")


def run_driver(prepared: PreparedRun, behaviour: Behaviour | None = None, index: int | str = 0) -> tuple[int, CannedEngine]:
    with CannedEngine(behaviour) as engine:
        return DriverProcess(prepared, engine.url, index).finish(), engine


def each_once(status: int) -> Behaviour:
    """Each request meets an error once; after that all is well."""
    seen: set[str] = set()

    async def behave(texts: list[str]) -> web.StreamResponse | None:
        if texts[0] in seen:
            return None
        seen.add(texts[0])
        return web.json_response({"error": {"message": "later"}}, status=status, headers={"Retry-After": "0.1"})

    return behave


def stalls_after(count: int) -> Behaviour:
    """The first `count` requests are answered; those after them hang."""
    answered = 0

    async def behave(texts: list[str]) -> None:
        nonlocal answered
        if answered >= count:
            await asyncio.sleep(3600)
        answered += 1

    return behave


@pytest.mark.gate
def test_all_rows_are_answered_and_sealed(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, TEXTS, workers=2)

    codes = [run_driver(prepared, index=index)[0] for index in range(2)]

    assert codes == [exits.DONE, exits.DONE]
    check_all_answered(prepared, TEXTS)
    manifest = seal.seal(open_store(prepared.url), prepared.run, prepared.spec, prepared.plan)
    assert (manifest.rows, manifest.predictions) == (60, 60)


def test_requests_overlap_across_chunks(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, TEXTS, chunk_rows=4)

    held = 0
    full = asyncio.Event()

    async def until_four(texts: list[str]) -> None:
        """Holds the first requests until there are four. If the fourth does not come, the driver sends too few at once."""
        nonlocal held
        held += 1
        if held == 4:
            full.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(full.wait(), 30)
        full.set()

    _, engine = run_driver(prepared, until_four)

    assert engine.in_flight_max >= 4, "2 x max_num_seqs 8 rows in requests of 4 rows, though a chunk has only one request"


@pytest.mark.parametrize("status", [429, 503, 500, 502])
def test_passing_errors_cost_no_row(tmp_path: Path, status: int) -> None:
    prepared = prepare(tmp_path, TEXTS)

    code, _ = run_driver(prepared, each_once(status))

    assert code == exits.DONE
    check_all_answered(prepared, TEXTS)


@pytest.mark.gate
def test_broken_connections_cost_no_row(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, TEXTS[:24])
    broken: set[str] = set()

    async def behave(texts: list[str]) -> web.StreamResponse | None:
        if len(broken) < 2 and texts[0] not in broken:
            broken.add(texts[0])
            # A body that ends before its announced length: the connection breaks in the middle of a reply.
            return web.Response(body=b"{", headers={"Content-Length": "1"}, content_type="application/json")
        return None

    code, _ = run_driver(prepared, behave)

    assert code == exits.DONE
    check_all_answered(prepared, TEXTS[:24])


@pytest.mark.parametrize("bad", [0, 7, 30, 59])
def test_one_refused_row_costs_no_other(tmp_path: Path, bad: int) -> None:
    texts = [*TEXTS]
    texts[bad] = "poison"

    async def behave(sent: list[str]) -> web.StreamResponse | None:
        if "poison" in sent:
            return web.json_response({"error": {"message": "This model's maximum context length is 256 tokens"}}, status=400)
        return None

    prepared = prepare(tmp_path, texts)
    code, engine = run_driver(prepared, behave)

    assert code == exits.DONE
    check_all_answered(prepared, texts, {bad: "too_long"})
    assert prepared.rows()[bad]["dead_message"] == "This model's maximum context length is 256 tokens"
    assert engine.seen.count("poison") == 3, "in four rows, in two, alone"


@pytest.mark.gate
def test_a_row_that_always_fails_is_given_up_with_its_reason(tmp_path: Path) -> None:
    texts = [*TEXTS[:8]]
    texts[3] = "poison"

    async def behave(sent: list[str]) -> web.StreamResponse | None:
        return web.json_response({"message": "boom"}, status=500) if "poison" in sent else None

    prepared = prepare(tmp_path, texts)
    with CannedEngine(behave) as engine:
        code = DriverProcess(prepared, engine.url, hurried=True).finish()

    assert code == exits.DONE
    check_all_answered(prepared, texts, {3: "engine_error"})


def turns_away(status: int, *, everyone: bool) -> Behaviour:
    async def behave(sent: list[str]) -> web.StreamResponse | None:
        if everyone or "poison" in sent:
            return web.json_response({"message": "forbidden"}, status=status, headers={"Location": "http://elsewhere/"})
        return None

    return behave


@pytest.mark.gate
@pytest.mark.parametrize("status", [302, 401, 403, 501])
def test_a_row_that_a_gateway_turns_away_costs_no_other(tmp_path: Path, status: int) -> None:
    texts = [*TEXTS[:24]]
    texts[9] = "poison"
    prepared = prepare(tmp_path, texts)
    with CannedEngine(turns_away(status, everyone=False)) as engine:
        code = DriverProcess(prepared, engine.url, hurried=True).finish()

    assert code == exits.DONE
    check_all_answered(prepared, texts, {9: "rejected"})


@pytest.mark.gate
@pytest.mark.parametrize("status", [401, 404])
def test_an_engine_that_turns_every_row_away_is_a_mistake_of_the_configuration(tmp_path: Path, status: int) -> None:
    prepared = prepare(tmp_path, TEXTS)
    with CannedEngine(turns_away(status, everyone=True)) as engine:
        driver = DriverProcess(prepared, engine.url, hurried=True)
        code = driver.finish()

    assert code == exits.CONFIG
    assert f"turns every one away: {status}: forbidden" in str(driver.log)
    assert prepared.rows() == {}


@pytest.mark.gate
@pytest.mark.parametrize("after", [0, 40])
def test_an_engine_that_fails_everybody_is_waited_for_and_costs_no_row(tmp_path: Path, after: int) -> None:
    texts: list[str | None] = [f"text {n}" for n in range(2000)]
    prepared = prepare(tmp_path, texts, chunk_rows=200)
    outage = Outage(after)

    with CannedEngine(outage) as engine:
        driver = DriverProcess(prepared, engine.url, hurried=True)
        said = driver.wait_for(WAITING)
        outage.over = True
        driver.wait_for("the engine answers again")
        code = driver.finish()

    assert code == exits.DONE
    assert said["error"] == "failed: 500: all is lost"
    check_all_answered(prepared, texts)


@pytest.mark.gate
@pytest.mark.parametrize("bad", [(0,), (59,), range(1, 60)], ids=["the-first", "the-last", "all-but-one"])
def test_rows_that_always_fail_are_given_up_though_nothing_else_is_left(tmp_path: Path, bad: Sequence[int]) -> None:
    texts = [f"poison {n}" if n in bad else text for n, text in enumerate(TEXTS)]

    async def behave(sent: list[str]) -> web.StreamResponse | None:
        return web.json_response({"message": "boom"}, status=500) if any("poison" in text for text in sent) else None

    prepared = prepare(tmp_path, texts)
    with CannedEngine(behave) as engine:
        code = DriverProcess(prepared, engine.url, hurried=True).finish()

    assert code == exits.DONE
    check_all_answered(prepared, texts, dict.fromkeys(bad, "engine_error"))


@pytest.mark.gate
@pytest.mark.parametrize("retry_after", ["86400", "Fri, 01 Jan 2099 00:00:00 GMT"])
def test_one_row_that_the_engine_puts_off_for_ever_is_given_up(tmp_path: Path, retry_after: str) -> None:
    texts = [*TEXTS[:8]]
    texts[3] = "unloved"

    async def behave(sent: list[str]) -> web.StreamResponse | None:
        if "unloved" not in sent:
            return None
        return web.json_response({"message": "later"}, status=429, headers={"Retry-After": retry_after})

    prepared = prepare(tmp_path, texts, request__rows_per_request=1)
    with CannedEngine(behave) as engine:
        code = DriverProcess(prepared, engine.url, hurried=True).finish()

    assert code == exits.DONE
    check_all_answered(prepared, texts, {3: "engine_error"})


def test_rows_without_text_are_dead_letters_and_never_sent(tmp_path: Path) -> None:
    texts: list[str | None] = ["a", None, "", "   ", "b"]

    prepared = prepare(tmp_path, texts)
    code, engine = run_driver(prepared)

    assert code == exits.DONE
    assert engine.seen == ["a", "b"]
    check_all_answered(prepared, texts, dict.fromkeys((1, 2, 3), "bad_input"))


def test_committed_chunks_are_never_sent_again(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, TEXTS)
    run_driver(prepared)
    before = prepared.rows()

    code, engine = run_driver(prepared)

    assert code == exits.DONE
    assert engine.seen == []
    assert prepared.rows() == before


@pytest.mark.gate
def test_only_missing_chunks_are_computed(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, TEXTS)
    run_driver(prepared)
    (prepared.work / "ledger/chunk-00000002.parquet").unlink()

    _, engine = run_driver(prepared)

    assert engine.seen == TEXTS[16:24]
    check_all_answered(prepared, TEXTS)


@pytest.mark.gate
def test_a_drain_saves_every_finished_row_and_the_next_attempt_computes_the_rest(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, TEXTS, chunk_rows=60)

    with CannedEngine(stalls_after(5)) as engine:
        driver = DriverProcess(prepared, engine.url, program=TO_THE_END)
        while len(engine.seen) < 5 * 4 + 4 * 4:
            time.sleep(0.05)
        driver.terminate()
        driver.terminate()
        code = driver.finish()

    assert code == exits.RESUME
    # By its own account: what hangs is left after 13.5 s, without a word. How long a drain takes is for the simulation to say.
    assert driver.messages()[-2:] == ["stopped", "exit"]
    assert prepared.rows() == {}
    # Requests that are sent together may arrive in another order than that of their rows.
    answered = engine.seen[:20]
    assert [TEXTS[row] for row in prepared.partial_rows()] == sorted(answered, key=TEXTS.index)

    code, engine = run_driver(prepared)

    assert code == exits.DONE
    assert sorted(engine.seen) == sorted(text for text in TEXTS if text and text not in answered), (
        "saved rows are not sent again"
    )
    check_all_answered(prepared, TEXTS)


def test_a_drain_with_all_committed_is_done(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, TEXTS[:8])

    with CannedEngine() as engine:
        driver = DriverProcess(prepared, engine.url)
        driver.wait_for("committed")
        driver.terminate()
        code = driver.finish()

    assert code == exits.DONE


@pytest.mark.gate
def test_an_engine_that_comes_back_is_waited_for(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, TEXTS)

    port = new_port()
    with CannedEngine(stalls_after(3), port=port) as engine:
        driver = DriverProcess(prepared, engine.url)
        driver.wait_for("committed")
    driver.wait_for("engine lost")
    with CannedEngine(port=port):
        code = driver.finish()

    assert code == exits.DONE
    assert "engine back" in driver.messages()
    check_all_answered(prepared, TEXTS)


def test_an_engine_with_another_model_is_a_configuration_error(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, TEXTS, model__name="other")

    code, engine = run_driver(prepared)

    assert code == exits.CONFIG
    assert engine.seen == []


@pytest.mark.parametrize(("root", "code"), [("org/m", exits.DONE), ("org/other", exits.CONFIG)])
def test_an_engine_that_has_its_model_from_elsewhere_gets_no_row(tmp_path: Path, root: str, code: int) -> None:
    """It was loaded before the pod's order changed, or something else listens on its port."""
    prepared = prepare(tmp_path, TEXTS)
    with CannedEngine() as engine:
        engine.model = {"id": "m", "root": root, "max_model_len": 256}
        driver = DriverProcess(prepared, engine.url, extra={"NIGHTSHIFT_MODEL_ROOT": "org/m"})

        assert driver.finish() == code
        assert bool(engine.seen) == (code == exits.DONE)


@pytest.mark.parametrize("root", ["someone-else/another-model", "/weights", "", None])
@pytest.mark.parametrize("helps", [True, False])
def test_an_engine_of_another_cluster_is_asked_which_model_it_has(tmp_path: Path, root: str | None, helps: bool) -> None:
    """Where nothing but the run and the engine is named, it must have the model that the job names."""
    prepared = prepare(tmp_path, TEXTS)
    extra = {"NIGHTSHIFT_ROLE": "helper", "NIGHTSHIFT_MODEL_REVISION": "r1"} if helps else {}
    with CannedEngine() as engine:
        engine.model = {"id": "m", "root": root}
        driver = DriverProcess(prepared, engine.url, extra=extra)

        assert driver.finish() == exits.CONFIG
    assert engine.seen == []
    assert not list((prepared.folder / "ledger").glob("*"))
    assert any("but must serve it from 'org/m'" in entry.get("error", "") for entry in driver.log)


@pytest.mark.parametrize(
    ("index", "extra", "problem"),
    [
        (0, {"NIGHTSHIFT_ROLE": "helper"}, "is not set, and an engine does not say its revision"),
        ("", {}, "is not set, and an engine does not say its revision"),
        (0, {"NIGHTSHIFT_ROLE": "helper", "NIGHTSHIFT_MODEL_REVISION": "r2"}, "is 'r2', but the run's model is at 'r1'"),
        (0, {"NIGHTSHIFT_MODEL_REVISION": "r2"}, "is 'r2', but the run's model is at 'r1'"),
        (0, {"NIGHTSHIFT_ROLE": "helper", "NIGHTSHIFT_MODEL_REVISION": "r1"}, None),
        (0, {}, None),
    ],
)
def test_a_helper_is_told_the_revision_of_its_engine(
    tmp_path: Path, index: int | str, extra: dict[str, str], problem: str | None
) -> None:
    prepared = prepare(tmp_path, TEXTS)
    with CannedEngine() as engine:
        driver = DriverProcess(prepared, engine.url, index, extra=extra)

        assert driver.finish() == (exits.CONFIG if problem else exits.DONE)
    assert bool(prepared.rows()) == bool(engine.seen) == (problem is None)
    said = [entry["error"] for entry in driver.log if "error" in entry]
    remedy = "Start the engine with --revision=r1, and set it to that"
    assert [each for each in said if "MODEL_REVISION" in each] == (
        [f"ConfigError: NIGHTSHIFT_MODEL_REVISION {problem}. {remedy}"] if problem else []
    )


@pytest.mark.parametrize(("dimensions", "code"), [(2, exits.DONE), (3, exits.CONFIG)])
def test_vectors_of_another_width_than_the_job_states_end_the_run(tmp_path: Path, dimensions: int, code: int) -> None:
    prepared = prepare(tmp_path, TEXTS, request__dimensions=dimensions)

    with CannedEngine() as engine:
        driver = DriverProcess(prepared, engine.url)
        assert driver.finish() == code

    assert bool(prepared.rows()) == (code == exits.DONE)
    assert not prepared.partial_rows()
    errors = [entry["error"] for entry in driver.log if entry["message"] == "cannot continue"]
    assert ["have 2 numbers, but request.dimensions says 3" in error for error in errors] == [True] * (code == exits.CONFIG)


def test_an_engine_of_another_context_length_gets_no_row(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, TEXTS, engine__max_model_len=128)
    with CannedEngine() as engine:
        engine.model = {"id": "m", "root": "org/m", "max_model_len": 256}

        assert DriverProcess(prepared, engine.url).finish() == exits.CONFIG
        assert engine.seen == []


def test_an_input_that_changed_after_the_plan_is_a_configuration_error(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, TEXTS)
    store = open_store(prepared.url)
    path = f"{prepared.run.prefix}/inputs/part-000.parquet"
    obstore.put(store, path, bytes(obstore.get(store, path).bytes()) + b" ")

    with CannedEngine() as engine:
        driver = DriverProcess(prepared, engine.url)
        code = driver.finish()

    assert code == exits.CONFIG
    assert any("was overwritten or deleted after it was planned" in entry.get("error", "") for entry in driver.log)


@pytest.mark.parametrize("index", [7, ""])
def test_a_worker_without_home_helps_with_everything(tmp_path: Path, index: int | str) -> None:
    prepared = prepare(tmp_path, TEXTS, workers=2)

    with CannedEngine() as engine:
        assert DriverProcess(prepared, engine.url, index, extra={"NIGHTSHIFT_MODEL_REVISION": "r1"}).finish() == exits.DONE
    check_all_answered(prepared, TEXTS)


@pytest.mark.gate
def test_an_owner_helps_when_its_own_range_is_done(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, TEXTS, workers=2)

    code, engine = run_driver(prepared, index=0)

    assert code == exits.DONE
    assert len(engine.seen) == len(TEXTS)
    check_all_answered(prepared, TEXTS)


@pytest.mark.gate
def test_too_many_dead_letters_end_a_run_before_its_end(tmp_path: Path) -> None:
    async def refuse(texts: list[str]) -> web.StreamResponse:
        await asyncio.sleep(0.5)
        return web.json_response({"error": {"message": "no"}}, status=400)

    prepared = prepare(tmp_path, [f"text {n}" for n in range(4000)], chunk_rows=4, request__rows_per_request=1)

    with CannedEngine(refuse) as engine:
        driver = DriverProcess(prepared, engine.url, extra={"NIGHTSHIFT_DEAD_LETTERS": "10"})
        code = driver.finish()

    assert code == exits.CONFIG
    assert 10 < len(prepared.rows()) < 4000
    assert any("the job tolerates 10" in entry.get("error", "") for entry in driver.log)


@pytest.mark.gate
def test_a_torn_partial_is_left_out(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, TEXTS[:8])
    folder = prepared.work / "partials/chunk-00000000"
    folder.mkdir(parents=True)
    (folder / "dead.parquet").write_bytes(b"PAR1 torn")

    code, _ = run_driver(prepared)

    assert code == exits.DONE
    check_all_answered(prepared, TEXTS[:8])


def test_a_partial_of_another_run_or_chunk_is_left_out(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, TEXTS[:16], chunk_rows=8)
    another = RunRef("job", "2026-11-19", "f" * 16)
    for name, run, chunk in (("other-run", another, 0), ("other-chunk", prepared.run, 1)):
        path = f"{prepared.run.work(prepared.plan.uid).prefix}/partials/chunk-00000000/{name}.parquet"
        body = a_chunk(run, prepared.plan, chunk, ordinals=range(8))
        obstore.put(open_store(prepared.url), path, body)

    code, _ = run_driver(prepared)

    assert code == exits.DONE
    check_all_answered(prepared, TEXTS[:16])


@pytest.mark.parametrize("wait_s", [0.0, 0.1, 0.2, 0.4, 0.8])
def test_a_sigterm_at_any_moment_of_the_start_asks_to_be_resumed(tmp_path: Path, wait_s: float) -> None:
    prepared = prepare(tmp_path, TEXTS)

    async def stalls(texts: list[str]) -> None:
        await asyncio.sleep(3600)

    with CannedEngine(stalls) as engine:
        driver = DriverProcess(prepared, engine.url)
        # As soon as Python itself runs: an interpreter that still starts has no handlers of anybody's.
        while b"nightshift.driver" not in Path(f"/proc/{driver.process.pid}/cmdline").read_bytes() or not takes(driver):
            time.sleep(0.001)
        time.sleep(wait_s)
        driver.terminate()
        code = driver.finish()

    assert code == exits.RESUME


def takes(driver: DriverProcess) -> bool:
    """Whether the process has a handler of its own for SIGTERM."""
    status = Path(f"/proc/{driver.process.pid}/status").read_text()
    caught = int(next(line for line in status.splitlines() if line.startswith("SigCgt:")).split()[1], 16)
    return bool(caught & (1 << (signal.SIGTERM - 1)))


@pytest.mark.parametrize(
    "run_url", ["nonsense", "s3://bucket/job/2026-11-20/0123456789abcdef", "file:///x/job/2026-11-20/not-a-digest", "gs://b"]
)
def test_a_run_url_without_sense_is_a_configuration_error(tmp_path: Path, run_url: str) -> None:
    with CannedEngine() as engine:
        driver = DriverProcess(prepare(tmp_path, TEXTS[:1]), engine.url, run_url=run_url)

        assert driver.finish() == exits.CONFIG


@pytest.mark.gate
def test_a_row_that_kills_the_engine_is_the_only_dead_letter(tmp_path: Path) -> None:
    texts = [*TEXTS[:40]]
    texts[13] = "killer"
    prepared = prepare(tmp_path, texts)
    killed = threading.Event()

    async def behave(sent: list[str]) -> web.StreamResponse | None:
        if "killer" in sent:
            killed.set()
            await asyncio.sleep(3600)
        return None

    port = new_port()
    with CannedEngine(behave, port=port) as first:
        driver = DriverProcess(prepared, first.url)
        killed.wait()
    for _ in range(SUSPECT_DEATHS + ALONE_DEATHS - 1):
        driver.wait_for("engine lost")
        killed.clear()
        with CannedEngine(behave, port=port):
            killed.wait()
    driver.wait_for("engine lost")
    killed.clear()
    with CannedEngine(behave, port=port):
        code = driver.finish()

    assert code == exits.DONE
    check_all_answered(prepared, texts, {13: "engine_killed"})
    assert not killed.is_set(), "it was sent as often as that, and no more"


@pytest.mark.parametrize("index", ["-1", "one", "\u00b2"])
def test_an_index_that_is_no_number_is_a_configuration_error(tmp_path: Path, index: str) -> None:
    with CannedEngine() as engine:
        assert DriverProcess(prepare(tmp_path, TEXTS[:1]), engine.url, index).finish() == exits.CONFIG


def test_settings_of_performance_are_those_of_the_job_as_it_is_now(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, TEXTS, chunk_rows=60)
    sizes: list[int] = []

    async def behave(texts: list[str]) -> None:
        sizes.append(len(texts))

    tuning = json.dumps({"engine": {"max_num_seqs": 16, "dtype": "half"}, "request": {"rows_per_request": 15, "novelty": 1}})
    with CannedEngine(behave) as engine:
        driver = DriverProcess(prepared, engine.url, extra={"NIGHTSHIFT_TUNING": tuning})
        assert driver.finish() == exits.DONE

    assert prepared.spec.rows_per_request == 4
    assert max(sizes) == 15
    check_all_answered(prepared, TEXTS)


@pytest.mark.parametrize("value", ["{", "[]", '{"engine": 7}', '{"engine": {"max_num_seqs": "many"}}'])
def test_tuning_without_sense_is_a_configuration_error(tmp_path: Path, value: str) -> None:
    with CannedEngine() as engine:
        driver = DriverProcess(prepare(tmp_path, TEXTS[:1]), engine.url, extra={"NIGHTSHIFT_TUNING": value})
        assert driver.finish() == exits.CONFIG
        assert "NIGHTSHIFT_TUNING" in driver.log[-2]["error"]


@pytest.mark.parametrize("name", ["spec.json", "plan.json"])
@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[]", b"{}", b"null"])
def test_a_broken_document_is_a_configuration_error(tmp_path: Path, name: str, body: bytes) -> None:
    prepared = prepare(tmp_path, TEXTS[:1])
    (prepared.folder / name).write_bytes(body)

    assert run_driver(prepared)[0] == exits.CONFIG
