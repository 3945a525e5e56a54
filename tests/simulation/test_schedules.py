"""Thousands of schedules of faults, each held to every invariant of the design (`check`).

`make test` runs GATE_SEEDS, always the same; `make test-all` runs random ones too, and prints them. More of them by hand:
`python -m tests.simulation --seeds 0:10000`.
One test is a slice of them, so that `-n 2` spreads them over two cores. NIGHTSHIFT_SEEDS=A or A:B replaces the random ones.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.rows import Nature
from tests.simulation.runner import PARTS, random_part, run_batch
from tests.simulation.scenario import EVENTS, draw
from tests.simulation.world import Report, simulate

pytestmark = pytest.mark.simulation

GATE_SEEDS = range(2_500)
SLICE = 250
RANDOM = 250


def slices(seeds: range) -> list[range]:
    return [seeds[at : at + SLICE] for at in range(0, len(seeds), SLICE)]


def must_keep_every_invariant(seeds: range) -> None:
    outcomes = run_batch(list(seeds), frozenset())

    failed = [outcome for _, outcome in outcomes if isinstance(outcome, str)]
    hint = f"{len(failed)} failed; to see one: PYTHONPATH=plugins python -m tests.simulation --seed N --trace"
    assert not failed, "\n".join([*failed[:5], hint])


@pytest.mark.gate
@pytest.mark.parametrize("seeds", slices(GATE_SEEDS), ids=lambda seeds: f"from-{seeds.start}")
def test_every_schedule_keeps_every_invariant(seeds: range) -> None:
    must_keep_every_invariant(seeds)


@pytest.mark.parametrize("part", range(PARTS))
def test_random_schedules_keep_every_invariant(part: int) -> None:
    must_keep_every_invariant(random_part(RANDOM, part))


@pytest.mark.gate
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(972004034666, id="three rows that hang to the end are no run without end"),
        pytest.param(56356420263, id="a worker that is frozen while it ends has no time left to save rows"),
        pytest.param(694128435660, id="a canary that could not be sent is not sent once its engine has answered"),
        pytest.param(700571, id="a canary that fails while its engine answers another request says nothing of it"),
        pytest.param(703008, id="a worker that was frozen as it ended, and told to drain then, has no time left either"),
        pytest.param(872791435248, id="probes that wait for memory while the engine is dead are with it when it is back"),
    ],
)
def test_a_schedule_that_once_failed_keeps_every_invariant(seed: int) -> None:
    must_keep_every_invariant(range(seed, seed + 1))


@pytest.mark.gate
def test_what_is_worth_simulating_happens() -> None:
    seen: Counter[str] = Counter()
    for _, outcome in run_batch(list(range(300)), frozenset()):
        assert isinstance(outcome, Report), outcome
        seen += outcome.seen

    wanted = {
        *(set(EVENTS) - {"helper"}),
        *(f"store: {fate}" for fate in ("lost_reply", "never", "late", "resent", "slow", "outage", "read", "list")),
        *(
            f"engine: {outcome}"
            for outcome in ("Replied", "Refused", "Failed", "Busy", "Gone", "Unsent", "aborted", "garbage", "deaths")
        ),
        "creates that found the object there",
        "chunks with rows of earlier attempts",
        "partials",
        "canaries",
    }
    assert wanted - set(seen) == set()


@pytest.mark.gate
def test_every_kind_of_bad_row_is_drawn() -> None:
    assert {nature for seed in range(100) for nature in draw(seed).rows.natures.values()} == set(Nature)


@pytest.mark.gate
@pytest.mark.parametrize("seed", [20, 21, 22, 23, 24])
def test_a_seed_is_one_schedule(seed: int) -> None:
    first, again = simulate(seed, tracing=True), simulate(seed, tracing=True)

    assert first.trace == again.trace
    assert len(first.trace) > 10
