"""The table of a plan as text, and why a run does not fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nightshift.fields.text import minutes
from nightshift.planner.plan import NO_WAY, Refused, Row


def lines(rows: Iterable[Row], deadline_s: float, currency: str = "") -> Iterator[str]:
    """A head and a line for each row; ``*`` marks the plan, if it fits. After them, why rows do not fit that end in time, each
    reason once, and where each profile's speed is from.

    currency: of the costs, which are of whole machines.
    """
    rows = list(rows)
    unlike = dict.fromkeys(row.problem for row in rows if row.problem and not _late(row, deadline_s))
    reasons = {words: number for number, words in enumerate(unlike, 1)}
    yield _line("", "profile", "workers", "finish", "acc. hours", f"cost {currency}".rstrip(), "fits")
    for row in rows:
        price = "?" if row.finish_s is None else "no price" if row.cost is None else f"{row.cost:,.2f}"
        hours = "?" if row.hours is None else f"{row.hours:,.1f}"
        finish = "?" if row.finish_s is None else minutes(row.finish_s)
        fits = (
            "unknown"
            if row.fits is None
            else "yes"
            if row.fits
            else "no, too late"
            if _late(row, deadline_s)
            else f"no ({reasons[row.problem]})"
        )
        workers = f"{row.workers:,}" if row.workers else "-"
        yield _line("*" if row.chosen and row.fits is not False else "", row.profile, workers, finish, hours, price, fits)
    for words, number in reasons.items():
        yield f"({number}) {words}"
    speeds = {row.profile: row.speed for row in rows if row.speed}
    for words in dict.fromkeys(speeds.values()):
        yield f"{', '.join(profile for profile, each in speeds.items() if each == words)}: {words}"


def _late(row: Row, deadline_s: float) -> bool:
    return row.finish_s is not None and row.finish_s > deadline_s


def refusal(error: Refused) -> Iterator[str]:
    """Why a run does not fit, and what would, a line for each."""
    yield "The run does not fit:"
    yield from (f"  {problem}" for problem in error.problems)
    if error.ways:
        yield f"What would fit, {error.ranking}:"
        yield from (f"  {number}. {way.sentence}" for number, way in enumerate(error.ways, 1))
    elif error.searched:
        yield NO_WAY


def _line(star: str, profile: str, workers: str, finish: str, hours: str, cost: str, fits: str) -> str:
    return f"{star:1} {profile:28} {workers:>8} {finish:>10} {hours:>11} {cost:>11} {fits}".rstrip()
