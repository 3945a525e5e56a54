"""Rows a second and the time that is left, from when chunks were committed."""

from __future__ import annotations

import pytest

from nightshift.status.rate import Rate

pytestmark = pytest.mark.unit


def test_rate_needs_two_chunks() -> None:
    rate = Rate()
    assert rate.recent(0) is None
    rate.add(100, 50, 5)
    assert rate.recent(110) is None


def test_rate_over_the_last_minutes() -> None:
    rate = Rate()
    for number in range(100):
        rate.add(10.0 * number, 1000 if number < 50 else 10, 10)

    assert rate.recent(990) == 1
    # A clock that is behind the store's changes nothing.
    assert rate.recent(0) == 1


def test_rate_of_several_workers_that_have_just_begun() -> None:
    """Their first chunks come in a bunch, which says nothing; how long they took does."""
    rate = Rate()
    for number in range(10):
        rate.add(1060 + number / 10, 600, 60)

    assert rate.recent(1060) == pytest.approx(100, rel=0.02)


def test_rate_leaves_out_the_night_between() -> None:
    rate = Rate()
    for committed in (0, 60, 100_060, 100_120):
        rate.add(committed, 600, 60)

    assert rate.recent(100_120) == 10
    assert rate.elapsed_s == 100_180


def test_a_run_that_stands_still_slows_down() -> None:
    rate = Rate()
    for number in range(10):
        rate.add(60.0 * number, 600, 60)

    assert [rate.recent(now) for now in (540, 640, 1140)] == [10, 8, 600 / 660]


def test_rate_of_chunks_that_take_longer_than_the_window() -> None:
    rate = Rate()
    rate.add(0, 1000, 900)
    rate.add(1000, 1000, 900)

    assert rate.recent(1000) == 1
    assert rate.recent(2000) == 0.5


def test_rate_of_chunks_that_took_no_time_is_unknown() -> None:
    rate = Rate()
    rate.add(5, 10, 0)
    rate.add(5, 10, 0)

    assert rate.recent(5) is None


def test_rate_keeps_no_more_than_it_needs() -> None:
    rate = Rate()
    for number in range(50_000):
        rate.add(float(number), 2, 1)

    assert rate.recent(49_999) == 2
    assert len(rate._commits) < 5_000
    assert rate.elapsed_s == 50_000
