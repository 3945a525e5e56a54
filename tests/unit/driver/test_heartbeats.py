"""Marks of attempts: how often one is written, what it says, and that a store that is away neither delays nor fails work."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore

from nightshift.driver.heartbeats import LAST_S, Heartbeats
from nightshift.driver.stats import Stats
from nightshift.planner.measured import look
from nightshift.run.observed.heartbeats import Ended, Heartbeat, NotAHeartbeat, ended_at_age_s, period_s
from nightshift.store import ObjectStorage, StoreUnavailable
from tests.builders import PLAN_UID, RUN, WORK
from tests.simulation.virtual import VirtualLoop
from tests.unit import stream_bench

pytestmark = pytest.mark.unit

PLUGINS = Path(__file__).resolve().parents[3] / "plugins"
BIRTH = Heartbeat("pod-1a2b3c4d", "gpu-l4-spot", "owner", 3, "spot-7", "pod", 8.0, "", "", age_s=2.0)
MARK = Heartbeat("a", "cpu", "owner", 0, "n", "p", 2.0, "2026-11-20T01:00:00+00:00", "2026-11-20T01:01:00+00:00", 60.0)


def marks_until(age_s: float) -> int:
    """How many marks an attempt of this age has left, its last one included."""
    age, count = 0.0, 0
    while age < age_s:
        age, count = age + period_s(age), count + 1
    return count + 1


@pytest.mark.parametrize("age_s", [0.0, 10.0, 249.0, 250.0, 1000.0, 3000.0, 3001.0, 86_400.0])
def test_the_end_of_a_killed_attempt_is_known_to_within_2_percent_of_its_age_or_5_s(age_s: float) -> None:
    assert period_s(age_s) <= max(5.0, 0.02 * age_s)
    assert 5.0 <= period_s(age_s) <= 60.0


def test_what_marks_of_100_workers_cost_in_3_h_is_as_the_docstring_says() -> None:
    assert marks_until(3 * 3600) == 307
    assert len(MARK.to_bytes()) < 600


def test_a_killed_attempt_lived_for_half_a_period_after_its_mark_on_average() -> None:
    assert ended_at_age_s(replace(MARK, age_s=1000.0, next_s=20.0)) == 1010.0
    assert ended_at_age_s(replace(MARK, age_s=1000.0, ended=Ended.DRAINED)) == 1000.0


@pytest.mark.parametrize("mark", [MARK, replace(MARK, index=None, ended=Ended.DONE, start_up_s={"weights": 31.5}, rows_dead=2)])
def test_a_mark_survives_json(mark: Heartbeat) -> None:
    assert Heartbeat.from_bytes(mark.to_bytes()) == mark


def test_what_a_later_release_adds_is_passed_over() -> None:
    assert Heartbeat.from_bytes(json.dumps({**json.loads(MARK.to_bytes()), "watts": 300}).encode()) == MARK


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": 2}, "has version 2 of its format"),
        ({"age_s": float("nan")}, "age_s is not a number"),
        ({"age_s": -1}, "age_s is not a number"),
        ({"age_s": 1e308}, "age_s is not a number"),
        ({"rows_lost": 10**400}, "rows_lost is not a count"),
        ({"rows_answered": 1.5}, "rows_answered is not a count"),
        ({"rows_lost": True}, "rows_lost is not a count"),
        ({"profile": None}, "profile is not a text"),
        ({"index": "0"}, "index is not a count"),
        ({"ended": "well"}, "ended is 'well'"),
        ({"ended": []}, r"ended is \[\]"),
        ({"start_up_s": {"weights": "long"}}, "start_up_s"),
        ({"start_up_s": 3}, "start_up_s"),
    ],
)
def test_anything_else_is_not_a_mark(change: dict[str, Any], why: str) -> None:
    with pytest.raises(NotAHeartbeat, match=why):
        Heartbeat.from_bytes(json.dumps({**json.loads(MARK.to_bytes()), **change}).encode())


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"version": 1}', b"\xff", b"[" * 100_000])
def test_a_torn_object_is_not_a_mark(body: bytes) -> None:
    with pytest.raises(NotAHeartbeat):
        Heartbeat.from_bytes(body)


class Away:
    """A store that does not answer: it refuses at once, or hangs."""

    def __init__(self, *, hangs: bool = False) -> None:
        self.hangs = hangs
        self.asked = 0

    async def create(self, path: str, body: bytes) -> bool:
        self.asked += 1
        if self.hangs:
            await asyncio.sleep(3600)
        raise StoreUnavailable(path)

    async def read(self, path: str) -> bytes | None:
        raise AssertionError(path)

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[str]:
        raise AssertionError(prefix)
        yield ""


class Kept:
    """A store that answers at once."""

    def __init__(self) -> None:
        self.bodies: dict[str, bytes] = {}

    async def create(self, path: str, body: bytes) -> bool:
        return self.bodies.setdefault(path, body) is body

    async def read(self, path: str) -> bytes | None:
        return self.bodies.get(path)

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[str]:
        raise AssertionError(prefix)
        yield ""


LIVED_S = 0.02


async def a_life(marks: Heartbeats, stats: Stats) -> None:
    """The engine answers, one request is answered, another attempt was first with its chunk."""
    async with marks.kept(lambda _: Ended.DONE):
        await asyncio.sleep(LIVED_S)
        marks.engine_answers()
        now = asyncio.get_running_loop().time()
        stats.times.sent(now + 1)
        stats.times.answered(now + 3)
        stats.times.answered(now + 11)
        stats.rows_answered, stats.rows_lost, stats.prompt_tokens, stats.output_tokens = 40, 8, 900, 300


def test_the_last_mark_says_how_the_attempt_ended_and_what_it_did() -> None:
    store, stats = Kept(), Stats()

    async def living(_: VirtualLoop) -> None:
        await a_life(Heartbeats(store, WORK, BIRTH, stats, now=lambda: 1_000_000.0), stats)

    stream_bench.run(living)

    assert list(store.bodies) == [WORK.mark_path(BIRTH.attempt, number) for number in (0, 1)]
    born, last = map(Heartbeat.from_bytes, store.bodies.values())
    assert (born.ended, born.rows_answered, born.start_up_s, born.next_s) == (None, 0, {}, 5.0)
    assert last.next_s == 0.0
    assert (last.ended, last.profile, last.index, last.node, last.cpus) == (Ended.DONE, "gpu-l4-spot", 3, "spot-7", 8.0)
    assert (last.rows_answered, last.rows_lost, last.input_tokens, last.output_tokens) == (40, 8, 900, 300)
    assert last.work_s == 10.0
    assert last.start_up_s["weights"] == pytest.approx(2.02), "the process was 2 s old when it said so first"
    assert last.start_up_s["warm_up"] == pytest.approx(1.0), "to the first request: the rest is work"
    assert last.at == "1970-01-12T13:46:40.000+00:00"
    assert last.born_at < last.at


async def test_an_attempt_that_fails_says_so_and_fails() -> None:
    store = ObjectStorage(MemoryStore())

    with pytest.raises(KeyError):
        async with Heartbeats(store, WORK, BIRTH, Stats()).kept(lambda error: Ended.FAILED if error else Ended.DONE):
            raise KeyError

    (mark,) = (await look(store, RUN, PLAN_UID)).beats
    assert mark.ended is Ended.FAILED


async def test_a_store_that_is_away_does_not_fail_the_work() -> None:
    store = Away()

    await a_life(Heartbeats(store, WORK, BIRTH, stats := Stats()), stats)

    assert store.asked == 2, "no mark is tried again"


def test_a_store_that_hangs_holds_up_the_end_for_a_moment_at_most() -> None:
    async def living(loop: VirtualLoop) -> None:
        await a_life(Heartbeats(Away(hangs=True), WORK, BIRTH, stats := Stats()), stats)

        assert loop.time() == pytest.approx(LIVED_S + LAST_S)

    stream_bench.run(living)


async def test_what_was_not_saved_is_counted_in_the_next_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightshift.run.observed.heartbeats.LEAST_S", 0.01)
    store = ObjectStorage(MemoryStore())
    away = Away()

    back = asyncio.Event()

    class Passing:
        """Away for the first two marks."""

        async def create(self, path: str, body: bytes) -> bool:
            if away.asked < 2:
                return await away.create(path, body)
            back.set()
            return await store.create(path, body)

        read, list = away.read, away.list

    async with Heartbeats(Passing(), WORK, replace(BIRTH, age_s=0.0), Stats()).kept(lambda _: Ended.DONE):
        await back.wait()

    (mark,) = (await look(store, RUN, PLAN_UID)).beats
    assert mark.not_saved == 2


def test_a_process_is_as_old_as_the_kernel_says() -> None:
    code = (
        "import time; began = time.monotonic(); time.sleep(0.2)\n"
        "from nightshift.driver.heartbeats import process_age_s; print(process_age_s(), time.monotonic() - began)"
    )
    began = time.monotonic()

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(PLUGINS)}
    )

    age, since_its_first_line = map(float, done.stdout.split())
    assert since_its_first_line - 0.02 <= age <= time.monotonic() - began
