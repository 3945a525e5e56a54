"""A Gaussian process over the points of a grid: what is to be expected where nothing was measured. Pure, in plain Python.

The number of trials is small (each takes minutes), so a matrix of some dozens of rows is all there is to solve. Rates are
compared by their logarithms: a difference of 0.05 is five percent.

Source: Rasmussen, Williams, "Gaussian Processes for Machine Learning" (2006), algorithm 2.1 and section 5.4; expected
improvement: Jones, Schonlau, Welch, "Efficient Global Optimization of Expensive Black-Box Functions" (1998).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

Place = tuple[int, ...]
"""A point's index on each axis."""

LENGTHS: Final = (1.0, 1.5, 2.5, 5.0)
"""Steps of the grid over which rates are alike; each axis takes the one under which the trials are most likely."""
LENGTH: Final = 1.5
"""Before anything is known: a rate says little of another that is more than three doublings away."""
SPREAD_LEAST: Final = 0.10
"""Standard deviation of the rates of a space, at least: else a few alike ones would end the search."""
_SWEEPS: Final = 2


@dataclass(frozen=True)
class Believed:
    """A logarithm of a rate, and its standard deviation."""

    mean: float
    deviation: float

    def gain_over(self, best: float) -> float:
        """Expected improvement: by how much it is above `best` on average, if what is below counts as none."""
        if self.deviation <= 0:
            return max(0.0, self.mean - best)
        z = (self.mean - best) / self.deviation
        density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        return (self.mean - best) * (1 + math.erf(z / math.sqrt(2))) / 2 + self.deviation * density


class Surrogate:
    """places: of the trials. values: logarithms of their rates. noise: standard deviation of one trial."""

    def __init__(self, places: Sequence[Place], values: Sequence[float], noise: float) -> None:
        self._places = list(places)
        self._noise = noise
        self._mean = sum(values) / len(values)
        self._values = [value - self._mean for value in values]
        variance = sum(value * value for value in self._values) / len(values) - noise * noise
        self._spread = max(SPREAD_LEAST, math.sqrt(max(0.0, variance)))
        self._lengths = self._fitted()
        self._lower = self._factor(self._lengths)
        self._weights = _backward(self._lower, _forward(self._lower, self._values))

    def at(self, place: Place) -> Believed:
        across = [self._alike(place, each, self._lengths) for each in self._places]
        mean = self._mean + sum(a * b for a, b in zip(across, self._weights, strict=True))
        solved = _forward(self._lower, across)
        variance = self._spread**2 - sum(each * each for each in solved)
        return Believed(mean, math.sqrt(max(0.0, variance)))

    def _fitted(self) -> tuple[float, ...]:
        """Lengths that make the trials most likely; one axis after the other."""
        varying = [axis for axis in range(len(self._places[0])) if len({place[axis] for place in self._places}) > 1]
        found = [LENGTH] * len(self._places[0])
        for _ in range(_SWEEPS):
            for axis in varying:
                tried = [(self._likelihood((*found[:axis], length, *found[axis + 1 :])), length) for length in LENGTHS]
                found[axis] = max(tried)[1]
        return tuple(found)

    def _likelihood(self, lengths: Sequence[float]) -> float:
        lower = self._factor(lengths)
        solved = _forward(lower, self._values)
        # A weak belief in `LENGTH`, so that three trials do not decide it.
        prior = sum(math.log(length / LENGTH) ** 2 for length in lengths)
        return -sum(each * each for each in solved) / 2 - sum(math.log(lower[i][i]) for i in range(len(lower))) - prior

    def _factor(self, lengths: Sequence[float]) -> list[list[float]]:
        """The lower Cholesky factor of the trials' covariances."""
        lower: list[list[float]] = []
        for i, place in enumerate(self._places):
            row: list[float] = []
            for j in range(i):
                covariance = self._alike(place, self._places[j], lengths)
                row.append((covariance - sum(a * b for a, b in zip(row, lower[j], strict=False))) / lower[j][j])
            own = self._spread**2 + self._noise**2 - sum(each * each for each in row)
            row.append(math.sqrt(max(1e-12, own)))
            lower.append(row)
        return lower

    def _alike(self, one: Place, other: Place, lengths: Sequence[float]) -> float:
        """Matern 5/2."""
        distance = math.sqrt(5 * sum(((a - b) / length) ** 2 for a, b, length in zip(one, other, lengths, strict=True)))
        return self._spread**2 * (1 + distance + distance * distance / 3) * math.exp(-distance)


def _forward(lower: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    found: list[float] = []
    for row, value in zip(lower, values, strict=True):
        found.append((value - sum(a * b for a, b in zip(row, found, strict=False))) / row[-1])
    return found


def _backward(lower: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    found = list(values)
    for i in reversed(range(len(lower))):
        found[i] = (found[i] - sum(lower[j][i] * found[j] for j in range(i + 1, len(lower)))) / lower[i][i]
    return found
