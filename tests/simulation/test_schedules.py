"""Ten thousand schedules of faults, each held to every invariant of the design (`check`).

One test is a slice of them, so that `-n 2` spreads them over two cores. NIGHTSHIFT_SEEDS=A:B runs others.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.simulation.rows import Nature
from tests.simulation.runner import run_batch
from tests.simulation.scenario import EVENTS, draw
from tests.simulation.world import Report, simulate

pytestmark = [pytest.mark.simulation, pytest.mark.timeout(1800)]

FIRST, LAST = map(int, os.environ.get("NIGHTSHIFT_SEEDS", "0:10000").split(":"))
SLICE = 500


@pytest.mark.parametrize("first", range(FIRST, LAST, SLICE))
def test_every_schedule_keeps_every_invariant(first: int) -> None:
    outcomes = run_batch(list(range(first, min(first + SLICE, LAST))), frozenset())

    failed = [outcome for _, outcome in outcomes if isinstance(outcome, str)]
    assert not failed, "\n".join(
        [*failed[:5], f"{len(failed)} failed; to see one: python -m tests.simulation --seed N --trace"]
    )


def test_what_is_worth_simulating_happens() -> None:
    seen: Counter[str] = Counter()
    for _, outcome in run_batch(list(range(300)), frozenset()):
        assert isinstance(outcome, Report), outcome
        seen += outcome.seen

    wanted = {
        *(set(EVENTS) - {"helper"}),
        *(f"store: {fate}" for fate in ("lost_reply", "never", "late", "resent", "slow", "outage", "read", "list")),
        *(f"engine: {outcome}" for outcome in ("Replied", "Refused", "Failed", "Busy", "Gone", "aborted", "garbage", "deaths")),
        "creates that found the object there",
        "chunks with rows of earlier attempts",
        "partials",
    }
    assert wanted - set(seen) == set()


def test_every_kind_of_bad_row_is_drawn() -> None:
    assert {nature for seed in range(100) for nature in draw(seed).rows.natures.values()} == set(Nature)


@pytest.mark.parametrize("seed", [20, 21, 22, 23, 24])
def test_a_seed_is_one_schedule(seed: int) -> None:
    first, again = simulate(seed, tracing=True), simulate(seed, tracing=True)

    assert first.trace == again.trace
    assert len(first.trace) > 10
