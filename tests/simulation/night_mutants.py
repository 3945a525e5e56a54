"""Keeping the deadline with one mistake in it: what `nights` must notice.

night_mutants.json names a night for each, as mutants.json does for the driver's (`mutants`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from nightshift.jobset.fleet import deadline, forecast
from nightshift.jobset.fleet.forecast import Expected, Fleet, Forecast, Watch
from tests.simulation.mutants import Mutant
from tests.simulation.nights import simulate
from tests.simulation.replaced import Change

SEEDS_FILE: Final = Path(__file__).with_suffix(".json")


def seeds() -> dict[str, int]:
    return dict(json.loads(SEEDS_FILE.read_text()))


def search(tried: range) -> Iterator[tuple[Mutant, int | None, str]]:
    """For each mutant the first night that catches it."""
    for mutant in NIGHT_MUTANTS:
        found = ((seed, each) for seed in tried for each in mutant.broken(simulate, seed))
        seed, what = next(found, (None, "NOT CAUGHT"))
        yield mutant, seed, what


def _starting_counts_as_lost() -> tuple[Change, ...]:
    expected = Watch._expected

    def impatient(self: Watch, name: str, fleet: Fleet, now: float) -> Expected:
        return expected(self, name, replace(fleet, ready_at=0.0), now)

    return ((Watch, "_expected", impatient),)


def _starts_at_once() -> tuple[Change, ...]:
    missing = forecast.missing

    def hopeful(found: Forecast, within_s: float, ready_in_s: float) -> int | None:
        return missing(found, within_s, 0.0)

    return ((deadline, "missing", hopeful),)


def _again_and_again() -> tuple[Change, ...]:
    """Also while the last help is still on its way."""
    decide = deadline.decide

    def hasty(found: Forecast, *arguments: Any) -> deadline.Keeping:
        fleets = {name: replace(fleet, ready_in_s=0.0) for name, fleet in found.fleets.items()}
        return decide(replace(found, fleets=fleets), *arguments)

    return ((deadline, "decide", hasty),)


def _asks_for_everything() -> tuple[Change, ...]:
    decide = deadline.decide

    def greedy(found: Forecast, asked: Any, terms: deadline.Terms) -> deadline.Keeping:
        return decide(found, asked, replace(terms, room=None))

    return ((deadline, "decide", greedy),)


def _starts_twice_as_fast() -> tuple[Change, ...]:
    """Help is sized right, and comes even if it starts for longer than it works."""
    decide, missing = deadline.decide, forecast.missing

    def hasty(found: Forecast, asked: Any, terms: deadline.Terms) -> deadline.Keeping:
        return decide(found, asked, replace(terms, start_up_s=terms.start_up_s / 2))

    def sized(found: Forecast, within_s: float, ready_in_s: float) -> int | None:
        return missing(found, within_s, 2 * ready_in_s)

    return ((deadline, "decide", hasty), (deadline, "missing", sized))


def _believes_too_little() -> tuple[Change, ...]:
    seen = Watch._seen

    def low(self: Watch, *arguments: Any) -> float:
        return 0.7 * seen(self, *arguments)

    return ((Watch, "_seen", low),)


def _of(*names: str) -> frozenset[str]:
    return frozenset(names)


NIGHT_MUTANTS: Final = (
    Mutant("helps at the first look that is late", _of("hold"), lambda: ((deadline, "HOLD_S", 0.0),)),
    Mutant(
        "late and in time are one line", _of("hold", "size"), lambda: ((forecast, "IN_TIME", 1.0), (deadline, "IN_TIME", 1.0))
    ),
    Mutant("workers that start are lost", _of("hold", "starting", "needless"), _starting_counts_as_lost),
    Mutant("help starts at once", _of("size", "vain"), _starts_at_once),
    Mutant("help may start for longer than it works", _of("vain"), _starts_twice_as_fast),
    Mutant("helps again while help starts", _of("starting", "calm"), _again_and_again),
    Mutant("helps without end", _of("bound"), lambda: (*_again_and_again(), (deadline, "HELPS_MAX", 99))),
    Mutant("asks for more than the quota", _of("room"), _asks_for_everything),
    Mutant(
        "falling back drops workers of a late night", _of("direction"), lambda: ((deadline, "careful", lambda each, *_: each),)
    ),
    Mutant("the plan's speed is believed for ever", _of("speed"), lambda: ((forecast, "PRIOR_S", 1e9),)),
    Mutant("workers count as slower than they are", _of("needless"), _believes_too_little),
)
