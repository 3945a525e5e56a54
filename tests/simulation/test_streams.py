"""Schedules of streams, each held to the invariants of `streams`, and mutants that they catch.

`make test` runs GATE_SEEDS; `make test-all` runs random ones too, and prints them. More of them by hand:
`python -m tests.simulation --streams --seeds 0:10000`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.simulation import watching
from tests.simulation.mutants import Mutant
from tests.simulation.runner import PARTS, random_part, uncollected
from tests.simulation.stream_mutants import FILE_MUTANTS, STREAM_MUTANTS, WATCHED_MUTANTS, seeds
from tests.simulation.streams import EVENTS, Report, draw, outcome, outcome_of_files, simulate, simulate_files

pytestmark = pytest.mark.simulation

GATE_SEEDS = range(200)
FILE_SEEDS = range(20)
WATCHED_SEEDS = range(50)
RANDOM, RANDOM_FILES, RANDOM_WATCHED = 150, 30, 150
SLICES = 10
HINT = "to see one: PYTHONPATH=plugins python -m tests.simulation --streams --seed N"


def slices(of: range) -> list[range]:
    size = -(-len(of) // SLICES)
    return [of[at : at + size] for at in range(0, len(of), size)]


def must_keep_every_invariant(of: range, run: Callable[[int], Report | Counter[str] | str] = outcome) -> Counter[str]:
    seen: Counter[str] = Counter()
    failed = []
    with uncollected():
        for found in map(run, of):
            if isinstance(found, str):
                failed.append(found)
            else:
                seen += found.seen if isinstance(found, Report) else found
    assert not failed, "\n".join([*failed[:5], f"{len(failed)} failed; {HINT}"])
    return seen


@pytest.mark.gate
@pytest.mark.parametrize("of", slices(GATE_SEEDS), ids=lambda of: f"from-{of.start}")
def test_every_schedule_of_a_stream_keeps_every_invariant(of: range) -> None:
    must_keep_every_invariant(of)


@pytest.mark.gate
def test_a_pull_that_is_repeated_asks_for_what_fits_by_then() -> None:
    """The engine gave its first answer while Pub/Sub was away: a search for others was pulled for once more."""
    must_keep_every_invariant(range(647042199750, 647042199751))


@pytest.mark.gate
def test_schedules_with_files_as_the_sink_keep_every_invariant() -> None:
    seen = must_keep_every_invariant(FILE_SEEDS, outcome_of_files)

    assert seen["copies"] > 0, "no message was ever in two files, so nothing says that they are allowed"


@pytest.mark.gate
def test_schedules_of_a_watched_folder_keep_every_invariant() -> None:
    must_keep_every_invariant(WATCHED_SEEDS, watching.outcome)


@pytest.mark.gate
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(3938, id="a bad row that is computed alone as the engine begins to fail has its own reason"),
        pytest.param(760390475259, id="a pull under way at a drain takes a message that was just given back"),
    ],
)
def test_a_schedule_that_once_failed_keeps_every_invariant(seed: int) -> None:
    must_keep_every_invariant(range(seed, seed + 1))


@pytest.mark.gate
def test_what_is_worth_simulating_happens() -> None:
    drawn = [draw(seed) for seed in GATE_SEEDS]
    events = {what for each in drawn for _, what, _, _ in each.events}

    assert set(EVENTS) - events == set()
    assert {nature for each in drawn for nature in each.rows.natures.values()} >= {"poison", "slow", "error", "bad_input"}
    assert any(each.ordered for each in drawn)
    assert any(each.unwritable for each in drawn)
    assert sum(each.quiet for each in drawn) > 10


@pytest.mark.parametrize("part", range(PARTS))
def test_random_schedules_of_a_stream_keep_every_invariant(part: int) -> None:
    must_keep_every_invariant(random_part(RANDOM, part))


@pytest.mark.parametrize("part", range(PARTS))
def test_random_schedules_with_files_keep_every_invariant(part: int) -> None:
    must_keep_every_invariant(random_part(RANDOM_FILES, part), outcome_of_files)


@pytest.mark.parametrize("part", range(PARTS))
def test_random_schedules_of_a_watched_folder_keep_every_invariant(part: int) -> None:
    must_keep_every_invariant(random_part(RANDOM_WATCHED, part), watching.outcome)


@pytest.mark.gate
@pytest.mark.parametrize(
    "mutant", [*STREAM_MUTANTS, *FILE_MUTANTS, *WATCHED_MUTANTS], ids=lambda mutant: mutant.name.replace(" ", "-")
)
def test_a_mutant_of_the_subscriber_is_caught(mutant: Mutant) -> None:
    seed = seeds()[mutant.name]

    others = simulate_files if mutant in FILE_MUTANTS else watching.simulate
    run: Callable[[int], object] = simulate if mutant in STREAM_MUTANTS else others
    hint = "`--mutants` searches the seeds again"
    assert mutant.broken(run, seed), f"seed {seed} does not break {set(mutant.breaks)}; {hint}"


@pytest.mark.gate
@pytest.mark.parametrize(
    ("mutants", "run", "run_anyway"),
    [
        (STREAM_MUTANTS, outcome, GATE_SEEDS),
        (FILE_MUTANTS, outcome_of_files, FILE_SEEDS),
        (WATCHED_MUTANTS, watching.outcome, WATCHED_SEEDS),
    ],
    ids=["database", "files", "watched"],
)
def test_the_schedules_of_the_mutants_of_the_subscriber_pass_without_them(
    mutants: tuple[Mutant, ...], run: Callable[[int], object], run_anyway: range
) -> None:
    kept = {seeds()[mutant.name] for mutant in mutants}
    failed = [found for seed in sorted(kept - set(run_anyway)) if isinstance(found := run(seed), str)]

    assert failed == []


@pytest.mark.gate
def test_a_seed_is_one_schedule_of_a_stream() -> None:
    first, again = simulate(9), simulate(9)

    assert first == again
    assert first.deliveries > 1
