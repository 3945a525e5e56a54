"""P16: how many deadlines of nights with 1,000 workers are kept, with and without more workers for those that will be late."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.report import Report
from tests.simulation.nights import HELPS, Night, World, draw

METHOD: Final = """
`tests/simulation/nights.py` simulates 1,000 workers in steps of a minute, under the real forecast, keeping and falling back.
Each night runs twice with the same weather and the same workers: with and without keeping the deadline (falling back is on in
both). The plan's speed is wrong by a factor between 0.5 and 2. Workers differ (0.7 to 1.3; 3 % at 0.3). In a Spot storm, each
worker is preempted 1 to 4 times an hour for 20 to 70 minutes, and there is room for 0 to 600. The quota is 1 to 3 times the
planned workers; deadlines are 2, 3 and 5 hours. Every night stops at its deadline, so a night that misses it costs less than
one that keeps it.
"""
NIGHTS: Final = 400


def measure(report: Report, folder: Path, quick: bool) -> None:
    seeds = range(40 if quick else NIGHTS)
    kept = [World(draw(seed), kept=True).run() for seed in seeds]
    without = [World(draw(seed), kept=False).run() for seed in seeds]
    lost = sum(before.met and not now.met for now, before in zip(kept, without, strict=True))
    report.add("deadlines kept, without it", _share(without))
    report.add("deadlines kept, with it", _share(kept), "more", _met(kept) > _met(without))
    report.add("deadlines that were kept without it, and are not with it", str(lost), "0", lost == 0)
    hours, before = sum(night.hours for night in kept), sum(night.hours for night in without)
    report.add("worker hours, with / without", f"{hours / before:.3f}")
    both = [(now.hours, then.hours) for now, then in zip(kept, without, strict=True) if now.met and then.met]
    report.add(
        "worker hours of nights that both keep, with / without", f"{sum(a for a, _ in both) / sum(b for _, b in both):.3f}"
    )
    most = max(len(night.helped) for night in kept)
    report.add("most helping JobSets in a night", str(most), f"<= {HELPS}", most <= HELPS)
    decisions = [night.decisions for night in kept]
    report.add("decisions in a night, mean / most", f"{sum(decisions) / len(decisions):.2f} / {max(decisions)}")
    taken = sum(bool(night.wrong) for night in kept)
    report.add("nights that go back and forth, or break another promise", str(taken), "0", taken == 0)
    roomy = [seed for seed in seeds if draw(seed).quota >= 2000 and draw(seed).truth > 0.6]
    with_room = [
        f"{_share([nights[seed] for seed in roomy])} {words}" for nights, words in ((kept, "with"), (without, "without"))
    ]
    roomy_words = f"the {len(roomy)} whose quota is twice the plan or more and whose workers are faster than 0.6 of it"
    report.note(f"{len(seeds)} nights; of {roomy_words}: {', '.join(with_room)}")


def _met(nights: Sequence[Night]) -> int:
    return sum(night.met for night in nights)


def _share(nights: Sequence[Night]) -> str:
    return f"{_met(nights) / len(nights):.1%}"
