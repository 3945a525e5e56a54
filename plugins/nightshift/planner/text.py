"""The table of a plan as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nightshift.fields.text import minutes
from nightshift.planner.plan import Row


def lines(rows: Iterable[Row], currency: str = "") -> Iterator[str]:
    """A head and a line for each row; ``*`` marks the plan. After them, where each profile's speed is from.

    currency: of the costs, which are of whole machines.
    """
    rows = list(rows)
    yield _line("", "profile", "workers", "finish", "acc. hours", f"cost {currency}".rstrip(), "fits")
    for row in rows:
        price = "?" if row.finish_s is None else "no price" if row.cost is None else f"{row.cost:,.2f}"
        hours = "?" if row.hours is None else f"{row.hours:,.1f}"
        finish = "?" if row.finish_s is None else minutes(row.finish_s)
        fits = "unknown" if row.fits is None else "yes" if row.fits else f"no: {row.problem}"
        workers = f"{row.workers:,}" if row.workers else "-"
        yield _line("*" if row.chosen else "", row.profile, workers, finish, hours, price, fits)
    speeds = {row.profile: row.speed for row in rows if row.speed}
    for words in dict.fromkeys(speeds.values()):
        yield f"{', '.join(profile for profile, each in speeds.items() if each == words)}: {words}"


def _line(star: str, profile: str, workers: str, finish: str, hours: str, cost: str, fits: str) -> str:
    return f"{star:1} {profile:28} {workers:>8} {finish:>10} {hours:>11} {cost:>11} {fits}".rstrip()
