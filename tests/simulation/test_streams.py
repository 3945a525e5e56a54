"""Schedules of streams, each held to the invariants of `streams`, and mutants that they catch.

`make test` runs GATE_SEEDS; `make test-all` runs ALL_SEEDS too.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.mutants import Mutant
from tests.simulation.stream_mutants import STREAM_MUTANTS, seeds
from tests.simulation.streams import EVENTS, Report, draw, outcome, simulate

pytestmark = [pytest.mark.simulation, pytest.mark.timeout(600)]

GATE_SEEDS = range(200)
ALL_SEEDS = range(len(GATE_SEEDS), 10_000)
SLICES = 20
HINT = "to see one: PYTHONPATH=plugins python -m tests.simulation --streams --seed N"


def slices(of: range) -> list[range]:
    size = -(-len(of) // SLICES)
    return [of[at : at + size] for at in range(0, len(of), size)]


def must_keep_every_invariant(of: range) -> Counter[str]:
    seen: Counter[str] = Counter()
    failed = []
    for found in map(outcome, of):
        if isinstance(found, Report):
            seen += found.seen
        else:
            failed.append(found)
    assert not failed, "\n".join([*failed[:5], f"{len(failed)} failed; {HINT}"])
    return seen


@pytest.mark.gate
@pytest.mark.parametrize("of", slices(GATE_SEEDS), ids=lambda of: f"from-{of.start}")
def test_every_schedule_of_a_stream_keeps_every_invariant(of: range) -> None:
    must_keep_every_invariant(of)


@pytest.mark.gate
def test_what_is_worth_simulating_happens() -> None:
    drawn = [draw(seed) for seed in GATE_SEEDS]
    events = {what for each in drawn for _, what, _, _ in each.events}

    assert set(EVENTS) - events == set()
    assert {nature for each in drawn for nature in each.rows.natures.values()} >= {"poison", "slow", "error", "bad_input"}
    assert any(each.ordered for each in drawn)
    assert any(each.unwritable for each in drawn)
    assert sum(each.quiet for each in drawn) > 10


@pytest.mark.parametrize("of", slices(ALL_SEEDS), ids=lambda of: f"from-{of.start}")
def test_every_further_schedule_of_a_stream_keeps_every_invariant(of: range) -> None:
    must_keep_every_invariant(of)


@pytest.mark.gate
@pytest.mark.parametrize("mutant", STREAM_MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_mutant_of_the_subscriber_is_caught(mutant: Mutant) -> None:
    seed = seeds()[mutant.name]

    hint = "`--mutants` searches the seeds again"
    assert mutant.broken(simulate, seed), f"seed {seed} does not break {set(mutant.breaks)}; {hint}"


@pytest.mark.gate
def test_the_schedules_of_the_mutants_of_the_subscriber_pass_without_them() -> None:
    failed = [found for seed in sorted(set(seeds().values()) - set(GATE_SEEDS)) if isinstance(found := outcome(seed), str)]

    assert failed == []


@pytest.mark.gate
def test_a_seed_is_one_schedule_of_a_stream() -> None:
    first, again = simulate(9), simulate(9)

    assert first == again
    assert first.deliveries > 1
