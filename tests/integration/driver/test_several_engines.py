"""One driver and several engines: real HTTP servers, of which some die, fail everybody, or serve something else."""

import asyncio
import contextlib
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web

from local.ports import new_port
from nightshift import exits
from tests.integration.driver.canned import CannedEngine, Outage
from tests.integration.driver.runs import DriverProcess, PreparedRun, prepare
from tests.integration.driver.test_faults import check_all_answered

pytestmark = [pytest.mark.integration, pytest.mark.gate]

TEXTS: list[str | None] = [f"text number {n}" for n in range(240)]
SERVER = """
import asyncio, itertools, sys, time
from tests.integration.driver.canned import CannedEngine

number = itertools.count()

async def slowly(_):
    await asyncio.sleep(0.2)
    mine = next(number)
    while mine >= int(open(sys.argv[2]).read() or 0):
        await asyncio.sleep(0.05)

with CannedEngine(slowly, port=int(sys.argv[1])):
    time.sleep(600)
"""


@contextlib.contextmanager
def server(port: int, most: Path) -> Iterator[subprocess.Popen[bytes]]:
    """An engine in a process of its own, which takes 0.2 s for a request, and answers as many as the file `most` says."""
    process = subprocess.Popen([sys.executable, "-c", SERVER, str(port), str(most)])
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


def prepared_run(folder: Path) -> PreparedRun:
    return prepare(folder, TEXTS, chunk_rows=20, request__rows_per_request=1, engine__max_num_seqs=2)


def logged(driver: DriverProcess, message: str) -> list[dict[str, object]]:
    return [entry for entry in driver.log if entry["message"] == message]


def test_one_of_two_engines_is_killed_and_comes_back(tmp_path: Path) -> None:
    prepared = prepared_run(tmp_path)
    first, second, most = new_port(), new_port(), tmp_path / "most"
    most.write_text("60")  # Neither ends the work: of 240 rows the two answer half.

    with server(first, most) as engine, server(second, most):
        driver = DriverProcess(prepared, f"http://127.0.0.1:{first},http://127.0.0.1:{second}")
        driver.wait_for("committed")
        engine.kill()
        lost = driver.wait_for("engine lost")
        most.write_text("150")  # Of the 180 that are left at least, the other one answers 90.
        driver.wait_for("committed")
        with server(first, most):
            driver.wait_for("engine back")
            most.write_text("240")
            code = driver.finish()

    assert code == exits.DONE
    check_all_answered(prepared, TEXTS)
    assert lost["engine"] == 0
    assert {row["attempts"] for row in prepared.rows().values()} <= {1, 2}, "what it had was sent once more"
    (done,) = logged(driver, "done")
    assert (done["rows_dead"], done["engine_losses"], done["canaries"]) == (0, 1, 0)


@pytest.mark.parametrize("after", [0, 10])
def test_an_engine_that_fails_everybody_costs_no_row_while_another_answers(tmp_path: Path, after: int) -> None:
    outage = Outage(after)
    prepared = prepared_run(tmp_path)

    async def slowly(_: list[str]) -> None:
        await asyncio.sleep(0.05)

    with CannedEngine(outage) as bad, CannedEngine(slowly) as good:
        driver = DriverProcess(prepared, f"{bad.url},{good.url}", hurried=True)
        assert driver.finish() == exits.DONE
        failed = set(bad.seen[after:])

    check_all_answered(prepared, TEXTS)
    # What it had when it began to fail, and canaries: not whatever comes.
    assert 0 < len(failed) < len(TEXTS) / 4
    assert len(set(good.seen)) >= len(TEXTS) - after


def test_an_engine_that_answers_again_is_used_again(tmp_path: Path) -> None:
    outage = Outage(0)
    prepared = prepared_run(tmp_path)

    async def ends_the_outage(_: list[str]) -> None:
        await asyncio.sleep(0.05)
        outage.over |= len(good.seen) > 40

    with CannedEngine(outage) as bad, CannedEngine(ends_the_outage) as good:
        assert DriverProcess(prepared, f"{bad.url},{good.url}", hurried=True).finish() == exits.DONE
        answered_by_both = len(good.seen) < len(TEXTS)

    check_all_answered(prepared, TEXTS)
    assert answered_by_both


def test_a_drain_waits_for_both_engines(tmp_path: Path) -> None:
    prepared = prepared_run(tmp_path)

    async def slowly(_: list[str]) -> None:
        await asyncio.sleep(1.0)

    with CannedEngine(slowly) as first, CannedEngine(slowly) as second:
        driver = DriverProcess(prepared, f"{first.url},{second.url}")
        while not (first.seen and second.seen):
            time.sleep(0.01)
        driver.terminate()
        assert driver.finish() == exits.RESUME
        sent = len(first.seen) + len(second.seen)

    (stopped,) = logged(driver, "stopped")
    assert stopped["rows_answered"] == sent


@pytest.mark.parametrize(
    ("model", "version", "said"),
    [
        ({"id": "other"}, "canned", "the engine serves ['other'], but the job asks for 'm'"),
        ({"id": "m", "root": "org/m"}, "another", "the engines differ: one serves 'm', from org/m, version canned"),
    ],
)
def test_every_engine_must_serve_the_model_in_the_same_version(
    tmp_path: Path, model: dict[str, object], version: str, said: str
) -> None:
    class Other(CannedEngine):
        async def _version(self, _: web.Request) -> web.Response:
            return web.json_response({"version": version})

    with CannedEngine() as first, Other() as second:
        second.model = model
        driver = DriverProcess(prepared_run(tmp_path), f"{first.url},{second.url}")
        assert driver.finish() == exits.CONFIG
        assert not first.seen

    (error,) = logged(driver, "cannot continue")
    assert said in str(error["error"])


def test_an_engine_that_never_comes_up_is_left_out(tmp_path: Path) -> None:
    prepared = prepared_run(tmp_path)

    with CannedEngine() as engine:
        absent = f"http://127.0.0.1:{new_port()}"
        driver = DriverProcess(prepared, f"{absent},{engine.url}", extra={"NIGHTSHIFT_ENGINE_WAIT_S": "1"})
        assert driver.finish() == exits.DONE

    check_all_answered(prepared, TEXTS)
    assert logged(driver, "engine did not become healthy")[0]["engines"] == [0]


OTHER: dict[str, object] = {"id": "m", "root": "someone/another-model"}


def test_an_engine_that_comes_back_with_another_model_ends_the_worker(tmp_path: Path) -> None:
    prepared, port = prepared_run(tmp_path), new_port()

    async def slowly(_: list[str]) -> None:
        await asyncio.sleep(0.05)

    with CannedEngine(slowly, port=port):
        driver = DriverProcess(prepared, f"http://127.0.0.1:{port}")
        driver.wait_for("committed")
    driver.wait_for("engine lost")
    with CannedEngine(port=port) as other:
        other.model = OTHER
        assert driver.finish() == exits.CONFIG
        assert other.seen == []

    (error,) = logged(driver, "cannot continue")
    for part in (f"127.0.0.1:{port} serves something else", "from org/m", "from someone/another-model", "begin another run"):
        assert part in str(error["error"])


def test_one_of_two_engines_that_comes_back_with_another_model_gets_no_row(tmp_path: Path) -> None:
    prepared, port = prepared_run(tmp_path), new_port()

    async def slowly(_: list[str]) -> None:
        await asyncio.sleep(0.05)

    with CannedEngine(slowly) as good:
        with CannedEngine(slowly, port=port):
            driver = DriverProcess(prepared, f"http://127.0.0.1:{port},{good.url}")
            driver.wait_for("committed")
        with CannedEngine(port=port) as other:
            other.model = OTHER
            assert driver.finish() == exits.DONE
            assert other.seen == []

    check_all_answered(prepared, TEXTS)
    assert {entry["engine"] for entry in logged(driver, "engine lost")} == {0}
    (done,) = logged(driver, "done")
    assert (done["rows_dead"], bool(done["engine_losses"])) == (0, True)
