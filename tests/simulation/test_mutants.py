"""The simulator bites: every mutant of the protocol is caught by the schedule that mutants.json names for it.

That the same schedules pass without the mutants is test_schedules.py's: it runs them all.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nightshift.driver.work_stealing import Ranges
from tests.simulation.check import Violated
from tests.simulation.mutants import MUTANTS, OF_SEVERAL_ENGINES, Mutant, seeds
from tests.simulation.test_invariants import one_of_two_hangs, one_of_two_is_away, three_of_four_fail_everybody, twins_compute
from tests.simulation.test_schedules import GATE_SEEDS
from tests.simulation.world import simulate

pytestmark = [pytest.mark.simulation, pytest.mark.gate]

SEEDS = seeds()
HINT = "the schedules have shifted? `PYTHONPATH=plugins python -m tests.simulation --mutants` finds the seed again"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_mutant_is_caught(mutant: Mutant) -> None:
    seed = SEEDS[mutant.name]

    assert mutant.broken(simulate, seed), f"seed {seed} does not break {set(mutant.breaks)}; {HINT}"


SCHEDULES = (one_of_two_hangs, one_of_two_is_away, three_of_four_fail_everybody)
"""Of each of OF_SEVERAL_ENGINES."""


@pytest.mark.parametrize(
    ("mutant", "schedule"),
    list(zip(OF_SEVERAL_ENGINES, SCHEDULES, strict=True)),
    ids=[mutant.name.replace(" ", "-") for mutant in OF_SEVERAL_ENGINES],
)
def test_a_mutant_of_several_engines_is_caught(mutant: Mutant, schedule: Callable[[], object]) -> None:
    """test_invariants.py runs the same schedules without a mistake."""
    with mutant.applied(), pytest.raises(Violated) as caught:
        schedule()

    assert {line.split(":")[0] for line in caught.value.violations} & mutant.breaks


def test_the_schedules_of_the_mutants_are_run_without_them_too() -> None:
    assert set(SEEDS.values()) <= set(GATE_SEEDS)


def test_twins_that_stay_together_compute_too_much() -> None:
    """Waste is no violation, so no schedule catches this mutant: the measure of test_invariants.py does."""
    with Mutant("twins stay together", frozenset(), lambda: ((Ranges, "lost", lambda self, chunk: None),)).applied():
        assert twins_compute() > 1.9
