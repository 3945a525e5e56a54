"""Pictures of numbers as SVG, drawn by the server: they need no script, follow the page's colours, and are read out as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isclose
from typing import Any, Final

from nightshift.plugin.pages.words import number

WIDTH: Final = 320
HEIGHT: Final = 96
BINS: Final = 24
"""Of the axis that two runs share."""
SAME: Final = 1e-5
"""Values whose relative difference is smaller are one value: norms of unit vectors differ by what floats are rounded."""
DIGITS_MOST: Final = 9
"""After the point, of a number at an axis."""


@dataclass(frozen=True)
class Bar:
    """In the units of the picture's view box. value: what its tooltip says."""

    x: float
    y: float
    width: float
    height: float
    value: str


@dataclass(frozen=True)
class Histograms:
    """A run's histogram as bars, and the earlier run's as a line over the same axis, both as shares of their answers.

    line: the points of a polyline; empty without an earlier run. ends: of the axis, as texts that differ; one if all values are
    the same. mean, mean_before: likewise as texts.
    """

    of: str
    bars: tuple[Bar, ...]
    line: str
    ends: tuple[str, ...]
    mean: str
    mean_before: str | None


def histograms(now: Mapping[str, Any], before: Mapping[str, Any] | None) -> Histograms:
    """From the JSON of two `nightshift.status.distributions.Histogram` of the same thing."""
    both = [now] if before is None else [now, before]
    least, most = min(each["least"] for each in both), max(each["most"] for each in both)
    if isclose(least, most, rel_tol=SAME):
        least = most = float(f"{now['mean']:.4g}")
        both = [{**each, "least": least, "most": most, "counts": [sum(each["counts"])]} for each in both]
    say = _saying(least, most)
    shares = [_spread(each, least, most) for each in both]
    top = max(max(each) for each in shares) or 1.0
    wide, step = WIDTH / BINS, (most - least) / BINS
    bars = tuple(
        Bar(
            round(place * wide, 2),
            round(HEIGHT * (1 - share / top), 2),
            round(wide - 1, 2),
            round(HEIGHT * share / top, 2),
            f"{least + place * step:,.6g} to {least + (place + 1) * step:,.6g}: {share:.1%}" if step else f"{share:.1%}",
        )
        for place, share in enumerate(shares[0])
        if share
    )
    line = "" if before is None else _line(shares[1], top, wide)
    ends = (say(least), say(most)) if most > least else (f"all {say(least)}",)
    return Histograms(str(now["of"]), bars, line, ends, say(now["mean"]), say(before["mean"]) if before else None)


def _saying(least: float, most: float) -> Callable[[float], str]:
    """How the numbers of an axis are written: as everywhere, or with as many digits as its ends need to differ."""
    if most == least:
        return lambda value: number(float(f"{value:.4g}"))
    if float(number(least).replace(",", "")) != float(number(most).replace(",", "")):
        return number
    digits = next((each for each in range(3, DIGITS_MOST) if f"{least:.{each}f}" != f"{most:.{each}f}"), DIGITS_MOST)
    return lambda value: f"{value:,.{digits}f}"


def _spread(one: Mapping[str, Any], least: float, most: float) -> list[float]:
    """The shares of its values in `BINS` bins of the common axis. Values count as spread evenly over their own bin."""
    found = [0.0] * BINS
    total = sum(one["counts"]) or 1
    scale = BINS / (most - least) if most > least else 0.0
    width = (one["most"] - one["least"]) / len(one["counts"])
    for place, count in enumerate(one["counts"]):
        start = (one["least"] + place * width - least) * scale
        end = start + width * scale
        first = min(int(start), BINS - 1)
        if end - first <= 1:
            found[first] += count / total
            continue
        for each in range(first, min(ceil(end), BINS)):
            found[each] += count / total * (min(end, each + 1) - max(start, each)) / (end - start)
    return found


def _line(shares: Sequence[float], top: float, wide: float) -> str:
    """Steps, as the points of a polyline."""
    points = []
    for place, share in enumerate(shares):
        y = round(HEIGHT * (1 - share / top), 2)
        points += [f"{round(place * wide, 2)},{y}", f"{round((place + 1) * wide, 2)},{y}"]
    return " ".join(points)


@dataclass(frozen=True)
class LabelShare:
    """A value's share of the answers, now and before. None before: no earlier run, or none of its answers were labels."""

    value: str
    count: int
    share: float
    before: float | None


def labels(now: Sequence[Mapping[str, Any]], before: Sequence[Mapping[str, Any]] | None) -> list[LabelShare]:
    """From the JSON of `nightshift.status.distributions.Share`: the values of both runs, the most frequent first."""
    then = None if before is None else {each["value"]: each["share"] for each in before}
    found = [
        LabelShare(each["value"], each["count"], each["share"], None if then is None else then.get(each["value"], 0.0))
        for each in now
    ]
    gone = [] if then is None else [value for value in then if value not in {each["value"] for each in now}]
    return found + [LabelShare(value, 0, 0.0, then[value]) for value in gone if then is not None]
