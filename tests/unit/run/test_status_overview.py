"""One run's first screen: what it reads, what it counts, and what it says of what it has not read yet."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import obstore
import pytest
from obstore.store import MemoryStore, ObjectStore

from nightshift.planner.costs.prices import Prices
from nightshift.run.observed import endings
from nightshift.run.observed.heartbeats import Ended
from nightshift.run.opening import NoSuchRun
from nightshift.status import chunk_footer, dead_letters, overview, workers
from nightshift.status.overview import RunLook
from nightshift.status.workers import Attempts
from tests.chat_run import OPENED, ChatRun, a_chat_run

pytestmark = pytest.mark.unit

NOW = datetime(2026, 11, 21, 2, tzinfo=UTC)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> ChatRun:
    """A run of 75 chunks, 60 of them committed, every tenth with a dead letter."""
    run = a_chat_run(MemoryStore(), rows=750, workers=3)
    run.commit_alike(range(60))
    return run


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look reads two notes."""
    monkeypatch.setattr(overview, "FIRST_S", -1.0)
    monkeypatch.setattr(dead_letters, "NOTES_AT_ONCE", 2)


def look_at(run: ChatRun, **more: Any) -> RunLook:
    return RunLook(run.store, run.run, f"memory:///{run.run.prefix}", **more)


class TestFirstLook:
    @pytest.mark.usefixtures("hurried")
    def test_it_counts_exactly_and_says_which_reasons_it_has_not_read(self, large: ChatRun) -> None:
        found = look_at(large).look()

        assert (found.summary.done, found.committed, found.chunks) == (600, 60, 75)
        assert (found.summary.rows, found.summary.state, found.summary.dead_letters) == (750, "open", 6)
        assert (found.counted, found.dead_reasons) == ("of 2 of 6 dead letters", {"bad_input": 2})
        assert found.to_json()["partial"] is True

    @pytest.mark.usefixtures("hurried")
    def test_later_looks_read_the_rest_and_nothing_twice(self, large: ChatRun, monkeypatch: pytest.MonkeyPatch) -> None:
        paths: list[str] = []
        read = dead_letters.Note.read

        def noted(note: dead_letters.Note, store: ObjectStore) -> None:
            paths.append(note.path)
            read(note, store)

        monkeypatch.setattr(dead_letters.Note, "read", noted)
        look = look_at(large)

        counted = [look.look(fresh_s=0.0).counted for _ in range(3)]
        large.commit_alike(range(60, 62))
        last = look.look(fresh_s=0.0)

        assert counted == ["of 2 of 6 dead letters", "of 4 of 6 dead letters", "of all dead letters"]
        assert (last.counted, last.summary.done, last.dead_reasons) == ("of all dead letters", 620, {"bad_input": 7})
        assert len(paths) == len(set(paths)) == 7

    def test_no_chunk_is_read(self, large: ChatRun, monkeypatch: pytest.MonkeyPatch) -> None:
        read: list[str] = []
        monkeypatch.setattr(chunk_footer, "read_footer", lambda store, entry: read.append(entry.path))

        assert (look_at(large).look().counted, read) == ("of all dead letters", [])

    def test_a_sealed_run_is_read_from_its_manifest(self) -> None:
        run = a_chat_run(MemoryStore())
        for number in range(4):
            run.commit(number, lambda row: None if row < 3 else "a")
        run.seal(measured={"profiles": [{"rows_unused": 7, "rows_lost": 5}]})

        found = look_at(run).look()

        assert (found.summary.state, found.summary.done, found.dead_reasons) == ("sealed", 40, {"bad_input": 3})
        assert (found.rows_lost, found.rows_unused, found.counted) == (5, 2, "of all dead letters")

    def test_it_is_json(self, large: ChatRun) -> None:
        large.beat("pod-0")

        assert json.loads(json.dumps(look_at(large, prices=Prices("USD")).look().to_json()))["running"] == 1

    def test_a_run_that_is_not_there(self) -> None:
        run = a_chat_run(MemoryStore())
        store = MemoryStore()

        with pytest.raises(NoSuchRun):
            RunLook(store, run.run, "memory:///x").look()

    def test_a_failed_run_that_a_redo_has_completed_needs_nobody(self) -> None:
        run = a_chat_run(MemoryStore())
        at = "2026-11-21T03:00:00+00:00"
        endings.record(run.store, run.run, endings.Ending(endings.FAILED, at, "night", "seal", "Too many."))
        redo = a_chat_run(run.store, digest="e" * 16, opened_at=OPENED + timedelta(hours=1))
        assert [each.kind for each in look_at(run).look().summary.attention] == ["failed"]

        endings.record(run.store, redo.run, endings.Ending(endings.PUBLISHED, at, "redo"))

        found = look_at(run).look().summary
        assert (found.state, found.attention, found.other) == ("failed", (), redo.run.run_id)
        assert str(look_at(redo).look().summary.place) == "the table shows it"

    def test_before_the_plan(self) -> None:
        run = a_chat_run(MemoryStore())
        obstore.delete(run.store, run.run.plan_path)

        found = look_at(run).look()

        assert (found.summary.state, found.workers, found.chunks) == ("unplanned", (), None)


class TestSharing:
    def test_who_looks_at_once_gets_one_look(self, large: ChatRun) -> None:
        look = look_at(large)

        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: look.look(fresh_s=60.0), range(8)))

        assert all(each is found[0] for each in found)

    def test_samples_and_distributions_are_read_once(self, large: ChatRun) -> None:
        look = look_at(large)

        assert look.samples() is look.samples()
        assert look.compared() is look.compared()
        assert look.samples(rows=1) is not look.samples()
        assert look.dead_letters.page().total == 6


class TestWorkers:
    def test_each_stage(self) -> None:
        run = a_chat_run(MemoryStore())
        old = NOW - timedelta(seconds=60)
        run.beat("loads", at=NOW, start_up_s={}, age_s=30.0)
        run.beat("warms", at=NOW, start_up_s={"weights": 40.0}, age_s=50.0)
        run.beat("works", at=NOW, rows_answered=50, rows_dead=2, work_s=25.0)
        run.beat("silent", at=old)
        run.beat("done", at=old, ended=Ended.DONE)
        run.beat("gave-up", at=old, ended=Ended.GAVE_UP)

        found = {each.attempt: each for each in Attempts(run.store, run.work).look(NOW.timestamp())}

        assert {name: each.stage for name, each in found.items()} == {
            "loads": "weights",
            "warms": "warm_up",
            "works": "works",
            "silent": "silent",
            "done": "done",
            "gave-up": "gave_up",
        }
        assert [name for name, each in found.items() if each.running] == ["loads", "warms", "works"]
        assert (found["loads"].stage_s, found["warms"].stage_s, found["silent"].seen_s) == (30.0, 10.0, 60.0)
        assert (found["works"].rows, found["works"].rows_per_s) == (52, 2.0)

    def test_the_newest_heartbeat_counts_and_only_new_ones_are_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        run = a_chat_run(MemoryStore())
        for number in range(30):
            run.beat("a", number, at=NOW, rows_answered=number)
        run.beat("b", at=NOW, ended=Ended.DONE)
        monkeypatch.setattr(workers, "WHOLE_PAGES", 0)
        attempts = Attempts(run.store, run.work)
        assert [each.rows for each in attempts.look(NOW.timestamp()) if each.attempt == "a"] == [29]

        asked: list[tuple[str, Any]] = []
        listed = obstore.list

        def noted(store: Any, path: str, **more: Any) -> Any:
            asked.append((path, more.get("offset")))
            return listed(store, path, **more)

        monkeypatch.setattr(obstore, "list", noted)
        run.beat("a", 30, at=NOW, rows_answered=30)

        assert [each.rows for each in attempts.look(NOW.timestamp()) if each.attempt == "a"] == [30]
        assert asked == [
            (run.work.attempts_folder, None),
            (f"{run.work.attempts_folder}/a", run.work.mark_path("a", 29)),
        ]

    def test_a_few_heartbeats_are_one_list_and_one_read_each(self, monkeypatch: pytest.MonkeyPatch) -> None:
        run = a_chat_run(MemoryStore())
        for number in range(3):
            run.beat("a", number, at=NOW, rows_answered=number)
        run.beat("b", at=NOW)
        attempts, read = Attempts(run.store, run.work), list[str]()
        get = obstore.get

        def noted(store: Any, path: str) -> Any:
            read.append(path)
            return get(store, path)

        monkeypatch.setattr(obstore, "get", noted)

        assert {each.attempt: each.rows for each in attempts.look(NOW.timestamp())} == {"a": 2, "b": 50}
        run.beat("b", 1, at=NOW, rows_answered=60)
        assert {each.attempt: each.rows for each in attempts.look(NOW.timestamp())} == {"a": 2, "b": 60}
        assert sorted(read) == [run.work.mark_path("a", 2), run.work.mark_path("b", 0), run.work.mark_path("b", 1)]

    def test_what_is_no_heartbeat_is_passed_over(self) -> None:
        run = a_chat_run(MemoryStore())
        run.beat("a", 0, at=NOW)
        run.put(run.work.mark_path("a", 1), b"not a heartbeat")
        run.put(f"{run.work.attempts_folder}/b/note.txt", b"x")
        run.beat("c", at=NOW, attempt="another")
        attempts = Attempts(run.store, run.work)

        assert [each.attempt for each in attempts.look(NOW.timestamp())] == []

        run.beat("a", 2, at=NOW)
        assert [each.attempt for each in attempts.look(NOW.timestamp())] == ["a"]

    def test_the_cost_is_unknown_before_a_heartbeat_if_the_machine_has_no_price(self) -> None:
        run = a_chat_run(MemoryStore())
        run.commit(0)

        before = look_at(run, prices=Prices("USD")).look().to_json()["cost"]
        run.beat("pod-0")
        after = look_at(run, prices=Prices("USD")).look().to_json()["cost"]

        assert before is not None
        assert after is not None
        assert (before["total"], before["unpriced"]) == (after["total"], after["unpriced"]) == (None, ["cpu"])

    def test_the_cost_so_far_is_of_the_attempts_that_were_seen(self) -> None:
        run = a_chat_run(MemoryStore())
        run.beat("a", at=NOW)

        found = look_at(run, prices=Prices("USD", {"cpu": 3600.0})).look().to_json()

        assert found["final"] is False
        assert found["cost"]["total"] is not None
