"""The simulator bites: every mutant of the protocol is caught by the schedule that mutants.json names for it."""

from __future__ import annotations

import pytest

from tests.simulation.check import Violated
from tests.simulation.mutants import MUTANTS, Mutant, seeds
from tests.simulation.world import simulate

pytestmark = [pytest.mark.simulation, pytest.mark.timeout(1800)]

SEEDS = seeds()
HINT = "the schedules have shifted? `PYTHONPATH=plugins python -m tests.simulation --mutants` finds the seed anew"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_mutant_is_caught(mutant: Mutant) -> None:
    seed = SEEDS[mutant.name]
    with mutant.applied():
        try:
            simulate(seed)
        except Violated as error:
            broken = {line.split(":")[0] for line in error.violations}
        else:
            broken = set()

    assert broken & mutant.breaks, f"seed {seed} breaks {broken or 'nothing'}; {HINT}"


@pytest.mark.parametrize("seed", sorted(set(SEEDS.values())))
def test_without_the_mutant_its_schedule_passes(seed: int) -> None:
    simulate(seed)
