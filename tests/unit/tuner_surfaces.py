"""Engines whose speed is known everywhere, drawn by seed, for the search of a tune to find its way on.

Five families. The best point is never a corner of the grid nor the default. The search does not read this file, and this file
does not read the search.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from nightshift.trial.outcomes import Cause
from nightshift.trial.tune.points import AXES, Point, Space

TOKENS: Final = tuple(2**power for power in range(9, 17))
SEQS: Final = tuple(2**power for power in range(3, 11))
NOISE: Final = (0.01, 0.03)
"""Relative standard deviation of a trial: drawn between these."""


@dataclass(frozen=True)
class Surface:
    """rate(point): rows a second without noise. fails_at_once, fails_under_load: the cause if it does."""

    space: Space
    rates: Mapping[Point, float]
    fails_at_once: Mapping[Point, Cause] = field(default_factory=dict)
    fails_under_load: Mapping[Point, Cause] = field(default_factory=dict)
    noise: float = 0.03
    seed: int = 0

    def sound(self, point: Point) -> bool:
        return point not in self.fails_at_once and point not in self.fails_under_load

    @property
    def best(self) -> Point:
        """What an exhaustive search without noise would choose."""
        return max((point for point in points(self.space) if self.sound(point)), key=lambda point: self.rates[point])

    def share(self, point: Point) -> float:
        """Of the best one's rate; 0 for a point that fails."""
        return self.rates[point] / self.rates[self.best] if self.sound(point) else 0.0

    def measured(self, point: Point, number: int) -> float | Cause:
        """The trial with this number."""
        if (cause := self.fails_at_once.get(point)) is not None:
            return cause
        return self.rates[point] * math.exp(random.Random(f"{self.seed}-{number}").gauss(0, self.noise))


def _grid(rng: random.Random) -> Space:
    default = Point(TOKENS[rng.randint(1, 3)], SEQS[rng.randint(1, 5)])
    return Space(default, {"max_num_batched_tokens": TOKENS, "max_num_seqs": SEQS})


def points(space: Space) -> list[Point]:
    """All of them."""
    return list(space.around(space.default, AXES))


def _bump(x: float, y: float, at: tuple[float, float], widths: tuple[float, float], turn: float = 0.0) -> float:
    dx, dy = x - at[0], y - at[1]
    u, v = dx * math.cos(turn) + dy * math.sin(turn), -dx * math.sin(turn) + dy * math.cos(turn)
    return math.exp(-((u / widths[0]) ** 2 + (v / widths[1]) ** 2) / 2)


def _beyond(space: Space, rng: random.Random, low: float, high: float, cause: Cause) -> dict[Point, Cause]:
    """The points above a straight line: what a memory of some size does not hold."""
    slope, least = rng.uniform(0.5, 1.5), rng.uniform(low, high)
    found = {}
    for point in points(space):
        x, y = space.index(point)[:2]
        if x * slope + y > least and point != space.default:
            found[point] = cause
    return found


def cliff(rng: random.Random, space: Space) -> Surface:
    """The more, the faster, up to where the engine has not enough memory to start."""
    sx, sy = rng.uniform(1.5, 4.0), rng.uniform(1.5, 4.0)

    def rate(x: float, y: float) -> float:
        return (1 - math.exp(-(x + 1) / sx)) * (1 - math.exp(-(y + 1) / sy))

    return Surface(space, _rates(space, rate), fails_at_once=_beyond(space, rng, 7.0, 11.0, Cause.OUT_OF_MEMORY))


def ridge(rng: random.Random, space: Space) -> Surface:
    """Both must grow together."""
    at = (rng.uniform(1.5, 6.0), rng.uniform(1.5, 6.0))
    widths, turn, floor = (rng.uniform(3.0, 5.0), rng.uniform(0.9, 1.5)), rng.uniform(0.5, 1.1), rng.uniform(0.2, 0.5)
    return Surface(space, _rates(space, lambda x, y: floor + (1 - floor) * _bump(x, y, at, widths, turn)))


def two_peaks(rng: random.Random, space: Space) -> Surface:
    """A lower one besides the best."""
    while True:
        one, other = ((rng.uniform(0.5, 6.5), rng.uniform(0.5, 6.5)) for _ in range(2))
        if math.dist(one, other) >= 3.5:
            break
    lower, floor = rng.uniform(0.7, 0.9), rng.uniform(0.3, 0.6)
    widths = [(rng.uniform(1.2, 2.0), rng.uniform(1.2, 2.0)) for _ in range(2)]

    def rate(x: float, y: float) -> float:
        return floor + (1 - floor) * max(_bump(x, y, one, widths[0]), lower * _bump(x, y, other, widths[1]))

    return Surface(space, _rates(space, rate))


def flat(rng: random.Random, space: Space) -> Surface:
    """Nothing matters beyond the noise."""
    phase = rng.uniform(0, 6)
    return Surface(space, _rates(space, lambda x, y: 1 + 0.006 * math.sin(1.3 * x + phase) * math.cos(y)))


def load(rng: random.Random, space: Space) -> Surface:
    """The fastest ones start and pass, and fail under the longest rows."""
    at = (rng.uniform(3.0, 6.5), rng.uniform(3.0, 6.5))
    widths, floor = (rng.uniform(2.0, 3.5), rng.uniform(2.0, 3.5)), rng.uniform(0.2, 0.5)
    cause = rng.choice([Cause.OUT_OF_MEMORY, Cause.PREEMPTED, Cause.KV_CACHE_FULL])
    return Surface(
        space,
        _rates(space, lambda x, y: floor + (1 - floor) * _bump(x, y, at, widths)),
        fails_under_load=_beyond(space, rng, 5.0, 9.0, cause),
    )


def _rates(space: Space, rate: Callable[[float, float], float]) -> dict[Point, float]:
    return {point: 100 * rate(*space.index(point)[:2]) for point in points(space)}


FAMILIES: Final[Mapping[str, Callable[[random.Random, Space], Surface]]] = {
    each.__name__: each for each in (cliff, ridge, two_peaks, flat, load)
}


def drawn(family: str, seed: int) -> Surface:
    """The surface of this seed whose best point is neither a corner nor the default."""
    rng = random.Random(f"{family}-{seed}")
    while True:
        space = _grid(rng)
        made = FAMILIES[family](rng, space)
        surface = Surface(made.space, made.rates, made.fails_at_once, made.fails_under_load, rng.uniform(*NOISE), seed)
        place = surface.space.index(surface.best)[:2]
        corner = all(each in (0, 7) for each in place)
        if surface.best != space.default and not corner and surface.sound(space.default):
            return surface


def exhaustive(surface: Surface) -> int:
    """Trials of a search that measures each point once, and soaks from the fastest down until one holds."""
    started = [point for point in points(surface.space) if point not in surface.fails_at_once]
    fastest_first = sorted(started, key=lambda point: -surface.rates[point])
    return len(points(surface.space)) + 1 + fastest_first.index(surface.best)
