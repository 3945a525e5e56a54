"""The search of a tune on engines whose speed is known everywhere. All seeds: tests/simulation/test_tuner.py."""

from __future__ import annotations

import pytest

from nightshift.trial.outcomes import Cause
from nightshift.trial.tune.points import Point, Space, ruled_out
from nightshift.trial.tune.search import REPEATS, Measure, Outcome, Question, Searcher
from tests.unit.tuner_surfaces import FAMILIES, Surface, drawn, exhaustive, points

pytestmark = pytest.mark.unit

SPACE = Space(Point(2048, 64), {"max_num_batched_tokens": (1024, 2048, 4096), "max_num_seqs": (32, 64, 128)})


def answer(surface: Surface, question: Question, number: int) -> Outcome:
    if question.measure is Measure.SOAK:
        cause = surface.fails_at_once.get(question.point) or surface.fails_under_load.get(question.point)
        return Outcome(cause=cause) if cause else Outcome(surface.rates[question.point])
    found = surface.measured(question.point, number)
    return Outcome(cause=found) if isinstance(found, Cause) else Outcome(found)


def searched(surface: Surface, limit: int) -> tuple[Searcher, list[tuple[Question, Outcome]]]:
    searcher, kept = Searcher(surface.space), list[tuple[Question, Outcome]]()
    while (question := searcher.ask(limit - len(kept))) is not None:
        kept.append((question, answer(surface, question, len(kept))))
        searcher.tell(*kept[-1])
    return searcher, kept


@pytest.mark.parametrize("family", FAMILIES)
def test_a_quarter_of_the_trials_finds_nearly_the_best(family: str) -> None:
    for seed in (0, 1, 2):
        surface = drawn(family, seed)
        limit = exhaustive(surface) // 4

        searcher, kept = searched(surface, limit)

        choice = searcher.choice()
        assert choice.point is not None
        assert surface.share(choice.point) >= 0.95, (family, seed)
        assert len(kept) <= limit
        assert kept[0][0] == Question(surface.space.default, Measure.SPEED)
        assert Question(choice.point, Measure.SOAK) in [question for question, outcome in kept if outcome.cause is None]


def test_a_search_that_was_killed_goes_on_with_the_same_questions() -> None:
    surface = drawn("load", 3)
    _, kept = searched(surface, 18)

    for at in range(len(kept)):
        again = Searcher(surface.space)
        for question, outcome in kept[:at]:
            again.tell(question, outcome)
        assert again.ask(18 - at) == kept[at][0]


def test_nothing_is_said_to_be_better_that_differs_by_the_noise() -> None:
    better = [seed for seed in range(8) if searched(drawn("flat", seed), 16)[0].choice().better]

    assert better == []


def test_what_is_much_faster_is_said_to_be() -> None:
    surface = drawn("ridge", 4)

    choice = searched(surface, 30)[0].choice()

    assert choice.better
    assert choice.point is not None
    true = surface.rates[choice.point] / surface.rates[surface.space.default]
    assert choice.low is not None
    assert choice.high is not None
    assert choice.low <= true <= choice.high


def test_a_default_that_does_not_start_leads_to_a_smaller_point() -> None:
    searcher = Searcher(SPACE)
    searcher.tell(Question(SPACE.default, Measure.SPEED), Outcome(cause=Cause.OUT_OF_MEMORY))

    question = searcher.ask()

    assert question is not None
    assert question.point in (Point(1024, 64), Point(2048, 32))
    searcher.tell(question, Outcome(10.0))
    searcher.tell(Question(question.point, Measure.SOAK), Outcome(10.0))
    assert searcher.choice().point == question.point
    assert searcher.choice().ratio is None


def test_nothing_is_chosen_if_nothing_holds_the_soak() -> None:
    searcher = Searcher(Space(Point(2048, 64), {}))

    while (question := searcher.ask()) is not None:
        searcher.tell(question, Outcome(5.0) if question.measure is Measure.SPEED else Outcome(cause=Cause.PREEMPTED))

    assert searcher.choice().point is None


def test_the_default_and_the_best_are_repeated_when_nothing_else_is_left() -> None:
    surface = drawn("ridge", 5)

    searcher, kept = searched(surface, 40)

    speeds = [question.point for question, _ in kept if question.measure is Measure.SPEED]
    best = searcher.choice().point
    assert best is not None
    assert speeds.count(best) == speeds.count(surface.space.default) == REPEATS
    assert len(kept) < 40


@pytest.mark.parametrize(
    ("cause", "point", "out"),
    [
        (Cause.OUT_OF_MEMORY, Point(4096, 128), True),
        (Cause.OUT_OF_MEMORY, Point(4096, 64), False),
        (Cause.OUT_OF_MEMORY, Point(4096, 128, tensor_parallel=2), False),
        (Cause.OUT_OF_MEMORY, Point(4096, 128, engines=2), True),
        (Cause.CANNOT_START, Point(1024, 128), True),
        (Cause.CANNOT_START, Point(4096, 64), False),
    ],
)
def test_a_failure_rules_out_what_fails_for_the_same_reason(cause: Cause, point: Point, out: bool) -> None:
    """Of memory: what needs no less. Of anything else: what is as far from the default in the same direction."""
    assert ruled_out(point, Point(2048, 128), cause, Point(2048, 64)) is out


def test_later_stages_go_on_from_the_best_of_the_first() -> None:
    space = Space(Point(2048, 64), {**SPACE.axes, "api_servers": (1, 2, 4), "tensor_parallel": (1, 2)})
    searcher, told = Searcher(space), 0
    while (question := searcher.ask()) is not None:
        told += 1
        point = question.point
        rate = 10.0 * point.max_num_seqs**0.5 * point.api_servers**0.3 / point.tensor_parallel**0.5
        searcher.tell(question, Outcome(rate))

    assert searcher.choice().point is not None
    assert (searcher.choice().point or space.default).max_num_seqs == 128
    assert (searcher.choice().point or space.default).api_servers == 4
    assert told < len(points(space)) / 2


def test_a_point_outside_the_space_and_a_broken_grid_are_refused() -> None:
    with pytest.raises(ValueError, match="not a point of this tune"):
        Searcher(SPACE).tell(Question(Point(512, 64), Measure.SPEED), Outcome(1.0))
    with pytest.raises(ValueError, match="not a grid"):
        Space(Point(2048, 64), {"max_num_seqs": (32, 128)})
    with pytest.raises(ValueError, match="went well"):
        Outcome(0.0)
