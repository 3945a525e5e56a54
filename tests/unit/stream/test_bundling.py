"""Items collected into bundles: full ones at once, others when their first item has waited long enough."""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass

import pytest

from nightshift.stream.bundling import Bundler

pytestmark = pytest.mark.unit


@dataclass(eq=False)
class Item:
    number: int
    size: int = 1
    since: float = 0.0


def bundler(items_most: int = 3, size_most: float = math.inf, wait_s: float = 1.0) -> Bundler[Item]:
    return Bundler(items_most=items_most, size_most=size_most, wait_s=wait_s)


def filled(bundles: Bundler[Item], *sizes: int, now: float = 0.0) -> list[Item]:
    items = [Item(number, size, now) for number, size in enumerate(sizes)]
    for item in items:
        bundles.add(item, item.size, now)
    return items


class TestWhenABundleIsDue:
    def test_nothing_is_due_of_nothing(self) -> None:
        empty = bundler()

        assert (empty.due(1e9), empty.flush(), empty.next_due) == (None, None, None)

    def test_one_that_is_full_is_due_at_once(self) -> None:
        bundles = bundler(items_most=3)
        first, second, third, fourth = filled(bundles, 1, 1, 1, 1, now=5.0)

        assert bundles.next_due == 5.0
        assert bundles.due(5.0) == [first, second, third]
        assert bundles.due(5.0) is None
        assert bundles.flush() == [fourth]

    def test_one_that_is_not_full_is_due_when_its_oldest_has_waited(self) -> None:
        bundles = bundler(wait_s=0.25)
        early, late = Item(0), Item(1)
        bundles.add(early, 1, 10.0)
        bundles.add(late, 1, 10.2)

        assert bundles.next_due == 10.25
        assert bundles.due(10.249) is None
        assert bundles.due(10.25) == [early, late], "the later one need not wait as long"
        assert bundles.next_due is None

    def test_the_bound_counts_from_the_oldest_that_is_still_there(self) -> None:
        bundles = bundler(wait_s=1.0)
        early, late = Item(0), Item(1)
        bundles.add(early, 1, 10.0)
        bundles.add(late, 1, 10.5)

        assert bundles.remove(early)
        assert bundles.next_due == 11.5

    def test_without_waiting_each_item_is_due_at_once(self) -> None:
        bundles = bundler(wait_s=0)
        (item,) = filled(bundles, 1, now=3.0)

        assert bundles.due(3.0) == [item]

    def test_an_infinite_wait_leaves_only_full_bundles(self) -> None:
        bundles = bundler(items_most=2, wait_s=math.inf)
        items = filled(bundles, 1)

        assert (bundles.due(1e12), bundles.next_due) == (None, math.inf)
        items += filled(bundles, 1)
        assert bundles.due(0) == items


class TestSize:
    def test_a_bundle_that_has_reached_the_size_is_full(self) -> None:
        bundles = bundler(items_most=99, size_most=10)
        items = filled(bundles, 4, 6)

        assert bundles.due(0) == items

    def test_the_item_that_would_exceed_it_waits_for_the_next_bundle(self) -> None:
        bundles = bundler(items_most=99, size_most=10)
        first, second, third = filled(bundles, 4, 5, 2)

        assert bundles.due(0) == [first, second]
        assert bundles.due(0) is None
        assert (bundles.flush(), bundles.size) == ([third], 0)

    def test_one_that_is_larger_alone_goes_alone(self) -> None:
        bundles = bundler(items_most=99, size_most=10)
        small, large, last = filled(bundles, 1, 50, 1)

        assert [bundles.due(0), bundles.due(0), bundles.due(0)] == [[small], [large], None]
        assert bundles.flush() == [last]


class TestRemoving:
    def test_a_caller_that_has_gone_takes_no_place(self) -> None:
        bundles = bundler(items_most=3)
        first, gone, third = filled(bundles, 1, 7, 1)

        assert bundles.remove(gone)
        assert (len(bundles), bundles.size, bundles.due(0)) == (2, 2, None)
        assert bundles.flush() == [first, third]

    def test_what_does_not_wait_cannot_be_removed(self) -> None:
        bundles = bundler()
        (item,) = filled(bundles, 1)

        assert not bundles.remove(Item(0))
        assert bundles.remove(item)
        assert not bundles.remove(item)

    def test_equal_items_are_different_items(self) -> None:
        bundles: Bundler[list[int]] = Bundler(items_most=9, size_most=math.inf, wait_s=1)
        one, other = [1], [1]
        bundles.add(one, 1, 0)
        bundles.add(other, 1, 0)
        bundles.remove(one)

        left = bundles.flush()
        assert left is not None
        assert left[0] is other


class TestWrongUse:
    @pytest.mark.parametrize(
        ("items_most", "size_most", "wait_s"),
        [(0, 1, 1), (1, 0, 1), (1, -1, 1), (1, 1, -0.1), (1, math.nan, 1), (1, 1, math.nan)],
    )
    def test_bounds_that_no_bundle_can_keep(self, items_most: int, size_most: float, wait_s: float) -> None:
        with pytest.raises(ValueError, match="a bundle needs"):
            bundler(items_most, size_most, wait_s)

    def test_an_item_waits_once(self) -> None:
        bundles = bundler()
        (item,) = filled(bundles, 1)

        with pytest.raises(ValueError, match="waits already"):
            bundles.add(item, 1, 0)
        assert len(bundles) == 1

    def test_time_does_not_go_back(self) -> None:
        bundles = bundler()
        filled(bundles, 1, now=5)

        with pytest.raises(ValueError, match=r"4\.9 is before 5"):
            bundles.add(Item(1), 1, 4.9)
        with pytest.raises(ValueError, match="nan is before"):
            bundles.add(Item(1), 1, math.nan)

    def test_a_size_is_not_negative(self) -> None:
        with pytest.raises(ValueError, match="negative: -1"):
            bundler().add(Item(0), -1, 0)


def test_it_says_what_waits() -> None:
    bundles = bundler(items_most=8, size_most=100, wait_s=0.05)
    filled(bundles, 3, 4)

    assert repr(bundles) == "<Bundler items=2/8 size=7/100 wait_s=0.05>"


class Watched:
    """A bundler with a clock of its own, beside a list of what should wait in it. Every bundle is checked."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        draw = self._random
        self.bundles = bundler(draw.randint(1, 6), draw.choice([math.inf, 5, 20]), draw.choice([0.0, 0.5, 2.0]))
        self._now = draw.uniform(0, 1e6)
        self._should: deque[Item] = deque()
        self._number = 0

    def step(self) -> None:
        match self._random.randrange(4):
            case 0 | 1:
                item = Item(self._number, self._random.randint(0, 8), self._now)
                self._number += 1
                self.bundles.add(item, item.size, self._now)
                self._should.append(item)
            case 2 if self._should:
                gone = self._random.choice(self._should)
                assert self.bundles.remove(gone)
                self._should.remove(gone)
            case _:
                self._to(self._now + self._random.expovariate(2.0))
        assert (len(self.bundles), self.bundles.size) == (len(self._should), sum(item.size for item in self._should))

    def end(self) -> None:
        while (bundle := self.bundles.flush()) is not None:
            self._check(bundle)
        assert not self._should, "what waits after the last bundle is lost"

    def _to(self, then: float) -> None:
        """Time goes on, and `due` is asked whenever `next_due` says so."""
        while (at := self.bundles.next_due) is not None and at <= then:
            self._now = max(self._now, at)
            bundle = self.bundles.due(self._now)
            assert bundle is not None, "nothing was due when next_due said that something would be"
            assert all(self._now <= item.since + self.bundles.wait_s for item in bundle), "an item has waited too long"
            self._check(bundle)
        assert self.bundles.due(then) is None, "something was due before next_due said so"
        self._now = then

    def _check(self, bundle: list[Item]) -> None:
        assert 1 <= len(bundle) <= self.bundles.items_most
        assert len(bundle) == 1 or sum(item.size for item in bundle) <= self.bundles.size_most
        assert bundle == [self._should.popleft() for _ in bundle], "lost, twice, or out of order"


@pytest.mark.parametrize("seed", range(60))
def test_whatever_arrives_and_goes_each_item_is_in_one_bundle_in_time_and_in_order(seed: int) -> None:
    watched = Watched(seed)

    for _ in range(400):
        watched.step()
    watched.end()
