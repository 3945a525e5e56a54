"""One run's first screen: what it reads, what it counts, and what it says of what it has not read yet."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import obstore
import pytest
from obstore.store import MemoryStore

from nightshift.planner.costs.prices import Prices
from nightshift.run.observed import endings
from nightshift.run.observed.heartbeats import Ended
from nightshift.run.opening import NoSuchRun
from nightshift.status import chunk_footer, overview, survey, workers
from nightshift.status.overview import RunLook
from nightshift.status.workers import Attempts
from tests.chat_run import OPENED, ChatRun, a_chat_run

pytestmark = pytest.mark.unit

NOW = datetime(2026, 11, 21, 2, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _every_look_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "FRESH_S", 0.0)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> ChatRun:
    """A run of 75 chunks, 60 of them committed, every tenth with a dead letter."""
    monkeypatch.setattr(survey, "READ_AT_ONCE", 4)
    run = a_chat_run(MemoryStore(), rows=750, workers=3)
    run.commit_alike(range(60))
    return run


def look_at(run: ChatRun, **more: Any) -> RunLook:
    return RunLook(run.store, run.run, f"memory:///{run.run.prefix}", **more)


def footers_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    paths: list[str] = []
    read: Callable[..., Any] = chunk_footer.read_footer

    def noted(store: Any, entry: Any) -> Any:
        paths.append(entry.path)
        return read(store, entry)

    monkeypatch.setattr(survey, "read_footer", noted)
    return paths


class TestFirstLook:
    def test_it_counts_rows_exactly_and_the_rest_from_the_chunks_that_it_read(self, large: ChatRun) -> None:
        found = look_at(large).look(within_s=0)

        assert (found.status.rows_done, found.status.chunks_committed, found.status.chunks_left) == (600, 60, 15)
        assert (found.summary.done, found.summary.rows, found.summary.state) == (600, 750, "open")
        assert found.counted == "from 4 of 60 committed chunks"
        assert found.to_json()["partial"] is True
        # The notes are all there: a dead letter in every tenth chunk.
        assert (found.summary.dead_letters, found.status.dead_letters < 6) == (6, True)

    def test_what_it_reads_is_from_all_over_the_run(self, large: ChatRun, monkeypatch: pytest.MonkeyPatch) -> None:
        paths = footers_read(monkeypatch)

        look_at(large).look(within_s=0)

        numbers = sorted(large.work.parse_chunk(path) or 0 for path in paths)
        assert (len(numbers), numbers[0], numbers[-1]) == (4, 0, 45)

    def test_later_looks_read_the_rest_and_nothing_twice(self, large: ChatRun, monkeypatch: pytest.MonkeyPatch) -> None:
        paths, look = footers_read(monkeypatch), look_at(large)

        counted = [look.look(within_s=0).counted for _ in range(15)]
        large.commit_alike(range(60, 62))
        last = look.look(within_s=0)

        assert counted[1] == "from 8 of 60 committed chunks"
        assert (counted[-1], last.counted) == ("from all committed chunks", "from all committed chunks")
        assert (last.status.rows_done, last.status.dead_letters) == (620, 7)
        assert len(paths) == len(set(paths)) == 62

    def test_all_at_once_if_there_is_time(self, large: ChatRun) -> None:
        assert look_at(large).look(within_s=60).counted == "from all committed chunks"

    def test_the_rate_is_known_from_chunks_that_were_not_read(self, large: ChatRun) -> None:
        partly, wholly = look_at(large).look(within_s=0).status, look_at(large).look(within_s=60).status

        assert partly.rate is not None
        assert wholly.rate is not None
        assert partly.last_commit == wholly.last_commit

    def test_a_sealed_run_is_read_from_its_manifest(self, monkeypatch: pytest.MonkeyPatch) -> None:
        run = a_chat_run(MemoryStore())
        for number in range(4):
            run.commit(number, lambda row: None if row < 3 else "a")
        run.seal(measured={"profiles": [{"rows_unused": 7, "rows_lost": 5}]})
        paths = footers_read(monkeypatch)

        found = look_at(run).look(within_s=0)

        assert paths == []
        assert (found.summary.state, found.status.rows_done, found.status.dead_reasons) == ("sealed", 40, {"bad_input": 3})
        assert (found.status.waste_lost_rows, found.status.waste_partial_rows) == (5, 2)
        assert found.counted == "from all committed chunks"

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

        assert (found.summary.state, found.workers, found.status.planned) == ("unplanned", (), False)


class TestSharing:
    def test_who_looks_at_once_gets_one_look(self, large: ChatRun, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(overview, "FRESH_S", 60.0)
        paths, look = footers_read(monkeypatch), look_at(large)

        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: look.look(within_s=0), range(8)))

        assert all(each is found[0] for each in found)
        assert len(paths) == 4

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
        assert (found["works"].rows, found["works"].dead_letters, found["works"].rows_per_s) == (52, 2, 2.0)

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

        before = look_at(run, prices=Prices("USD")).look().cost
        run.beat("pod-0")
        after = look_at(run, prices=Prices("USD")).look().cost

        assert before is not None
        assert after is not None
        assert (before["total"], before["unpriced"]) == (after["total"], after["unpriced"]) == (None, ["cpu"])

    def test_the_cost_so_far_is_of_the_attempts_that_were_seen(self) -> None:
        run = a_chat_run(MemoryStore())
        run.beat("a", at=NOW)

        found = look_at(run, prices=Prices("USD", {"cpu": 3600.0})).look()

        assert found.final is False
        assert found.cost is not None
        assert found.cost["total"] is not None
