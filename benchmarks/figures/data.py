"""What batching.json holds, and what the plots show of it.

Standard library alone: the environment that draws has little else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
FILE: Final = Path(__file__).with_name("batching.json")
IMAGES: Final = ROOT / "docs" / "images"

STATIC: Final = "static"
CONTINUOUS: Final = "continuous"
WAYS: Final = (STATIC, CONTINUOUS)


@dataclass(frozen=True)
class Generated:
    """One run of chat answers. way: one of WAYS. in_flight: requests at once, or in a batch. seconds: the whole run's.

    p50_s, p99_s: from a request to its own answer. usable_s: p99 from a request to the moment when its client goes on with the
    answer: with static batching, that is when its batch has ended.
    """

    way: str
    in_flight: int
    rows: int
    tokens: int
    seconds: float
    p50_s: float
    p99_s: float
    usable_s: float

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


@dataclass(frozen=True)
class Embedded:
    """One run of embeddings. seconds: the whole run's. p50_s, p99_s: of a request."""

    rows_per_request: int
    in_flight: int
    rows: int
    seconds: float
    p50_s: float
    p99_s: float

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds


@dataclass(frozen=True)
class Figures:
    """Everything that was measured, each run by itself. about: machine, date, commit, engine, models and sizes."""

    about: dict[str, Any]
    generated: tuple[Generated, ...]
    embedded: tuple[Embedded, ...]

    @property
    def sizes(self) -> list[int]:
        """Requests in flight of the chat runs, in order."""
        return sorted({run.in_flight for run in self.generated})

    @property
    def rows_per_request(self) -> list[int]:
        return sorted({run.rows_per_request for run in self.embedded})

    @property
    def in_flight(self) -> list[int]:
        """Requests in flight of the embeddings, in order."""
        return sorted({run.in_flight for run in self.embedded})

    def chat(self, way: str, in_flight: int, what: str) -> float:
        """The median of a figure of the runs of one cell. what: an attribute of Generated."""
        runs = [run for run in self.generated if (run.way, run.in_flight) == (way, in_flight)]
        return median(float(getattr(run, what)) for run in runs)

    def vectors(self, rows_per_request: int, in_flight: int, what: str) -> float:
        """The same for embeddings. what: an attribute of Embedded."""
        runs = [run for run in self.embedded if (run.rows_per_request, run.in_flight) == (rows_per_request, in_flight)]
        return median(float(getattr(run, what)) for run in runs)


def load(file: Path = FILE) -> Figures:
    body = json.loads(file.read_text())
    generated = tuple(Generated(**run) for run in body["generated"])
    return Figures(body["about"], generated, tuple(Embedded(**run) for run in body["embedded"]))


def save(figures: Figures, file: Path = FILE) -> None:
    """A run a line, so that a diff of two measurements can be read."""
    lines = ['{"about": ' + json.dumps(figures.about, indent=1), *_runs("generated", figures.generated)]
    file.write_text("\n".join([*lines, *_runs("embedded", figures.embedded), "}"]) + "\n")


def _runs(name: str, runs: tuple[Generated, ...] | tuple[Embedded, ...]) -> Iterator[str]:
    yield f', "{name}": ['
    for run in runs:
        yield json.dumps(asdict(run)) + ("," if run is not runs[-1] else "")
    yield "]"


def digest(file: Path = FILE) -> str:
    """Each plot carries it, so that one of other figures is noticed."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


@dataclass(frozen=True)
class Line:
    """name: the id of its path in the SVG. points: x and y, in the panel's units."""

    name: str
    label: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Panel:
    """One pair of axes. Both are logarithmic."""

    title: str
    x: str
    y: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Plot:
    """file: its name in docs/images."""

    file: str
    panels: tuple[Panel, ...]


def plots(figures: Figures) -> list[Plot]:
    return [_chat_plot(figures), _vectors_plot(figures)]


def _chat_plot(figures: Figures) -> Plot:
    def line(way: str, what: str, label: str) -> Line:
        return Line(f"{way}-{what}", label, _points(figures.sizes, lambda size: figures.chat(way, size, what)))

    rate = Panel(
        "Throughput",
        "requests in flight",
        "tokens per second",
        (line(CONTINUOUS, "tokens_per_s", "continuous"), line(STATIC, "tokens_per_s", "static")),
    )
    latency = Panel(
        "Latency",
        "requests in flight",
        "seconds",
        (
            line(CONTINUOUS, "p99_s", "continuous, p99 of a request"),
            line(STATIC, "p99_s", "static, p99 of a request"),
            line(STATIC, "usable_s", "static, p99 until its batch ends"),
            line(CONTINUOUS, "p50_s", "continuous, median"),
        ),
    )
    return Plot("batching-chat.svg", (rate, latency))


def _vectors_plot(figures: Figures) -> Plot:
    def rates(flight: int) -> Line:
        points = _points(figures.rows_per_request, lambda rows: figures.vectors(rows, flight, "rows_per_s"))
        return Line(f"rate-{flight}", _flights(flight), points)

    def against(flight: int) -> Line:
        points = [
            (figures.vectors(rows, flight, "rows_per_s"), figures.vectors(rows, flight, "p99_s"))
            for rows in figures.rows_per_request
        ]
        return Line(f"latency-{flight}", _flights(flight), tuple(points))

    rate = Panel("Throughput", "rows per request", "rows per second", tuple(map(rates, figures.in_flight)))
    latency = Panel("What it costs", "rows per second", "p99 of a request, seconds", tuple(map(against, figures.in_flight)))
    return Plot("batching-embeddings.svg", (rate, latency))


def _points(places: list[int], value: Callable[[int], float]) -> tuple[tuple[float, float], ...]:
    return tuple((float(place), value(place)) for place in places)


def _flights(count: int) -> str:
    return f"{count} request{'s' if count > 1 else ''} in flight"
