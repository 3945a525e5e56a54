"""Pictures of numbers as SVG, drawn by the server: they need no script, follow the page's colours, and are read out as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

WIDTH: Final = 320
HEIGHT: Final = 96


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

    line: the points of a polyline; empty without an earlier run. least, most: of the axis.
    """

    of: str
    bars: tuple[Bar, ...]
    line: str
    least: float
    most: float
    mean: float
    mean_before: float | None


def histograms(now: Mapping[str, Any], before: Mapping[str, Any] | None) -> Histograms:
    """From the JSON of two `nightshift.status.distributions.Histogram` of the same thing."""
    both = [now] if before is None else [now, before]
    least, most = min(each["least"] for each in both), max(each["most"] for each in both)
    span = (most - least) or 1.0
    dense = [_density(each, span) for each in both]
    top = max(max(each, default=0.0) for each in dense) or 1.0
    bars = []
    total = sum(now["counts"]) or 1
    for (start, width), high, count in zip(_places(now, least, span), dense[0], now["counts"], strict=True):
        low, end = least + start * span, least + (start + width) * span
        bars.append(
            Bar(
                round(start * WIDTH, 2),
                round(HEIGHT * (1 - high / top), 2),
                round(max(1.0, width * WIDTH - 1), 2),
                round(HEIGHT * high / top, 2),
                f"{low:,.4g} to {end:,.4g}: {count:,} ({count / total:.1%})",
            )
        )
    line = "" if before is None else _line(_places(before, least, span), dense[1], top)
    return Histograms(str(now["of"]), tuple(bars), line, least, most, now["mean"], before["mean"] if before else None)


def _places(one: Mapping[str, Any], least: float, span: float) -> list[tuple[float, float]]:
    """Start and width of each bin as shares of the axis. A histogram of one value has one bin, as wide as a twentieth."""
    bins = len(one["counts"])
    width = (one["most"] - one["least"]) / span / bins or 0.05
    first = min((one["least"] - least) / span, 1 - width * bins)
    return [(first + place * width, width) for place in range(bins)]


def _density(one: Mapping[str, Any], span: float) -> list[float]:
    """Share of the values per width of the axis, so that bins of different widths compare."""
    total = sum(one["counts"]) or 1
    width = (one["most"] - one["least"]) / span / len(one["counts"]) or 0.05
    return [count / total / width for count in one["counts"]]


def _line(places: Sequence[tuple[float, float]], dense: Sequence[float], top: float) -> str:
    points = []
    for (start, width), high in zip(places, dense, strict=True):
        y = round(HEIGHT * (1 - high / top), 2)
        points += [f"{round(start * WIDTH, 2)},{y}", f"{round((start + width) * WIDTH, 2)},{y}"]
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
