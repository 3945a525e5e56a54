"""What the seal makes of marks: sums by profile, what is missing, and that no mark stops a seal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import obstore
import pytest
from obstore.store import MemoryStore

from nightshift.planner import measured
from nightshift.planner.bills import seal_measured
from nightshift.planner.costs.bill import Machine
from nightshift.planner.measured import Seen, look, measure
from nightshift.run.chunks import Part
from nightshift.run.ledger import Ledger
from nightshift.run.manifest import RunManifest, load_manifest
from nightshift.run.observed.heartbeats import Ended, Heartbeat
from nightshift.run.observed.pod_startup import Starts
from nightshift.store import ObjectStorage, StoreUnavailable
from tests.builders import PLAN_UID, RUN, WORK, a_chunk, a_plan, a_spec, with_rows

pytestmark = pytest.mark.unit

PLAN = a_plan(10, 4, 2)
BORN, AT = "2026-11-20T01:00:00+00:00", "2026-11-20T02:00:00+00:00"


def a_mark(attempt: str, **changes: Any) -> Heartbeat:
    mark = Heartbeat(attempt, "gpu-l4-spot", "owner", 0, "node", f"pod-{attempt}", 8.0, BORN, AT, 100.0, ended=Ended.DONE)
    return replace(mark, **changes)


def a_part(attempt: str, rows: int, tokens: int = 0) -> Part:
    return Part(attempt, "node", "0", rows, prompt_tokens=tokens, output_tokens=tokens // 10)


def seen(*marks: Heartbeat, starts: Starts | None = None) -> Seen:
    return Seen(marks, frozenset(mark.attempt for mark in marks), starts or Starts())


def put(store: MemoryStore, mark: Heartbeat, number: int = 0) -> None:
    obstore.put(store, WORK.mark_path(mark.attempt, number), mark.to_bytes())


class TestSums:
    def test_of_two_attempts_of_a_worker_the_second_of_which_finished(self) -> None:
        killed = a_mark(
            "a",
            ended=None,
            age_s=1000.0,
            next_s=20.0,
            rows_answered=70,
            rows_dead=1,
            rows_lost=8,
            input_tokens=700,
            output_tokens=70,
            work_s=600.0,
            engine_wait_s=30.0,
            start_up_s={"weights": 300.0, "warm_up": 5.0},
        )
        second = a_mark("b", rows_answered=40, input_tokens=400, output_tokens=40, work_s=60.0, start_up_s={"weights": 100.0})
        parts = [a_part("a", 50, 500), a_part("b", 40, 400)]

        one = {"node": 5.0, "image": 20.0, "weights": 10.0, "engine_weights": 4.0, "engine_compile": 3.0}
        starts = Starts({"pod-a": one, "pod-b": {"image": 20.0, "weights": 20.0, "engine_weights": 6.0}})

        assert measure(seen(killed, second, starts=starts), parts, lambda _: Machine("g2-standard-8-spot", 1.0)) == {
            "attempts": 2,
            "not_seen": 0,
            "marks": 0,
            "profiles": [
                {
                    "profile": "gpu-l4-spot",
                    "workers": 1,
                    "attempts": 2,
                    "ended": {"done": 1, "killed": 1},
                    "preempted": 0,
                    "rows": 111,
                    "rows_answered": 110,
                    "rows_unused": 21,
                    "rows_lost": 8,
                    "input_tokens": 1100,
                    "output_tokens": 110,
                    "alive_s": 1000.0 + 10.0 + 100.0,
                    "before_s": 30.0 + 40.0,
                    "work_s": 660.0,
                    "engine_wait_s": 30.0,
                    "cpus": 8.0,
                    "start_up_s": {"node": 5.0, "image": 20.0, "weights": 215.0, "warm_up": 5.0},
                    "start_up_most_s": {"node": 5.0, "image": 20.0, "weights": 310.0, "warm_up": 5.0},
                    "engine_start_s": {"weights": 5.0, "compile": 3.0},
                    "machine": "g2-standard-8-spot",
                    "machines": 1.0,
                    # The first worked for 570 s and the 10 s after its newest mark, for 72.2 rows; 50 of them count, and others
                    # had committed 8. What is left of its 1,040 s is lost. The second was all start-up.
                    "machine_s": {
                        "paid": 1040.0 + 140.0,
                        "useful": 401.409,
                        "start_up": 140.0,
                        "idle": 0.0,
                        "twice": 64.225,
                        "lost": 574.366,
                    },
                    "starts_assumed": 0,
                }
            ],
        }

    def test_what_the_ledger_has_of_a_killed_attempt_counts_if_it_is_more_than_its_last_mark_says(self) -> None:
        (profile,) = measure(seen(a_mark("a", ended=None, rows_answered=3)), [a_part("a", 10, 100)])["profiles"]

        assert (profile["rows"], profile["rows_unused"]) == (10, 0)
        assert (profile["input_tokens"], profile["output_tokens"]) == (100, 10)

    def test_rungs_are_apart_and_in_order(self) -> None:
        marks = [a_mark("a"), a_mark("b", profile="gpu-l4"), a_mark("c", profile="")]

        assert [each["profile"] for each in measure(seen(*marks), [])["profiles"]] == ["", "gpu-l4", "gpu-l4-spot"]

    def test_workers_are_those_that_computed_anything(self) -> None:
        marks = [
            a_mark("a", rows_answered=1),
            a_mark("b", rows_answered=1),  # again worker 0
            a_mark("c", rows_answered=1, index=1),
            a_mark("d", rows_answered=1, role="helper"),
            a_mark("e", index=2),
            a_mark("f", rows_answered=1, index=None),
            a_mark("g", rows_answered=1, index=None),
        ]

        assert measure(seen(*marks), [])["profiles"][0]["workers"] == 5

    def test_an_attempt_of_the_ledger_without_a_mark_is_not_seen(self) -> None:
        found = measure(Seen((a_mark("a"),), frozenset({"a", "torn"})), [a_part("a", 1), a_part("old", 9)])

        assert (found["attempts"], found["not_seen"]) == (3, 2)

    @pytest.mark.parametrize("ended", [*Ended, None])
    def test_preempted_is_who_lost_its_machine_before_it_was_done(self, ended: Ended | None) -> None:
        starts = Starts(taken=frozenset({"pod-a", "pod-of-no-attempt"}))
        (profile,) = measure(seen(a_mark("a", ended=ended), starts=starts), [])["profiles"]

        assert profile["preempted"] == (ended is not Ended.DONE)

    @pytest.mark.parametrize("ended", [*Ended, None])
    def test_an_attempt_whose_machine_nobody_took_is_not(self, ended: Ended | None) -> None:
        """A pause, a smaller JobSet and falling back drain pods, too, and a person may delete one."""
        (profile,) = measure(seen(a_mark("a", ended=ended), starts=Starts({"pod-a": {"node": 1.0}})), [])["profiles"]

        assert profile["preempted"] == 0

    def test_rows_that_no_engine_answered_are_apart(self) -> None:
        """NULLs and texts that are too long cost an engine nothing."""
        marks = [a_mark("a", rows_answered=5, rows_dead=95), a_mark("b", ended=None, rows_answered=1, rows_dead=20)]
        (profile,) = measure(seen(*marks), [a_part("a", 100), a_part("b", 50)])["profiles"]

        assert (profile["rows"], profile["rows_answered"]) == (150, 5 + 30)

    @pytest.mark.parametrize("ended", [*Ended, None])
    def test_only_the_start_up_of_an_attempt_that_is_done_is_not_lost(self, ended: Ended | None) -> None:
        mark = a_mark("a", ended=ended, start_up_s={"weights": 40.0})
        machine_s = measure(seen(mark), [])["profiles"][0]["machine_s"]

        done = ended is Ended.DONE
        assert (machine_s["start_up"], machine_s["idle"], machine_s["lost"]) == (
            (40.0, 60.0, 0.0) if done else (0.0, 0.0, 100.0)
        )

    def test_nothing_was_seen(self) -> None:
        assert measure(Seen(), []) == {"attempts": 0, "not_seen": 0, "marks": 0, "profiles": []}

    def test_how_long_the_weights_took_is_not_known_if_the_cluster_does_not_say_when_the_driver_was_born(self) -> None:
        mark = a_mark("a", start_up_s={"weights": 0.1, "warm_up": 5.0})

        for starts in (Starts(), Starts({"pod-a": {"node": 3.0}})):
            (profile,) = measure(seen(mark, starts=starts), [])["profiles"]
            assert "weights" not in profile["start_up_s"]
            assert profile["start_up_s"]["warm_up"] == 5.0

    def test_what_the_cluster_saw_of_a_start_is_added(self) -> None:
        """The weights were loaded for 90 s before the driver was born, and for 2 s more."""
        starts = Starts({"pod-a": {"queue": 5.0, "node": 60.0, "image": 30.0, "weights": 90.0}})
        mark = a_mark("a", start_up_s={"weights": 2.0, "warm_up": 1.0})

        (profile,) = measure(seen(mark, starts=starts), [])["profiles"]

        assert profile["start_up_s"] == {"queue": 5.0, "node": 60.0, "image": 30.0, "weights": 92.0, "warm_up": 1.0}


class TestLooking:
    async def test_the_newest_mark_of_each_attempt_counts(self) -> None:
        store = MemoryStore()
        for number in range(12):
            put(store, a_mark("a", rows_answered=number), number)
        put(store, a_mark("b"))

        found = await look(ObjectStorage(store), RUN, PLAN_UID)

        assert [(mark.attempt, mark.rows_answered) for mark in found.beats] == [("a", 11), ("b", 0)]

    async def test_what_is_no_mark_is_not_seen(self) -> None:
        store = MemoryStore()
        put(store, a_mark("a"))
        obstore.put(store, WORK.mark_path("torn", 0), b"{")
        obstore.put(store, WORK.mark_path("liar", 0), a_mark("a").to_bytes())
        obstore.put(store, f"{WORK.attempts_folder}/a/notes.txt", b"of somebody else")

        found = await look(ObjectStorage(store), RUN, PLAN_UID)

        assert [mark.attempt for mark in found.beats] == ["a"]
        assert found.attempts == {"a", "torn", "liar"}

    async def test_a_mark_that_is_too_large_is_not_seen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        store = MemoryStore()
        put(store, a_mark("a"))
        put(store, a_mark("long", node="n" * (64 << 10)))
        obstore.put(store, WORK.mark_path("huge", 0), b" " * (measured.BYTES_MOST + 1))
        real = Heartbeat.from_bytes
        monkeypatch.setattr(
            Heartbeat, "from_bytes", lambda body: real(body) if len(body) < 1 << 20 else pytest.fail("it was read")
        )

        found = await look(ObjectStorage(store, measured.BYTES_MOST), RUN, PLAN_UID)

        assert [mark.attempt for mark in found.beats] == ["a"]
        assert found.attempts == {"a", "long", "huge"}

    async def test_only_so_many_attempts_are_remembered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(measured, "ATTEMPTS_MOST", 2)
        store = MemoryStore()
        for name in "abcd":
            for number in range(3):
                put(store, a_mark(name, rows_answered=number), number)

        found = await look(ObjectStorage(store), RUN, PLAN_UID)

        assert [(mark.attempt, mark.rows_answered) for mark in found.beats] == [("a", 2), ("b", 2)]

    @pytest.mark.parametrize("fails", ["list", "read"])
    async def test_a_store_that_is_away_stops_nothing(self, fails: str) -> None:
        store = MemoryStore()
        put(store, a_mark("a"))
        real = ObjectStorage(store)

        class Broken:
            create = real.create

            async def read(self, path: str) -> bytes | None:
                if fails == "read":
                    raise StoreUnavailable(path)
                return await real.read(path)

            async def list(self, prefix: str, after: str = "") -> AsyncIterator[str]:
                if fails == "list":
                    raise StoreUnavailable(prefix)
                async for path in real.list(prefix, after):
                    yield path

        found = await look(Broken(), RUN, PLAN_UID)

        assert found.beats == ()
        assert found.attempts == (frozenset() if fails == "list" else {"a"})

    async def test_a_seal_does_not_wait_for_marks_for_ever(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("nightshift.planner.measured.PATIENCE_S", 0.05)
        store = MemoryStore()
        put(store, a_mark("a"))
        real = ObjectStorage(store)

        class Slow:
            create, list = real.create, real.list

            async def read(self, path: str) -> bytes | None:
                await asyncio.sleep(3600)
                return None

        assert await look(Slow(), RUN, PLAN_UID) == Seen((), frozenset({"a"}), written=1)

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"[]",
            b'{"version": 2, "pods": {}}',
            b'{"version": 1, "pods": []}',
            b'{"version": 1, "pods": {"pod-a": 3}}',
            b"[" * 100_000,
            b'{"version": 1, "pods": {"pod-a": {"node": 1%s}}}' % (b"0" * 400),
            b'{"version": 1, "pods": {}, "taken": {"pod-a": 1}}',
            b'{"version": 1, "pods": {}, "taken": [["pod-a"], 1, null]}',
        ],
    )
    async def test_a_start_that_cannot_be_read_says_nothing(self, body: bytes) -> None:
        store = MemoryStore()
        obstore.put(store, RUN.starts_path("night"), body)
        put(store, a_mark("a"))

        found = await look(ObjectStorage(store), RUN, PLAN_UID)

        assert found.starts.stages(found.beats[0]) == {}
        assert found.starts.taken == frozenset()

    async def test_starts_of_all_jobsets_are_read(self) -> None:
        store = MemoryStore()
        obstore.put(store, RUN.starts_path("night"), Starts({"p": {"node": 1.0, "flight": 2.0, "image": -1.0}}).to_bytes())
        obstore.put(store, RUN.starts_path("night-2"), Starts({"q": {"queue": 3.0}}, frozenset({"q"})).to_bytes())
        obstore.put(store, RUN.starts_path("night-3"), Starts(taken=frozenset({"r"})).to_bytes())

        starts = (await look(ObjectStorage(store), RUN, PLAN_UID)).starts

        assert starts == Starts({"p": {"node": 1.0}, "q": {"queue": 3.0}}, frozenset({"q", "r"}))


class TestSeal:
    @pytest.fixture
    async def store(self) -> MemoryStore:
        store = MemoryStore()
        for chunk in range(PLAN.chunk_count):
            await Ledger(ObjectStorage(store), RUN, PLAN).commit(chunk, a_chunk(RUN, PLAN, chunk))
        return store

    def seal(self, store: MemoryStore) -> RunManifest:
        """As the task does."""
        return seal_measured(store, RUN, a_spec(), with_rows(store, PLAN))

    def test_a_run_without_marks_is_sealed(self, store: MemoryStore) -> None:
        manifest = self.seal(store)

        assert manifest.measured == {"attempts": 1, "not_seen": 1, "marks": 0, "profiles": []}

    def test_what_was_measured_is_in_the_manifest(self, store: MemoryStore) -> None:
        (attempt,) = self.seal(store).attempts
        obstore.delete(store, RUN.manifest_path)
        put(store, a_mark(attempt, profile="cpu", rows_answered=14, work_s=7.0))

        manifest = self.seal(store)

        assert manifest.measured is not None
        (profile,) = manifest.measured["profiles"]
        assert (profile["profile"], profile["rows"], profile["rows_unused"], profile["work_s"]) == ("cpu", 14, 4, 7.0)
        assert manifest == load_manifest(store, RUN)
