"""Checks a run from the triggerer, and wakes its task when it has something to do for the deadline.

It also tells people how far the night is: a line in the log, and in the run's folder where its pods are and when it will end,
each at most once a minute and only if something has changed (`nightshift.jobset.fleet.shown`).

A check is a LIST of the ledger, and arithmetic (`nightshift.jobset.fleet.forecast`, `nightshift.jobset.fleet.deadline`). Waking
the task costs more: a process, a part of the log that is read again, and some seconds in which a kill goes unnoticed. So the
task is woken when there is a decision, when the run's JobSets do not follow a request to pause or resume, and every `WAKE_S`,
since only a task's process sees the job's present file. During an outage of the cluster it is not woken: it could do nothing,
and each try would cost a retry.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from obstore.store import ObjectStore

    from nightshift.jobset.fleet.forecast import Fleet, Forecast, Rows
    from nightshift.jobset.kubernetes.follow import Log
    from nightshift.run.observed.pods_now import JobSetNow
    from nightshift.run.observed.progress import Progress
    from nightshift.run.pauses import PauseRequest

CHECK_S: Final = 60.0
FIRST_S: Final = 10.0
"""Until where the pods are is written first."""
WAKE_S: Final = 900.0

Counts = Mapping[str, Mapping[str, Any]]
"""By JobSet: the fields of `nightshift.jobset.kubernetes.follow.JobSetCounts`."""


@dataclass(frozen=True)
class NightNow:
    """A run at one moment. end_s: forecast seconds to its last row; None if unknown, inf if it will never end. left_s: until
    its deadline. wanted, running: workers. cost: of the JobSets that the task waits for, since it does; cost_at_end: if the
    forecast holds. Both None if a price is missing."""

    rows: int
    committed: int
    end_s: float | None
    left_s: float
    late: bool
    wanted: int
    running: int
    cost: float | None = None
    cost_at_end: float | None = None
    currency: str = ""


class Gauges(Protocol):
    """Where a night is shown. seen(now): after each check. over(): when nobody watches it here any longer."""

    def seen(self, now: NightNow) -> None: ...

    def over(self) -> None: ...


class FleetWatch:
    """For one trigger. terms: JSON of a `WatchTerms`. deadline: Unix time.

    open_bucket: opens the deployment's bucket. gauges: shown what is known. report: what the task gets
    with the trigger's event.
    """

    def __init__(
        self,
        terms: Mapping[str, Any],
        deadline: float,
        log: Log,
        open_bucket: Callable[[], ObjectStore],
        gauges: Gauges | None = None,
    ) -> None:
        # Made in a thread: the triggerer's event loop would stand still while these are imported.
        from nightshift.jobset.fleet.deadline import decide
        from nightshift.jobset.fleet.forecast import Watch
        from nightshift.jobset.fleet.records import WatchReport, WatchTerms
        from nightshift.jobset.fleet.shown import Shown

        self._decide = decide
        self._terms = WatchTerms.from_json(terms)
        self._deadline = deadline
        self._log = log
        self._open_bucket = open_bucket
        self._gauges = gauges
        self._watch = Watch(self._terms.state, self._terms.chunk_rows, start_up_s=self._terms.terms.start_up_s)
        self._silent = False
        self._shown = Shown(self._terms.run, log)
        self._forecast = ("", "")
        self.report = WatchReport(self._watch.state, self._terms.state.late_since is not None)

    async def until_needed(
        self,
        counts: Callable[[], Counts],
        paused: Callable[[], Collection[str]] = frozenset,
        reachable: Callable[[], bool] = lambda: True,
        pods: Callable[[], Sequence[JobSetNow]] = tuple,
    ) -> None:
        """Returns when to wake the task. paused: the JobSets that a user has paused. reachable: whether the cluster answers.

        pods: where those of each JobSet are.
        """
        wake_at = time.monotonic() + WAKE_S
        first = min(FIRST_S, CHECK_S)
        await asyncio.sleep(first)
        await self._shown.write(lambda: self._store, pods())
        pause = CHECK_S - first
        while time.monotonic() < wake_at or not reachable():
            await asyncio.sleep(pause)
            pause = CHECK_S
            if not reachable():
                continue
            await self._shown.write(lambda: self._store, self._with_forecast(pods()))
            try:
                if await self._is_not_followed(paused()) or await self._check(counts(), bool(paused()), pods()):
                    return
                self._silent = False
            except Exception as error:
                # Whatever is wrong with store, connection or network: a run continues without a forecast.
                if not self._silent:
                    self._log.warning("The run's folder cannot be read, so the end of the night is unknown: %r", error)
                self._silent = True

    def close(self) -> None:
        if self._gauges:
            self._gauges.over()

    async def _is_not_followed(self, paused: Collection[str]) -> bool:
        """Whether some JobSet does not follow a request to pause or resume, which was only written."""
        request = await asyncio.to_thread(self._pause_request)
        if request is None:
            return False
        return len(paused) < len(self._terms.jobsets) if request.paused else bool(paused)

    async def _check(self, counts: Counts, paused: bool, pods: Sequence[JobSetNow] = ()) -> bool:
        """Whether there is a decision."""
        from nightshift.jobset.fleet.deadline import Asked
        from nightshift.jobset.fleet.forecast import Rows
        from nightshift.jobset.fleet.records import WatchReport
        from nightshift.run.observed.pods_now import in_time

        now = time.time()
        found = await asyncio.to_thread(self._progress, now, now - self._watch.window_s(now))
        rows = Rows(self._terms.rows - found.rows, found.rows, found.recent)
        fleets = self._fleets(counts)
        forecast = self._watch.forecast(now, rows, fleets, deadline=self._deadline, paused=paused)
        known = forecast.end_s is not None and math.isfinite(forecast.end_s)
        self._forecast = in_time(now), in_time(now + (forecast.end_s or 0.0)) if known else ""
        if self._gauges:
            self._gauges.seen(self._now(rows, fleets, forecast))
        asked = {name: Asked(each.profile, each.workers, each.helps) for name, each in self._terms.jobsets.items()}
        terms = replace(self._terms.terms, useful=max(1, rows.left // self._terms.seqs))
        decision = self._decide(forecast, asked, terms)
        self.report = WatchReport(
            self._watch.state, forecast.late, decision.why, decision.workers, decision.profile, decision.drop
        )
        self._log_progress(forecast, rows, found.rate or 0.0, pods, decision.why)
        return bool(decision.workers)

    def _fleets(self, counts: Counts) -> dict[str, Fleet]:
        from nightshift.jobset.fleet.forecast import Fleet

        fleets = {}
        for name, each in self._terms.jobsets.items():
            count = counts[name]
            fleets[name] = Fleet(each.workers, count["running"] // each.hosts, count["worked_s"] / each.hosts, each.ready_at)
        return fleets

    def _now(self, rows: Rows, fleets: Mapping[str, Fleet], forecast: Forecast) -> NightNow:
        now = NightNow(
            rows.done + rows.left,
            rows.done,
            forecast.end_s,
            forecast.left_s,
            forecast.late,
            sum(each.wanted for each in fleets.values()),
            sum(each.running for each in fleets.values()),
        )
        prices = {name: each.price for name, each in self._terms.jobsets.items()}
        if None in prices.values():
            return now
        cost = sum((price or 0) * fleets[name].worked_s / 3600 for name, price in prices.items())
        rate = sum((price or 0) * forecast.fleets[name].workers / 3600 for name, price in prices.items() if forecast.fleets)
        at_end = None if now.end_s is None or math.isinf(now.end_s) else cost + rate * now.end_s
        return replace(now, cost=cost, cost_at_end=at_end, currency=self._terms.currency)

    def _with_forecast(self, pods: Sequence[JobSetNow]) -> list[JobSetNow]:
        """Every screen shows this time left (`nightshift.run.observed.progress`). It is of the last check."""
        at, ends_at = self._forecast
        return [replace(each, forecast_at=at, ends_at=ends_at) for each in pods]

    def _log_progress(self, forecast: Forecast, rows: Rows, rate: float, pods: Sequence[JobSetNow], why: str) -> None:
        """If anything but the time has changed."""
        if told := self._shown.progress(rows, rate, forecast, pods, why):
            (self._log.warning if forecast.late else self._log.info)("%s", told)

    def _pause_request(self) -> PauseRequest | None:
        from nightshift.run.names import RunRef
        from nightshift.run.pauses import newest

        return newest(self._store, RunRef.from_prefix(self._terms.run))

    def _progress(self, now: float, since: float) -> Progress:
        from nightshift.run.names import RunRef
        from nightshift.run.observed.progress import progress

        work = RunRef.from_prefix(self._terms.run).work(self._terms.plan_uid)
        return progress(self._store, work, self._terms.rows, self._terms.chunk_rows, now, since)

    @cached_property
    def _store(self) -> ObjectStore:
        return self._open_bucket()
