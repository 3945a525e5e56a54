"""What a sealed run cost, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from nightshift.planner.costs.bill import Bill, units

_WORDS: Final = {
    "useful": "useful work",
    "start_up": "start-up",
    "idle": "idle",
    "twice": "computed twice",
    "lost": "lost to kills",
}
"""What people call the parts of `nightshift.planner.costs.split`."""


def lines(found: Bill | None) -> list[str]:
    """Lines for a terminal. Without BigQuery: nobody has asked it."""
    if found is None:
        return []
    shown = list(_lines(found))
    return [f"{'' if number else 'cost':<10}{line}" for number, line in enumerate(shown)]


def _lines(found: Bill) -> Iterator[str]:
    said, currency = found.to_json(), found.prices.currency
    if found.total is None:
        yield f"unknown: there is no price for {', '.join(found.unpriced) or 'its machines'} ({found.prices.name})"
    else:
        each = [
            f"{said[key]:,.4f} {words}"
            for key, words in (("per_million_tokens", "per million tokens"), ("per_thousand_rows", "per thousand rows"))
            if said[key] is not None
        ]
        before = "" if found.estimate is None else f"; machines {_amount(found.machines)}, estimated {_amount(found.estimate)}"
        rates = f": {', '.join(each)}" if each else ""
        yield f"{_amount(found.total)} {currency} without BigQuery{rates}{before}"
    for rung in found.rungs:
        actual, estimated = rung.cost(rung.parts), rung.cost(rung.estimate)
        for name, parts, costs in (("", rung.parts, actual), (", estimated", rung.estimate, estimated)):
            if parts is not None:
                seconds = parts.to_json()
                shares = [
                    f"{words} {_each(seconds, costs, part)}"
                    for part, words in _WORDS.items()
                    if part == "useful" or seconds[part]
                ]
                yield f"{rung.profile or 'unknown profile'}{name}: {_each(seconds, costs, 'paid')} = {' + '.join(shares)}"
    if found.not_seen:
        yield f"without {found.not_seen:,} attempts that left no mark"


def _each(seconds: Mapping[str, float], costs: Mapping[str, int] | None, part: str) -> str:
    hours = f"{seconds[part] / 3600:,.2f} h"
    return hours if costs is None else f"{_amount(costs[part])} ({hours})"


def _amount(millionths: int | None) -> str:
    value = units(millionths) or 0.0
    return f"{value:,.2f}" if value >= 1 or value == 0 else f"{value:,.6f}".rstrip("0")
