"""Which chunk a worker opens next."""

import random
from collections import Counter

import pytest

from nightshift.driver.work_stealing import Ranges
from nightshift.run.ledger import Chunks
from tests.builders import a_plan

pytestmark = pytest.mark.unit

# Three shards: chunks 0-3, 4-7, 8-11.
PLAN = a_plan(12, 1, 3)


def ranges(index: int | None, *, committed: tuple[int, ...] = (), seed: int = 0) -> Ranges:
    known = Chunks(PLAN.chunk_count)
    for chunk in committed:
        known.add(chunk)
    return Ranges(PLAN, index, known, random.Random(seed))


def test_an_owner_goes_front_to_back_over_what_is_not_committed() -> None:
    mine = ranges(1, committed=(5,))
    taken = []
    while (chunk := mine.next_home()) is not None:
        mine.open(chunk)
        taken.append(chunk)

    assert taken == [4, 6, 7]


def test_a_chunk_that_was_let_go_is_chosen_again() -> None:
    mine = ranges(0)
    mine.open(0)
    mine.closed(0)

    assert mine.next_home() == 0


def test_a_worker_without_home_only_helps() -> None:
    helper = ranges(None)

    assert helper.next_home() is None
    assert helper.next_to_help() in range(12)
    assert helper.home_committed
    assert not helper.all_committed


def test_help_goes_behind_the_front_of_a_range_and_mostly_where_most_is_left() -> None:
    drawn = Counter(ranges(0, committed=(0, 1, 2, 3, 8, 9), seed=seed).next_to_help() for seed in range(200))

    assert set(drawn) == {5, 6, 7, 10, 11}, "of four chunks that are left the last three; of two both"
    assert drawn[5] + drawn[6] + drawn[7] > 4 * (drawn[10] + drawn[11])


def test_many_helpers_seldom_draw_the_same_chunk() -> None:
    plan = a_plan(1000, 1, 10)
    drawn = Counter(Ranges(plan, None, Chunks(1000), random.Random(seed)).next_to_help() for seed in range(50))

    assert len(drawn) > 40


def test_help_ends_when_all_that_is_left_is_open_here() -> None:
    helper = ranges(2, committed=tuple(range(10)))
    helper.open(10)
    helper.open(11)

    assert helper.next_to_help() is None
    assert not helper.all_committed


def test_the_last_chunks_of_others_are_computed_too() -> None:
    idle = ranges(0, committed=tuple(range(11)))

    assert idle.next_to_help() == 11


def test_an_owner_that_lost_a_race_at_home_leaves_the_front_to_its_twin() -> None:
    plan = a_plan(100, 1, 1)
    known = Chunks(100)
    twin = Ranges(plan, 0, known, random.Random(1))
    twin.lost(0)
    known.add(0)

    chunk = twin.next_home()

    assert chunk is not None
    assert chunk >= 25


def test_losing_a_race_elsewhere_changes_nothing_at_home() -> None:
    mine = ranges(0)
    mine.lost(8)

    assert mine.next_home() == 0


def test_home_and_all_are_told_apart() -> None:
    mine = ranges(0, committed=(0, 1, 2, 3))

    assert (mine.home_committed, mine.all_committed) == (True, False)
    assert ranges(0, committed=tuple(range(12))).all_committed


def test_a_run_without_rows_is_done() -> None:
    empty = Ranges(a_plan(0), 0, Chunks(0), random.Random(0))

    assert (empty.next_home(), empty.next_to_help(), empty.all_committed) == (None, None, True)
