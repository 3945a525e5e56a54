"""How many rows may be in flight, against engines of a known size."""

import pytest

from nightshift.driver.engine import Load
from nightshift.driver.window import Window

pytestmark = pytest.mark.unit


def engine(size: int, in_flight: int, *, cache: float = 0.2, preemptions: float = 0.0) -> Load:
    """What an engine that computes `size` rows at once says of itself with so many rows in flight."""
    return Load(min(size, in_flight), max(0, in_flight - size), cache, preemptions)


def settle(window: Window, size: int, ticks: int = 40) -> None:
    """The window is always full: there are rows enough."""
    for _ in range(ticks):
        answer(window, engine(size, window.limit))


def answer(window: Window, load: Load) -> None:
    """A look at an engine that answered since the last one."""
    window.sample(load, window.limit)
    level = window.limit
    window.answered(1)
    assert window.limit == level, "with metrics an answer alone changes nothing"


@pytest.mark.parametrize("size", [1, 4, 64, 256, 1024])
@pytest.mark.parametrize("step", [1, 16])
@pytest.mark.parametrize("start", [1, 100, 4000])
def test_it_finds_the_level_at_which_the_engine_is_full(size: int, step: int, start: int) -> None:
    window = Window(start=start, step=step, most=8192)

    settle(window, size)

    assert window.limit >= min(size + 1, size + step), "never idle: the batch is full and something waits"
    assert window.limit <= 2 * size + 2 * step, "at most a batch more waits"


def test_it_finds_the_level_of_a_big_engine_quickly() -> None:
    window = Window(start=8, step=1, most=8192)

    settle(window, 1024, ticks=10)

    assert window.limit > 1024


@pytest.mark.parametrize(("before", "after"), [(256, 16), (16, 256)])
def test_it_follows_an_engine_that_changes(before: int, after: int) -> None:
    window = Window(start=8, step=1, most=8192)
    settle(window, before)

    settle(window, after, ticks=150)

    assert after < window.limit <= 2 * after + 2


def test_the_same_sample_twice_gives_one_limit() -> None:
    window = Window(start=136, step=8, most=8192)

    for _ in range(10):
        window.sample(engine(32, 136), 136)

    assert 32 < window.limit <= 64, "steps of the engine may take longer than many looks at it"


def test_rows_that_the_engine_has_not_seen_yet_open_nothing() -> None:
    window = Window(start=128, step=8, most=8192)
    window.answered(8)

    window.sample(engine(64, 0), 128)

    assert window.limit == 128


def test_an_engine_that_answers_nothing_does_not_open_the_window() -> None:
    window = Window(start=64, step=1, most=8192)

    for _ in range(50):
        window.sample(engine(256, 64), 64)

    assert window.limit == 64


def test_rows_that_are_short_do_not_open_the_window() -> None:
    window = Window(start=64, step=1, most=8192)

    for _ in range(50):
        window.sample(engine(256, 10), 10)
        window.answered(10)

    assert window.limit == 64


def test_preempted_rows_shrink_it() -> None:
    window = Window(start=500, step=1, most=8192)
    window.sample(engine(256, 500, preemptions=3.0), 500)
    before = window.limit

    window.sample(engine(256, 500, preemptions=5.0), 500)

    assert window.limit < before


def test_preemptions_of_earlier_workers_do_not() -> None:
    window = Window(start=300, step=1, most=8192)

    window.sample(engine(256, 300, preemptions=1000.0), 300)

    assert window.limit >= 300


def test_a_full_cache_shrinks_it_only_while_something_waits() -> None:
    window = Window(start=300, step=1, most=8192)

    window.sample(engine(256, 256, cache=1.0), 256)
    assert window.limit == 300
    window.sample(engine(256, 300, cache=1.0), 300)
    assert window.limit == 270


def test_without_metrics_it_grows_by_a_request_a_round_and_halves_when_refused() -> None:
    window = Window(start=10, step=1, most=8192)
    for _ in range(10):
        window.answered(1)
    assert window.limit in (10, 11)
    for _ in range(11):
        window.answered(1)
    assert window.limit in (11, 12)

    before = window.limit
    window.refused(now=100.0)
    window.refused(now=100.5)
    assert window.limit == before // 2
    window.refused(now=101.5)
    assert window.limit == before // 4


@pytest.mark.parametrize("step", [1, 16])
def test_it_stays_between_a_request_and_the_most(step: int) -> None:
    window = Window(start=1, step=step, most=100)
    for tick in range(50):
        window.refused(now=10.0 * tick)
    assert window.limit == step

    settle(window, 10_000, ticks=100)
    assert window.limit == 100


@pytest.mark.parametrize("step", [1, 8])
def test_an_engine_that_others_have_filled_gets_nothing_new_until_its_queue_is_shorter(step: int) -> None:
    window = Window(start=16, step=step, most=64)

    window.sample(Load(1.0, 40.0, 0.5, 0.0), 0)
    assert window.limit == 0
    window.sample(Load(1.0, 30.0, 0.5, 0.0), 0)
    assert window.limit == 0
    window.sample(Load(1.0, 0.0, 0.5, 0.0), 0)
    assert window.limit == step


def test_a_queue_of_ones_own_closes_nothing() -> None:
    window = Window(start=512, step=1, most=512)

    window.sample(Load(8.0, 500.0, 0.5, 0.0), 508)

    assert window.limit > 8


def test_a_server_whose_numbers_come_with_its_first_answers_is_filled_too() -> None:
    """Several API servers show no gauges before the first request."""
    window = Window(start=16, step=8, most=4096)
    for _ in range(3):
        window.unseen()
        window.answered(8)
    assert window.limit > 16

    settle(window, 256)

    assert 256 < window.limit <= 2 * 256 + 2 * 8


def test_what_an_engine_said_before_its_numbers_could_not_be_read_closes_nothing() -> None:
    window = Window(start=16, step=1, most=64)
    window.sample(Load(1.0, 40.0, 0.5, 0.0), 0)

    window.unseen()

    assert window.limit == 1
