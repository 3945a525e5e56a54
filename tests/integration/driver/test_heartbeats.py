"""What real drivers say of themselves in the run's folder: what they did, how they ended, how long they lived if killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path

import pytest

from nightshift import exits
from nightshift.planner.bills import seal_measured
from nightshift.planner.costs.bill import bill
from nightshift.planner.costs.prices import Prices
from nightshift.planner.costs.split import PARTS
from nightshift.planner.measured import look
from nightshift.planner.speeds import nearest, records_of
from nightshift.run import chunks
from nightshift.run.observed.heartbeats import Ended, Heartbeat
from nightshift.store import ObjectStorage, open_store
from tests.integration.driver.canned import CannedEngine
from tests.integration.driver.runs import TO_THE_END, DriverProcess, PreparedRun, prepare

pytestmark = pytest.mark.integration

TEXTS: list[str | None] = [f"text number {n}" for n in range(60)]
OFTEN = f"from nightshift.run.observed import heartbeats\nheartbeats.LEAST_S = 0.1\n{TO_THE_END}"
"""The driver's process, with marks that fit a life of seconds: 5 s, the shortest period of its own, fit one of minutes."""
ROWS = 8000
"""More than they can compute in these lives."""
CHUNK_ROWS = 200
LIVES_S = (4.0, 7.0, 10.0)
"""At least, from its first request."""


def marks_of(prepared: PreparedRun) -> list[Heartbeat]:
    return list(asyncio.run(look(ObjectStorage(open_store(prepared.url)), prepared.run, prepared.plan.uid)).beats)


async def slowly(_: list[str]) -> None:
    await asyncio.sleep(0.3)


class Watched:
    """An engine that answers one request after another, so that rows come steadily, and what it sees of its driver: when it
    first asked, when it was last answered, and how many rows."""

    def __init__(self) -> None:
        self.asked = self.last = 0.0
        self.answered = 0
        self._turn = asyncio.Lock()

    async def __call__(self, texts: list[str]) -> None:
        self.asked = self.asked or time.monotonic()
        async with self._turn:
            await asyncio.sleep(0.02)
        self.last, self.answered = time.monotonic(), self.answered + len(texts)

    @property
    def row_s(self) -> float:
        """Seconds of work for each row."""
        return (self.last - self.asked) / self.answered


def committed_by(prepared: PreparedRun, pod: str) -> int:
    """Rows of the ledger that the attempts of a pod computed, as its objects say."""
    parts = [part for path in prepared.work.glob("ledger/*.parquet") for part in chunks.decode(path.read_bytes())[1].parts]
    return sum(part.rows for part in parts if part.attempt.startswith(f"{pod}-"))


def marks_left(prepared: PreparedRun, pod: str) -> int:
    """How many marks the attempts of a pod have written so far."""
    return len(list(prepared.work.glob(f"attempts/{pod}-*/*.json")))


@pytest.mark.gate
def test_an_attempt_says_what_it_did_and_how_it_ended(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, TEXTS)

    with CannedEngine() as engine:
        began = time.monotonic()
        driver = DriverProcess(prepared, engine.url, extra={"NIGHTSHIFT_PROFILE": "cpu"}, program=TO_THE_END)
        assert driver.finish() == exits.DONE

    lived_s = time.monotonic() - began
    (mark,) = marks_of(prepared)
    assert (mark.ended, mark.profile, mark.role, mark.index, mark.pod) == (Ended.DONE, "cpu", "owner", 0, "pod")
    assert (mark.rows_answered, mark.rows_dead, mark.not_saved) == (60, 0, 0)
    assert mark.input_tokens == sum(len(text or "") for text in TEXTS)
    # The kernel says in ticks when a process began.
    assert lived_s / 2 < mark.age_s <= lived_s + 2 / os.sysconf("SC_CLK_TCK")
    assert 0 < mark.work_s < mark.age_s - mark.start_up_s["weights"]
    assert 0 < mark.start_up_s["warm_up"] <= mark.age_s - mark.start_up_s["weights"]


def test_an_attempt_that_is_told_to_end_says_so_and_its_helper_that_it_is_done(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, TEXTS * 5, workers=2)

    with CannedEngine(slowly) as engine:
        first = DriverProcess(prepared, engine.url, program=TO_THE_END)
        first.wait_for("committed")
        first.terminate()
        assert first.finish() == exits.RESUME
        extra = {"NIGHTSHIFT_ROLE": "helper", "NIGHTSHIFT_MODEL_REVISION": "r1", "POD_NAME": "pod-2"}
        helper = DriverProcess(prepared, engine.url, 1, extra=extra, program=TO_THE_END)
        assert helper.finish() == exits.DONE

    other, one = sorted(marks_of(prepared), key=lambda mark: mark.role)
    assert (one.ended, one.role, one.index) == (Ended.DRAINED, "owner", 0)
    assert (other.ended, other.role, other.index) == (Ended.DONE, "helper", 1)


def test_an_attempt_whose_engine_is_another_says_that_it_cannot_continue(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, TEXTS)

    with CannedEngine() as engine:
        engine.model = {"id": "another", "root": "org/m"}
        assert DriverProcess(prepared, engine.url, program=TO_THE_END).finish() == exits.CONFIG

    (mark,) = marks_of(prepared)
    assert (mark.ended, mark.rows_answered) == (Ended.CANNOT_CONTINUE, 0)
    assert set(mark.start_up_s) == {"weights"}


def test_an_attempt_that_waits_for_its_engine_has_left_its_mark(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, TEXTS)

    with CannedEngine() as engine:
        engine.healthy = False
        driver = DriverProcess(prepared, engine.url)
        try:
            deadline = time.monotonic() + 60
            while not (found := marks_of(prepared)):
                assert time.monotonic() < deadline
                time.sleep(0.1)
        finally:
            driver.process.kill()
            driver.finish()

    assert (found[0].ended, found[0].start_up_s) == (None, {})


def test_another_host_of_a_slice_leaves_none(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, TEXTS)

    with CannedEngine() as engine:
        host = DriverProcess(prepared, engine.url, 1, extra={"NIGHTSHIFT_SHARD": "0"})
        host.wait_for("standing by")
        host.terminate()
        assert host.finish() == exits.RESUME

    assert marks_of(prepared) == []


def test_what_kills_cost_is_known_to_within_5_percent(tmp_path: Path) -> None:
    """Three workers are killed with -9, each at its time; a fourth attempt does the rest. The truth is counted from outside: by
    their engines, by the clock of the test, and in the ledger's objects."""
    prepared = prepare(tmp_path, [f"text number {n}" for n in range(ROWS)], workers=3, chunk_rows=CHUNK_ROWS)
    watched = [Watched() for _ in LIVES_S]
    answered = 0
    lived_s, useful_s, drivers = [], 0.0, []

    with contextlib.ExitStack() as engines:
        for index, engine in enumerate([engines.enter_context(CannedEngine(each)) for each in watched]):
            extra = {"NIGHTSHIFT_PROFILE": "cpu", "POD_NAME": f"killed{index}"}
            drivers.append((time.monotonic(), DriverProcess(prepared, engine.url, index, extra=extra, program=OFTEN)))
        for index, (life_s, (began, driver)) in enumerate(zip(LIVES_S, drivers, strict=True)):
            while not watched[index].answered or time.monotonic() < watched[index].asked + life_s:
                time.sleep(0.02)
            # A slow one first does something of use, and none is killed while it stands still: its last mark would be old.
            while committed_by(prepared, f"killed{index}") < 2 * CHUNK_ROWS:
                time.sleep(0.1)
            before = marks_left(prepared, f"killed{index}")
            while marks_left(prepared, f"killed{index}") == before:
                time.sleep(0.005)
            driver.process.kill()
            lived_s.append(time.monotonic() - began)
            useful_s += watched[index].row_s * committed_by(prepared, f"killed{index}")
            answered += watched[index].answered
        assert {driver.finish() for _, driver in drivers} == {-9}
    with CannedEngine() as engine:
        extra = {"NIGHTSHIFT_PROFILE": "cpu", "NIGHTSHIFT_MODEL_REVISION": "r1", "POD_NAME": "last"}
        last_driver = DriverProcess(prepared, engine.url, "", extra=extra, program=TO_THE_END)
        assert last_driver.finish() == exits.DONE
        answered_to_the_last = len(engine.seen)

    store = open_store(prepared.url)
    killed = [mark for mark in marks_of(prepared) if mark.ended is None]
    assert len(killed) == 3
    manifest = seal_measured(store, prepared.run, prepared.spec, prepared.plan)
    assert manifest.measured is not None
    (profile,) = manifest.measured["profiles"]
    (last,) = [mark for mark in marks_of(prepared) if mark.ended is Ended.DONE]
    assert profile["ended"] == {"done": 1, "killed": 3}
    assert profile["alive_s"] - last.age_s == pytest.approx(sum(lived_s), rel=0.05)
    assert 0.1 < 1 - useful_s / sum(lived_s) < 0.9
    assert profile["machine_s"]["lost"] == pytest.approx(sum(lived_s) - useful_s, rel=0.05)
    # Its parts add up to paid machine time x price.
    found = bill(manifest.measured, Prices("EUR", {"cpu": 0.36}))
    assert found is not None
    costs = found.rungs[0].cost(found.rungs[0].parts)
    assert costs is not None
    assert costs["paid"] == sum(costs[part] for part in PARTS)
    # A half may be rounded either way.
    assert costs["paid"] == pytest.approx(profile["machine_s"]["paid"] * 0.36 / 3600 * 10**6, abs=1)
    assert costs["paid"] / 100 == pytest.approx(sum(lived_s) + last.age_s, rel=0.05)
    # The last answers of each came after its last mark, or were on their way.
    computed = profile["rows"] - last.rows_answered
    assert 0.8 * answered <= computed <= answered
    assert last.rows_answered == answered_to_the_last
    assert profile["rows_unused"] == profile["rows"] - ROWS
    (record,) = records_of(prepared.run, prepared.spec, manifest)
    assert (record.preemptions, record.workers) == (0, 4), "no cluster says that it took them"
    assert nearest(store, record.workload) == [record]
