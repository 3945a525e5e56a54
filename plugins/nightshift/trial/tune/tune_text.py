"""What a tune says on a terminal: a line for each trial, at the end one sentence, a plot, and the patch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from nightshift.fields.text import n
from nightshift.trial.tune.points import AXES, STAGES, Point, Space
from nightshift.trial.tune.search import Choice, Measure

if TYPE_CHECKING:
    from nightshift.trial.tune.trials import Trial

FAILED: Final = "x"
UNTRIED: Final = "."
SHORT_S: Final = 5.0
"""Of a trial's rows in an engine: below it, a hiccup is more than the noise."""


def point_words(point: Point, space: Space) -> str:
    """Only what the tune may change."""
    return ", ".join(_words(point, {*STAGES[0], *(axis for axis in AXES if len(space.values(axis)) > 1)}))


def trial_line(number: int, trial: Trial, space: Space, default_rate: float | None) -> str:
    """default_rate: of the default's first trial, rows a second; None if it has none."""
    point, cause = trial.point, trial.cause
    if cause is not None:
        said = cause.words
    elif trial.measure is Measure.SOAK:
        said = f"held {n(trial.rows, 'long row')}, KV cache {trial.kv_cache:.0%} full"
    else:
        said = f"{trial.rate:,.2f} rows/s"
        if default_rate and point != space.default:
            said += f", {trial.rate / default_rate:.2f} times the default"
    name = "the default: " if point == space.default else ""
    kind = "soak" if trial.measure is Measure.SOAK else "rows"
    return f"{number:3}  {kind}  {name}{point_words(point, space)}: {said} ({trial.took_s:.0f} s)"


def sentence(choice: Choice, space: Space, trials: Sequence[Trial]) -> str:
    """The result, in one sentence."""
    used = n(len(trials), "trial")
    broken = default_failure(space, trials)
    if choice.point is None:
        if not any(trial.cause for trial in trials):
            return f"The budget ended before any settings were tried with the longest rows: raise --budget; {used}."
        return f"No settings held the longest rows, so there is nothing to recommend; {used}."
    words = _chosen_words(choice.point, space)
    if broken:
        return f"{words}: the job's own settings do not hold ({broken}), these do; {used}."
    if choice.point == space.default:
        return f"Nothing is faster than the job's own settings; {used}."
    ratio = f"{choice.ratio:.2f} times the default ({choice.low:.2f} to {choice.high:.2f})"
    if not choice.better:
        return f"Nothing is faster than the job's own settings beyond the noise; the best, {words}: {ratio}, {used}."
    return f"{words}: {ratio}, {used}."


def too_short(trials: Sequence[Trial]) -> str:
    """What to do if the trials were too short to be compared; "" if they were not."""
    seconds = [trial.seconds for trial in trials if trial.measure is Measure.SPEED and trial.seconds]
    if not seconds or (middle := statistics.median(seconds)) >= SHORT_S:
        return ""
    return (
        f"The rows of a trial took {middle:.1f} s, which other work on the machine can change: raise --rows for a sure result."
    )


def default_failure(space: Space, trials: Sequence[Trial]) -> str:
    """Why the default cannot be used, in words; "" if it can, as far as is known."""
    causes = [trial.cause for trial in trials if trial.point == space.default and trial.cause]
    return causes[0].words if causes else ""


def _chosen_words(point: Point, space: Space) -> str:
    changed = {axis for axis in AXES if getattr(point, axis) != getattr(space.default, axis)}
    return " and ".join(_words(point, changed)) or "The job's own settings"


def _words(point: Point, axes: set[str]) -> list[str]:
    words = {
        "max_num_seqs": f"max_num_seqs {point.max_num_seqs:,}",
        "max_num_batched_tokens": f"{point.max_num_batched_tokens:,} tokens a step",
        "api_servers": n(point.api_servers, "API server"),
        "engines": n(point.engines, "engine"),
        "tensor_parallel": f"tensor_parallel {point.tensor_parallel}",
    }
    return [each for axis, each in words.items() if axis in axes]


def plot(space: Space, trials: Sequence[Trial], choice: Choice) -> Iterator[str]:
    """Rows at once over tokens a step: each rate in percent of the fastest that was measured."""
    rates, failed = _by_cell(trials)
    fastest = max(rates.values(), default=1.0)
    tokens = space.values("max_num_batched_tokens")
    yield "rows/s in percent of the fastest trial; x fails, . not tried, * chosen, [ ] the default"
    yield f"{'seqs':>6} | " + " ".join(f"{each:>7,}" for each in tokens) + "  tokens a step"
    for seqs in reversed(space.values("max_num_seqs")):
        cells = []
        for each in tokens:
            cell = (each, seqs)
            shown = UNTRIED
            if cell in failed:
                shown = FAILED
            elif cell in rates:
                shown = f"{100 * rates[cell] / fastest:.0f}"
            if choice.point and cell == (choice.point.max_num_batched_tokens, choice.point.max_num_seqs):
                shown += "*"
            if cell == (space.default.max_num_batched_tokens, space.default.max_num_seqs):
                shown = f"[{shown}]"
            cells.append(f"{shown:>7}")
        yield f"{seqs:>6,} | " + " ".join(cells)


def _by_cell(trials: Sequence[Trial]) -> tuple[dict[tuple[int, int], float], set[tuple[int, int]]]:
    """Geometric means of the rates, the best over the other axes; and what failed."""
    logs: dict[Point, list[float]] = {}
    failed = set()
    for trial in trials:
        point = trial.point
        if trial.cause is not None:
            failed.add((point.max_num_batched_tokens, point.max_num_seqs))
        elif trial.measure is Measure.SPEED:
            logs.setdefault(point, []).append(math.log(trial.rate))
    rates: dict[tuple[int, int], float] = {}
    for point, each in logs.items():
        cell = (point.max_num_batched_tokens, point.max_num_seqs)
        rates[cell] = max(rates.get(cell, 0.0), math.exp(sum(each) / len(each)))
    return rates, failed
