"""Counts and rate of a run, from when its chunks were committed."""

from __future__ import annotations

import time

import obstore
import pytest
from obstore.store import MemoryStore

from nightshift.run.observed.progress import Progress, measured, progress
from tests.builders import WORK

pytestmark = pytest.mark.unit


def rate(now: float, *commits: tuple[float, int]) -> float | None:
    """commits: time and rows of each."""
    return measured(((rows, at) for at, rows in commits), now).rate


class TestRate:
    def test_it_needs_two_chunks(self) -> None:
        assert rate(0.0) is None
        assert rate(110.0, (100.0, 50)) is None

    def test_it_is_over_the_last_minutes_in_whatever_order_they_are_listed(self) -> None:
        commits = [(10.0 * number, 1000 if number < 50 else 10) for number in range(100)]

        assert rate(990.0, *commits) == rate(990.0, *reversed(commits)) == 1
        assert rate(0.0, *commits) == 1, "a clock that is behind the store's changes nothing"

    def test_the_rows_of_the_first_chunk_do_not_count(self) -> None:
        """Nobody knows how long they took."""
        assert rate(160.0, (100.0, 600), (130.0, 600), (160.0, 600)) == 20

    def test_a_break_of_a_whole_window_does_not_count(self) -> None:
        assert rate(100_120.0, (0.0, 600), (60.0, 600), (100_060.0, 600), (100_120.0, 600)) == 10

    def test_it_falls_while_nothing_is_committed(self) -> None:
        commits = [(60.0 * number, 600) for number in range(10)]

        assert [rate(now, *commits) for now in (540.0, 640.0, 1140.0)] == [10, 8, 600 / 660]

    def test_of_chunks_that_take_longer_than_the_window(self) -> None:
        slow = (0.0, 1000), (1000.0, 1000)

        assert [rate(now, *slow) for now in (1000.0, 2000.0)] == [1, 0.5]

    def test_it_is_unknown_while_no_time_has_passed(self) -> None:
        assert rate(5.0, (5.0, 10), (5.0, 10)) is None

    def test_a_break_that_is_over_leaves_the_chunks_since(self) -> None:
        assert rate(1000.0, (100.0, 100), (800.0, 60), (990.0, 30)) == 30 / 200


class TestProgress:
    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore()

    def seen(self, store: MemoryStore, *chunks: int, since: float = 0.0) -> Progress:
        """Of a run of 25 rows in chunks of 10."""
        for chunk in chunks:
            obstore.put(store, WORK.chunk_path(chunk), b"rows")
        return progress(store, WORK, 25, 10, time.time(), since)

    def test_the_last_chunk_is_shorter(self, store: MemoryStore) -> None:
        found = self.seen(store, 0, 2)

        assert (found.rows, found.chunks, found.recent) == (15, 2, 15)

    def test_only_those_since_a_moment_are_recent(self, store: MemoryStore) -> None:
        found = self.seen(store, 0, 1, since=time.time() + 60)

        assert (found.rows, found.recent) == (20, 0)

    def test_what_is_not_a_chunk_of_the_plan_does_not_count(self, store: MemoryStore) -> None:
        obstore.put(store, f"{WORK.ledger_folder}/other", b"")
        found = self.seen(store, 7)

        assert (found.rows, found.chunks, found.newest) == (0, 0, None)

    def test_the_time_left_is_at_that_rate(self) -> None:
        found = measured([(100, 100.0), (60, 300.0), (30, 350.0)], 400.0)

        assert (found.rows, found.rate, found.seconds_left(250)) == (190, 0.3, 200.0)
        assert found.seconds_left(190) == 0.0
