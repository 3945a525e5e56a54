"""What the driver's integration tests see with pauses of 0.01 s (`hurried`), here with its own, and the default time limit.

Their tests of replies that are half right have no twin: what such a row waits for is what one of the nature INVALID does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from nightshift.driver.attribution import ALIKE_S
from nightshift.driver.engine import Busy, Failed, SendResult
from nightshift.driver.health import EngineBudget
from nightshift.driver.worker import WorkerLimits
from nightshift.tasks.base import Reason
from tests.simulation.check import Violated
from tests.simulation.engines import FAILS, Failing, Fails, SimulatedEngine
from tests.simulation.rows import Nature
from tests.simulation.test_several_engines import NEVER, a_run

pytestmark = [pytest.mark.simulation, pytest.mark.gate]

LATER = Busy("later", 86_400.0, 429)


def says_to(ordinal: int, outcome: SendResult, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every engine says this to the row, however often it is asked."""
    arrive = SimulatedEngine._arrive

    def arrives(self: SimulatedEngine, request: Any) -> None:
        if ordinal in request.ordinals and not request.over:
            self._reply(request, outcome)
        else:
            arrive(self, request)

    monkeypatch.setattr(SimulatedEngine, "_arrive", arrives)


@pytest.mark.parametrize("engines", [1, 2])
@pytest.mark.parametrize("bad", [(3,), (0,), (59,), range(1, 60)], ids=["one", "the-first", "the-last", "all-but-one"])
def test_rows_that_always_fail_are_given_up_though_nothing_else_is_left(engines: int, bad: Sequence[int]) -> None:
    a_run(engines, rows=60, natures=dict.fromkeys(bad, Nature.ERROR))


@pytest.mark.parametrize("engines", [1, 2])
@pytest.mark.parametrize("row", [9, 23])
def test_a_row_that_a_gateway_turns_away_costs_no_other(engines: int, row: int, monkeypatch: pytest.MonkeyPatch) -> None:
    says_to(row, Failed("forbidden", Reason.REJECTED, 403, lasting=True), monkeypatch)

    a_run(engines, rows=24, natures={row: Nature.REJECTED})


@pytest.mark.parametrize("engines", [1, 2])
def test_engines_that_turn_every_row_away_are_a_mistake_of_the_configuration(engines: int) -> None:
    with pytest.raises(Violated) as caught:
        a_run(engines, [Failing(0.0, NEVER, Fails.WRONG)], calm_at=2 * ALIKE_S)

    # The checker knows of no such end.
    first = caught.value.violations[0]
    assert "crashed: WrongEngine('the engine has answered no request, and turns every one away: 404" in first
    assert ALIKE_S <= float(first.rpartition("(at ")[2].removesuffix(" s)")) <= 2 * ALIKE_S


@pytest.mark.parametrize("engines", [1, 2])
def test_a_slow_refusal_of_every_row_is_concluded_from_as_a_quick_one_is(engines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the next requests always sent before the last ones are turned away, there was never a moment to judge in."""

    def arrives(self: SimulatedEngine, request: Any) -> None:
        self._loop.after(self._rng.uniform(1.0, 12.0), self._reply, request, FAILS[Fails.WRONG])

    monkeypatch.setattr(SimulatedEngine, "_arrive", arrives)

    with pytest.raises(Violated) as caught:
        a_run(engines, calm_at=2 * ALIKE_S)

    first = caught.value.violations[0]
    assert "turns every one away: 404" in first
    assert float(first.rpartition("(at ")[2].removesuffix(" s)")) <= 2 * ALIKE_S


@pytest.mark.parametrize("engines", [1, 2])
def test_where_rows_say_what_they_ask_for_it_is_theirs(engines: int) -> None:
    """As in a batch file."""
    natures = dict.fromkeys(range(24), Nature.REJECTED)
    limits = WorkerLimits(window_start=8, window_most=8, engine=EngineBudget(rows_ask=True))

    a_run(engines, [Failing(0.0, NEVER, Fails.WRONG)], rows=24, natures=natures, limits=limits)


@pytest.mark.parametrize("engines", [1, 2])
@pytest.mark.parametrize("after", [0.0, 60.0])
def test_engines_that_fail_everybody_are_waited_for_and_cost_no_row(engines: int, after: float) -> None:
    report = a_run(engines, [Failing(after, after + 600.0, Fails.ERROR)])

    assert max(report.carried_until.values()) > after + 600.0


@pytest.mark.parametrize("engines", [1, 2])
def test_one_row_that_the_engine_puts_off_for_ever_is_given_up(engines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    says_to(3, LATER, monkeypatch)

    a_run(engines, rows=8, natures={3: Nature.ERROR})


@pytest.mark.parametrize("how", [Fails.ERROR, Fails.HANG, Fails.WRONG])
def test_an_engine_that_answers_again_is_used_again(how: Fails) -> None:
    report = a_run(2, [Failing(60.0, 1000.0, how, first=1)], rows=600)

    assert report.carried_until[0] > 1100.0
    assert max(report.carried_until.values()) < 4000.0
