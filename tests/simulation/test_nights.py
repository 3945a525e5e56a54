"""Nights of 1,000 workers that are to keep their deadline: what the decisions may not do, and how many deadlines they save.

`make test` runs GATE_SEEDS; `make test-all` runs random ones too, and prints them. The figures are P16's
(docs/develop/benchmarks.md).
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.simulation.check import Violated
from tests.simulation.mutants import Mutant
from tests.simulation.night_mutants import NIGHT_MUTANTS, seeds
from tests.simulation.nights import HELPS, Night, World, draw, simulate
from tests.simulation.runner import PARTS, random_part

pytestmark = pytest.mark.simulation

GATE_SEEDS = range(24)
RANDOM = 100


def must_be_calm(of: Iterable[int]) -> list[Night]:
    nights, failed = [], []
    for seed in of:
        try:
            nights.append(simulate(seed))
        except Violated as error:
            failed.append(str(error))
    assert not failed, "\n".join([*failed[:5], f"{len(failed)} failed"])
    return nights


@pytest.mark.gate
def test_decisions_are_few_and_go_one_way() -> None:
    nights = must_be_calm(GATE_SEEDS)

    assert max(len(night.helped) for night in nights) <= HELPS
    assert any(night.helped for night in nights), "what is worth simulating happens"
    assert any(night.fell for night in nights), "what is worth simulating happens"


@pytest.mark.parametrize("part", range(PARTS))
def test_decisions_of_random_nights_are_few_and_go_one_way(part: int) -> None:
    must_be_calm(random_part(RANDOM, part))


@pytest.mark.gate
def test_deadlines_are_saved_and_none_is_lost() -> None:
    kept = [World(draw(seed), kept=True).run() for seed in GATE_SEEDS]
    without = [World(draw(seed), kept=False).run() for seed in GATE_SEEDS]

    assert sum(night.met for night in kept) > sum(night.met for night in without)
    assert not [night.scenario.seed for night, before in zip(kept, without, strict=True) if before.met and not night.met]


@pytest.mark.gate
@pytest.mark.parametrize("mutant", NIGHT_MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_mutant_is_caught(mutant: Mutant) -> None:
    seed = seeds()[mutant.name]

    assert mutant.broken(simulate, seed), f"seed {seed} does not break {set(mutant.breaks)}"
    simulate(seed)
