"""The search of a tune on fifty engines of each family, drawn by seed: beside an exhaustive search, with a quarter of its
trials.

``python -m tests.simulation.test_tuner`` prints the table.
"""

from __future__ import annotations

import statistics

import pytest

from tests.unit.trial.test_search import searched
from tests.unit.tuner_surfaces import FAMILIES, drawn, exhaustive

pytestmark = pytest.mark.simulation

SEEDS = range(50)
GOOD = 0.95
FOUND = {"cliff": 50, "ridge": 50, "two_peaks": 46, "flat": 50, "load": 47}
"""In how many of them it is found. Of two peaks nearly as high, and where the fastest points fail only under load, a quarter of
the trials is sometimes too few."""
WORST = 0.88


def shares(family: str) -> tuple[list[float], float]:
    """Of the exhaustive best's rate, 0 if the chosen point fails under load; and the mean share of its trials."""
    found, used = [], []
    for seed in SEEDS:
        surface = drawn(family, seed)
        searcher, kept = searched(surface, exhaustive(surface) // 4)
        point = searcher.choice().point
        found.append(surface.share(point) if point else 0.0)
        used.append(len(kept) / exhaustive(surface))
    return found, statistics.mean(used)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_quarter_of_the_trials_finds_nearly_the_best(family: str) -> None:
    found, used = shares(family)

    assert used <= 0.25
    assert min(found) >= WORST, "0: a chosen point fails under load"
    assert sum(share >= GOOD for share in found) >= FOUND[family]


if __name__ == "__main__":
    for name in FAMILIES:
        each, used = shares(name)
        good = sum(share >= GOOD for share in each)
        print(f"| {name} | {statistics.median(each):.3f} | {min(each):.3f} | {good} of {len(each)} | {used:.2f} |")
