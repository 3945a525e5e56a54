"""When a run will end, from its ledger and from the workers that ran. Pure.

Every number below is of the last `WINDOW_S` seconds, or since the watch began if that is shorter. One worker does

    speed = (prior * weight + rows) / (weight + worked_s)     rows a second, with
    weight = max(0, PRIOR_S * wanted - worked_s)

``rows``: committed in the window. ``worked_s``: worker-seconds in it. ``wanted``: requested workers. ``prior``: the earlier
speed, from `nightshift.planner.plan` or the last check. So the run begins with the plan's speed, and after `PRIOR_S` seconds of
each worker only measurements count. An open chunk is half done on average, so half a chunk is added to ``rows`` for each worker
that started within the window; if nothing was committed in it, for each that runs.

A fleet (the workers of one JobSet) that can still be starting is expected whole at the end of its start-up, and not before.
After that it counts with the average number of workers that ran: so a storm of preemptions, a slow queue and a profile without
capacity all show as fewer workers, and losses are expected to go on as before. The run ends when the fleets have done the
rows that are left:

    sum over fleets of   speed * workers * max(0, end_s - ready_in_s)   =   rows left

A slow worker, a wrong estimate, time lost to kills all show in ``speed``. Later rows may be harder; that is unknown. The uneven
end of the last chunks is ignored: it takes less than `nightshift.planner.sizing` allows.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

WINDOW_S: Final = 900.0
"""Long enough to average preemptions and chunks of a minute; short enough to show a storm."""
PRIOR_S: Final = 180.0
"""After this much of each worker's time, measurements outweigh the prior: three chunks of a minute."""
LATE: Final = 0.95
"""A forecast above this share of the time left is late."""
IN_TIME: Final = 0.85
"""One below this share is in time again. In between, the last state holds. Help is sized for this share."""


@dataclass(frozen=True)
class Fleet:
    """The workers of a JobSet. worked_s: worker-seconds since a fixed time. ready_at: Unix time of its expected readiness."""

    wanted: int
    running: int
    worked_s: float
    ready_at: float


@dataclass(frozen=True)
class Rows:
    """What the ledger shows. left: rows that are not committed; done: those that are. recent: of these, in the window."""

    left: int
    done: int
    recent: int


@dataclass(frozen=True)
class Expected:
    """A fleet from now on: its average workers, from `ready_in_s` seconds on. ready: whether its start-up is over."""

    workers: float
    ready_in_s: float = 0.0

    @property
    def ready(self) -> bool:
        return self.ready_in_s <= 0


@dataclass(frozen=True)
class Forecast:
    """end_s: seconds until the last row is committed; inf if no worker is expected; None if the speed is unknown.

    left_s: until the deadline. late_s: for how long it has been late, 0 if it is not. speed: rows a second of a worker, 0 if
    unknown. fleets: by JobSet. left: rows.
    """

    end_s: float | None
    left_s: float
    late_s: float
    speed: float
    left: int
    fleets: Mapping[str, Expected]

    @property
    def late(self) -> bool:
        return self.late_s > 0


@dataclass(frozen=True)
class WatchState:
    """What the next watch needs. speed: rows a second of a worker, 0 if unknown. late_since, resumed_at: Unix times."""

    speed: float
    late_since: float | None = None
    resumed_at: float | None = None


class Watch:
    """Forecasts a run's end repeatedly. start_up_s: of workers that are resumed."""

    def __init__(self, state: WatchState, chunk_rows: int, *, start_up_s: float = 0.0) -> None:
        self._speed = state.speed
        self._chunk_rows = chunk_rows
        self._start_up_s = start_up_s
        self._late_since = state.late_since
        self._resumed_at = state.resumed_at
        self._samples: dict[str, deque[tuple[float, float, int]]] = {}
        """By JobSet: time of the check, worker-seconds by then, running workers."""
        self._began: float | None = None

    def window_s(self, now: float) -> float:
        """The seconds until now over which the next `forecast` needs the recent rows."""
        return 0.0 if self._began is None else min(WINDOW_S, now - self._began)

    def forecast(
        self, now: float, rows: Rows, fleets: Mapping[str, Fleet], *, deadline: float, paused: bool = False
    ) -> Forecast:
        """now, deadline: Unix time. fleets: by JobSet, all of the run. If one goes, begin a new watch, as the next trigger
        does: its rows would stay in the window, but not its workers' time. A paused run is not late and keeps its speed."""
        left_s = max(0.0, deadline - now)
        if paused:
            self._samples, self._began, self._late_since, self._resumed_at = {}, None, None, now
            return Forecast(None, left_s, 0.0, self._speed, rows.left, {})
        if self._began is None:
            self._began = now
        if self._resumed_at is not None:
            # Its workers start again.
            again = self._resumed_at + self._start_up_s
            fleets = {name: replace(fleet, ready_at=max(fleet.ready_at, again)) for name, fleet in fleets.items()}
        for name, fleet in fleets.items():
            samples = self._samples.setdefault(name, deque())
            samples.append((now, fleet.worked_s, fleet.running))
            while len(samples) > 2 and samples[1][0] <= now - WINDOW_S:
                samples.popleft()
        speed = self._seen(rows, fleets)
        expected = {name: self._expected(name, fleet, now) for name, fleet in fleets.items()}
        end_s = ends(rows.left, speed, list(expected.values()))
        return Forecast(end_s, left_s, self._late_for(now, end_s, left_s), speed, rows.left, expected)

    @property
    def state(self) -> WatchState:
        """For the next watch."""
        return WatchState(self._speed, self._late_since, self._resumed_at)

    def _seen(self, rows: Rows, fleets: Mapping[str, Fleet]) -> float:
        running = sum(fleet.running for fleet in fleets.values())
        worked_s = sum(self._samples[name][-1][1] - self._samples[name][0][1] for name in fleets)
        came = sum(max(0, fleet.running - self._samples[name][0][2]) for name, fleet in fleets.items())
        recent = rows.recent + self._chunk_rows / 2 * (came if rows.recent else running)
        wanted = sum(fleet.wanted for fleet in fleets.values())
        weight = max(0.0, PRIOR_S * wanted - worked_s) if self._speed else 0.0
        if rows.recent == 0 and worked_s < PRIOR_S * wanted:
            # Nothing is committed in the window yet: a worker's first chunk may take this long.
            return self._speed
        if weight + worked_s <= 0:
            return self._speed
        speed = (self._speed * weight + recent) / (weight + worked_s)
        if not weight:
            self._speed = speed
        return speed

    def _expected(self, name: str, fleet: Fleet, now: float) -> Expected:
        """A fleet that is complete early is ready."""
        if fleet.ready_at > now and fleet.running < fleet.wanted:
            return Expected(fleet.wanted, fleet.ready_at - now)
        # Samples from before the end of its start-up do not count.
        samples = [each for each in self._samples[name] if each[0] >= fleet.ready_at] or [self._samples[name][-1]]
        (first, before, _), (last, worked_s, _) = samples[0], samples[-1]
        return Expected((worked_s - before) / (last - first) if last > first else fleet.running)

    def _late_for(self, now: float, end_s: float | None, left_s: float) -> float:
        if end_s is None or end_s < IN_TIME * left_s:
            self._late_since = None
        elif self._late_since is None and end_s > LATE * left_s:
            self._late_since = now
        # The check that finds it late counts, too.
        return 0.0 if self._late_since is None else max(1.0, now - self._late_since)


def ends(left: float, speed: float, fleets: Sequence[Expected]) -> float | None:
    """Seconds until the fleets have done `left` rows; inf for no workers, None for an unknown speed."""
    if not left:
        return 0.0
    if speed <= 0:
        return None
    workers = at = 0.0
    work_s = left / speed
    for fleet in sorted(fleets, key=lambda each: each.ready_in_s):
        from_s = max(0.0, fleet.ready_in_s)
        done = workers * (from_s - at)
        if done >= work_s:
            break
        work_s, at, workers = work_s - done, from_s, workers + fleet.workers
    return at + work_s / workers if workers > 0 else math.inf


def missing(forecast: Forecast, within_s: float, ready_in_s: float) -> int | None:
    """How many more workers, ready in `ready_in_s` seconds, would end the run within `within_s`; None if impossible."""
    if forecast.speed <= 0 or within_s <= ready_in_s:
        return None
    done = sum(fleet.workers * max(0.0, within_s - max(0.0, fleet.ready_in_s)) for fleet in forecast.fleets.values())
    return max(0, math.ceil((forecast.left / forecast.speed - done) / (within_s - ready_in_s)))
