"""Which trial comes next: a pure function of the trials so far, so a tune that was killed goes on where it was.

Trials are few and each takes minutes, so every one is asked where the most is expected of it:

1. Does it fit: the job's own point, first and always. If it fails, smaller ones until one does not.
2. Some points that are spread over tokens a step x sequences.
3. By a Gaussian process over all trials, what gains most by being known: the speed of another point, or whether a fast one
   holds the soak (the longest rows, as many at once as it allows). Tokens and sequences first, then API servers and engines,
   then parallelism (`nightshift.trial.tune.points.STAGES`), each until less than `GAIN_LEAST` is expected of it.
4. The soak of the fastest point, if it has not held one: no other is chosen. One that fails is ruled out, with all that need no
   less memory. Then repeats of the chosen point and of the default, until each has `REPEATS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from typing import Final

from nightshift.trial.outcomes import Cause
from nightshift.trial.tune.points import AXES, STAGES, Point, Space, needs_no_more, ruled_out, steps_over
from nightshift.trial.tune.surrogate import Surrogate

NOISE: Final = 0.03
"""Relative standard deviation of a trial, before there are repeats."""
NOISE_WEIGHT: Final = 4.0
"""For how many repeats that belief counts."""
GAIN_LEAST: Final = 0.002
"""Expected improvement, relative, below which nothing more is tried."""
REPEATS: Final = 3
"""Of the chosen point and of the default."""
KEPT_BACK: Final = 1
"""Trials at the end of a budget that are kept for the soak of the fastest point. A repeat gains less than one more point."""
SPREAD: Final = ((0.75, 0.75), (0.25, 0.75), (0.75, 0.25), (0.25, 0.25))
"""Where on the grid of the first stage the search looks first."""
APART: Final = 1.5
"""Steps of the grid: what is nearer to a trial than this is not spread."""
RISK: Final = 0.03
"""Share of the points that fail the soak for each step above one that held it, while none has failed."""
LEAST_CHANCE: Final = 1e-3
"""Of a point to hold the soak, so that its logarithm exists."""


class Measure(StrEnum):
    """What a trial does."""

    SPEED = "speed"
    """The rows of the sample, once."""
    SOAK = "soak"
    """The longest ones, as many at once as the point allows."""


@dataclass(frozen=True)
class Question:
    """What is to be tried."""

    point: Point
    measure: Measure


@dataclass(frozen=True)
class Outcome:
    """rate: rows a second of an accelerator, of a trial that did not fail. cause: why it failed, None if it did not."""

    rate: float = 0.0
    cause: Cause | None = None

    def __post_init__(self) -> None:
        if self.cause is None and not 0 < self.rate < math.inf:
            raise ValueError(f"{self.rate} is not the rate of a trial that went well")


@dataclass(frozen=True)
class Choice:
    """point: the fastest that has held the soak; None if there is none. ratio: of its rate to the default's, with the interval
    in which it is with 95 %; None if the default failed. better: than the default, beyond the noise."""

    point: Point | None
    ratio: float | None
    low: float | None
    high: float | None

    @property
    def better(self) -> bool:
        return self.low is not None and self.low > 1


class Searcher:
    """Asks and is told. The same trials, told in the same order, lead to the same question."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._rates: dict[Point, list[float]] = {}
        self._failed: dict[Point, Cause] = {}
        self._held: list[Point] = []
        self._told = 0
        self._fitted: tuple[int, Surrogate] | None = None

    def tell(self, question: Question, outcome: Outcome) -> None:
        """Raises ValueError for a point that is not in the space."""
        if question.point not in self._space:
            raise ValueError(f"{question.point} is not a point of this tune")
        self._told += 1
        if outcome.cause is not None:
            self._failed[question.point] = outcome.cause
        elif question.measure is Measure.SOAK:
            self._held.append(question.point)
        else:
            self._rates.setdefault(question.point, []).append(math.log(outcome.rate))

    def ask(self, left: int | None = None) -> Question | None:
        """What to try next; None if nothing is to be gained. left: how many more trials there is room for; None: enough."""
        room = math.inf if left is None else left
        if room <= 0:
            return None
        default = self._space.default
        if default not in self._rates and default not in self._failed:
            return Question(default, Measure.SPEED)
        if not self._sound():
            smaller = self._smaller()
            return None if smaller is None else Question(smaller, Measure.SPEED)
        if room > KEPT_BACK:
            if (point := self._spread()) is not None:
                return Question(point, Measure.SPEED)
            if (question := self._most_promising()) is not None:
                return question
        return self._last()

    def choice(self) -> Choice:
        """The fastest point that held the soak, as far as is known now."""
        believed = self._believed() if self._sound() else {}
        held = [point for point in believed if point in self._held]
        if not held:
            return Choice(None, None, None, None)
        best, default = max(held, key=lambda point: (believed[point], point)), self._rates.get(self._space.default)
        if best == self._space.default:
            return Choice(best, 1.0, 1.0, 1.0)
        if not default:
            return Choice(best, None, None, None)
        return Choice(best, *self._ratio(self._rates[best], default))

    def beside(self, point: Point, rate: float) -> tuple[float, float, float]:
        """The ratio of the rate of one trial to those of a measured point, with the interval in which it is with 95 %."""
        return self._ratio([math.log(rate)], self._rates[point])

    def _ratio(self, own: list[float], other: list[float]) -> tuple[float, float, float]:
        gap = fmean(own) - fmean(other)
        noise, freedom = self._noise_and_freedom()
        half = _student(freedom) * noise * math.sqrt(1 / len(own) + 1 / len(other))
        return math.exp(gap), math.exp(gap - half), math.exp(gap + half)

    def _sound(self) -> list[Point]:
        """Measured, and not ruled out."""
        return [point for point in self._rates if not self._out(point)]

    def _out(self, point: Point) -> bool:
        return any(ruled_out(point, failed, cause, self._space.default) for failed, cause in self._failed.items())

    @property
    def _tight(self) -> bool:
        """Whether memory is what ends the grid."""
        return any(cause.of_memory for cause in self._failed.values())

    def _noise_and_freedom(self) -> tuple[float, float]:
        """Standard deviation of one trial, from the repeats and from what is believed before; degrees of freedom."""
        squares = NOISE_WEIGHT * NOISE**2
        freedom = NOISE_WEIGHT
        for rates in self._rates.values():
            squares += sum((rate - fmean(rates)) ** 2 for rate in rates)
            freedom += len(rates) - 1
        return math.sqrt(squares / freedom), freedom

    def _surrogate(self) -> Surrogate:
        if self._fitted is None or self._fitted[0] != self._told:
            noise, _ = self._noise_and_freedom()
            trials = [(self._space.index(point), rate) for point, rates in self._rates.items() for rate in rates]
            self._fitted = self._told, Surrogate([place for place, _ in trials], [rate for _, rate in trials], noise)
        return self._fitted[1]

    def _believed(self) -> dict[Point, float]:
        """The logarithm of the rate of each sound point: what is to be expected of it, not one lucky trial."""
        surrogate = self._surrogate()
        return {point: surrogate.at(self._space.index(point)).mean for point in self._sound()}

    def _chance(self) -> Callable[[Point], float]:
        """How likely a point is to hold the soak: by where it lies between one that held it and one that failed."""
        held = [self._space.index(point) for point in (self._held or [self._space.default])]
        failed = [self._space.index(point) for point, cause in self._failed.items() if cause.of_memory]

        def chance(point: Point) -> float:
            place = self._space.index(point)
            above = min(steps_over(place, each) for each in held)
            if not failed:
                return (1 - RISK) ** above
            below = min(steps_over(each, place) for each in failed)
            return below / (below + above) if below + above else 0.0

        return chance

    def _smaller(self) -> Point | None:
        """The largest point of the first stage that may start, when none has."""
        around = self._space.around(self._space.default, STAGES[0])
        open_ = [point for point in around if point not in self._failed and not self._out(point)]
        below = [point for point in open_ if needs_no_more(point, self._space.default)] or open_
        return max(below, key=lambda point: (sum(self._space.index(point)), point), default=None)

    def _spread(self) -> Point | None:
        """The next of the points that are spread over the grid of the first stage."""
        columns = [AXES.index(axis) for axis in STAGES[0]]

        def on_grid(point: Point) -> tuple[int, ...]:
            place = self._space.index(point)
            return tuple(place[column] for column in columns)

        seen = [on_grid(point) for point in (*self._rates, *self._failed)]
        open_ = self._open(STAGES[0], self._space.default)
        for shares in SPREAD:
            wanted = [share * (len(self._space.values(axis)) - 1) for share, axis in zip(shares, STAGES[0], strict=True)]
            near = {point: math.dist(on_grid(point), wanted) for point in open_}
            if any(math.dist(place, wanted) < APART for place in seen) or min(near.values(), default=APART) >= APART:
                continue
            return min(near, key=lambda point: (near[point], point))
        return None

    def _most_promising(self) -> Question | None:
        """The speed of a point that was not measured, or the soak of one that was: what gains more by being known."""
        surrogate, chance, believed = self._surrogate(), self._chance(), self._believed()
        soak, gain_of_soak = self._best_soak(believed, chance)
        if soak is not None and not (self._held or self._tight):
            return Question(soak, Measure.SOAK)
        likely = [rate for point, rate in believed.items() if not self._tight or self._as_held(point)]
        reached = max(likely, default=min(believed.values()))
        best = max(believed, key=lambda point: believed[point] + math.log(max(LEAST_CHANCE, chance(point))))
        for axes in STAGES:
            gains = {
                point: surrogate.at(self._space.index(point)).gain_over(reached) * chance(point)
                for point in self._open(axes, best)
            }
            point = max(gains, key=lambda point: (gains[point], point), default=None)
            gain = gains[point] if point is not None else 0.0
            # A soak of a measured point is one trial; another point takes its speed and its soak.
            if self._tight and soak is not None and gain_of_soak >= max(GAIN_LEAST, gain / 2):
                return Question(soak, Measure.SOAK)
            if point is not None and gain >= GAIN_LEAST:
                return Question(point, Measure.SPEED)
        return None

    def _best_soak(self, believed: dict[Point, float], chance: Callable[[Point], float]) -> tuple[Point | None, float]:
        """The point whose soak gains most over the fastest that held one, and how much."""
        fallback = max((believed[point] for point in believed if point in self._held), default=min(believed.values()))
        gains = {point: (believed[point] - fallback) * chance(point) for point in believed if not self._as_held(point)}
        point = max(gains, key=lambda point: (gains[point], point), default=None)
        return point, gains[point] if point is not None else 0.0

    def _as_held(self, point: Point) -> bool:
        """Whether a point that needs no less memory held the soak."""
        return any(needs_no_more(point, held) for held in self._held)

    def _open(self, axes: tuple[str, ...], point: Point) -> list[Point]:
        """Those that differ from a point in these axes alone, were not measured and are not ruled out."""
        return [each for each in self._space.around(point, axes) if each not in self._rates and not self._out(each)]

    def _last(self) -> Question | None:
        """The soak of the fastest point, then repeats of it and of the default."""
        believed, chance = self._believed(), self._chance()
        held = [point for point in believed if point in self._held]
        if not held:
            point = max(believed, key=lambda point: (believed[point] + math.log(max(LEAST_CHANCE, chance(point))), point))
            return Question(point, Measure.SOAK)
        best = max(held, key=lambda point: (believed[point], point))
        gains = {point: (rate - believed[best]) * chance(point) for point, rate in believed.items() if point not in held}
        if gains and max(gains.values()) >= GAIN_LEAST:
            return Question(max(gains, key=lambda point: (gains[point], point)), Measure.SOAK)
        if best == self._space.default:
            return None
        compared = [best] if self._space.default in self._failed else [best, self._space.default]
        fewest = min(compared, key=lambda point: len(self._rates.get(point, ())))
        return Question(fewest, Measure.SPEED) if len(self._rates.get(fewest, ())) < REPEATS else None


def _student(freedom: float) -> float:
    """The 97.5 % quantile of Student's t, by Cornish and Fisher's expansion; within 1 % from 2 degrees of freedom on."""
    z = 1.959964
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, 1))
