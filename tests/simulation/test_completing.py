"""Schedules of nights that fail and of their redos, each held to the invariants of `completing`, and mutants that they catch.

`make test` runs GATE_SEEDS and those of the mutants, always the same; `make test-all` runs random ones too, and prints them.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.completing import outcome, simulate
from tests.simulation.completing_mutants import COMPLETING_MUTANTS, seeds
from tests.simulation.mutants import Mutant
from tests.simulation.publishing import Report
from tests.simulation.runner import PARTS, random_part

pytestmark = pytest.mark.simulation

GATE_SEEDS = range(40)
RANDOM = 40
HINT = "to see one: PYTHONPATH=plugins python -m tests.simulation --completing --seed N --trace"


def must_keep_every_invariant(of: set[int] | range) -> Counter[str]:
    seen: Counter[str] = Counter()
    failed = []
    for found in map(outcome, sorted(of)):
        if isinstance(found, Report):
            seen += found.seen
        else:
            failed.append(found)
    assert not failed, "\n".join([*failed[:5], f"{len(failed)} failed; {HINT}"])
    return seen


@pytest.mark.gate
def test_every_schedule_of_redos_keeps_every_invariant() -> None:
    seen = must_keep_every_invariant(GATE_SEEDS)

    wanted = {"published", "refused", "closings", "corrected", "same rows", "not matched", "exported again", "redos joined"}
    wanted |= {"stopped early", "failed at the seal", "late", "kill", "again", "overwrite", "delete"}
    assert wanted - set(seen) == set(), "what is worth simulating happens"


@pytest.mark.gate
def test_the_schedules_of_the_mutants_of_redos_keep_every_invariant_without_them() -> None:
    must_keep_every_invariant(set(seeds().values()) - set(GATE_SEEDS))


@pytest.mark.parametrize("part", range(PARTS))
def test_random_schedules_of_redos_keep_every_invariant(part: int) -> None:
    must_keep_every_invariant(random_part(RANDOM, part))


@pytest.mark.gate
@pytest.mark.parametrize("mutant", COMPLETING_MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_mutant_of_redos_is_caught(mutant: Mutant) -> None:
    seed = seeds()[mutant.name]

    hint = "`--mutants` searches the seeds again"
    assert mutant.broken(simulate, seed), f"seed {seed} does not break {set(mutant.breaks)}; {hint}"


@pytest.mark.gate
def test_a_seed_is_one_schedule_of_redos() -> None:
    first: list[str] = []
    again: list[str] = []
    simulate(9, first.append)
    simulate(9, again.append)

    assert first == again
    assert len(first) > 10
