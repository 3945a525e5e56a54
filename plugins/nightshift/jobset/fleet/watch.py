"""Checks a run from the triggerer, and wakes its task when it has something to do for the deadline.

A check is a LIST of the ledger, and arithmetic (`nightshift.jobset.fleet.forecast`, `nightshift.jobset.fleet.deadline`). Waking
the task costs more: a process, a part of the log that is read again, and some seconds in which a kill goes unnoticed. So the
task is woken when there is a decision, when the run's JobSets do not follow a request to pause or resume, and every `WAKE_S`,
since only a task's process sees the job's present file. During an outage of the cluster it is not woken: it could do nothing,
and each try would cost a retry.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from obstore.store import ObjectStore

    from nightshift.jobset.fleet.forecast import Forecast, Rows
    from nightshift.jobset.kubernetes.follow import Log
    from nightshift.run.pauses import PauseRequest

CHECK_S: Final = 120.0
WAKE_S: Final = 900.0

Counts = Mapping[str, Mapping[str, Any]]
"""By JobSet: the fields of `nightshift.jobset.kubernetes.follow.JobSetCounts`."""


class FleetWatch:
    """For one trigger. terms: JSON of a `WatchTerms`. deadline: Unix time.

    open_bucket: opens the deployment's bucket. report: what the task gets with the trigger's event.
    """

    def __init__(self, terms: Mapping[str, Any], deadline: float, log: Log, open_bucket: Callable[[], ObjectStore]) -> None:
        # Made in a thread: the triggerer's event loop would stand still while these are imported.
        from nightshift.jobset.fleet.deadline import decide
        from nightshift.jobset.fleet.forecast import Watch
        from nightshift.jobset.fleet.records import WatchReport, WatchTerms

        self._decide = decide
        self._terms = WatchTerms.from_json(terms)
        self._deadline = deadline
        self._log = log
        self._open_bucket = open_bucket
        self._watch = Watch(self._terms.state, self._terms.chunk_rows, start_up_s=self._terms.terms.start_up_s)
        self._late = self._terms.state.late_since is not None
        self._logged = False
        self._silent = False
        self.report = WatchReport(self._watch.state, self._late)

    async def until_needed(
        self,
        counts: Callable[[], Counts],
        paused: Callable[[], Collection[str]] = frozenset,
        reachable: Callable[[], bool] = lambda: True,
    ) -> None:
        """Returns when to wake the task. paused: the JobSets that a user has paused. reachable: whether the cluster answers."""
        wake_at = time.monotonic() + WAKE_S
        while time.monotonic() < wake_at or not reachable():
            await asyncio.sleep(CHECK_S)
            if not reachable():
                continue
            try:
                if await self._is_not_followed(paused()) or await self._check(counts(), bool(paused())):
                    return
                self._silent = False
            except Exception as error:
                # Whatever is wrong with store, connection or network: a run continues without a forecast.
                if not self._silent:
                    self._log.warning("The run's folder cannot be read, so the end of the night is unknown: %r", error)
                self._silent = True

    async def _is_not_followed(self, paused: Collection[str]) -> bool:
        """Whether some JobSet does not follow a request to pause or resume, which was only written."""
        request = await asyncio.to_thread(self._pause_request)
        if request is None:
            return False
        return len(paused) < len(self._terms.jobsets) if request.paused else bool(paused)

    async def _check(self, counts: Counts, paused: bool) -> bool:
        """Whether there is a decision."""
        from nightshift.jobset.fleet.deadline import Asked
        from nightshift.jobset.fleet.records import WatchReport

        now = time.time()
        rows = await asyncio.to_thread(self._rows, now - self._watch.window_s(now))
        forecast = self._watch.forecast(now, rows, self._fleets(counts), deadline=self._deadline, paused=paused)
        asked = {name: Asked(each.profile, each.workers, each.helps) for name, each in self._terms.jobsets.items()}
        terms = replace(self._terms.terms, useful=max(1, rows.left // self._terms.seqs))
        decision = self._decide(forecast, asked, terms)
        self.report = WatchReport(
            self._watch.state, forecast.late, decision.why, decision.workers, decision.profile, decision.drop
        )
        self._log_forecast(forecast, rows, decision.why)
        return bool(decision.workers)

    def _fleets(self, counts: Counts) -> dict[str, Any]:
        from nightshift.jobset.fleet.forecast import Fleet

        fleets = {}
        for name, each in self._terms.jobsets.items():
            count = counts[name]
            fleets[name] = Fleet(each.workers, count["running"] // each.hosts, count["worked_s"] / each.hosts, each.ready_at)
        return fleets

    def _log_forecast(self, forecast: Forecast, rows: Rows, why: str) -> None:
        """Once, and at each change between late and in time."""
        if forecast.late == self._late and self._logged:
            return
        self._late, self._logged = forecast.late, True
        done = f"{rows.done:,} of {rows.done + rows.left:,} rows are committed"
        (self._log.warning if forecast.late else self._log.info)("%s: %s", done, why)

    def _pause_request(self) -> PauseRequest | None:
        from nightshift.run.names import RunRef
        from nightshift.run.pauses import newest

        return newest(self._store, RunRef.from_prefix(self._terms.run))

    def _rows(self, since: float) -> Rows:
        from nightshift.jobset.fleet.forecast import Rows
        from nightshift.run.ledger import committed_rows
        from nightshift.run.names import RunRef

        total = self._terms.rows
        work = RunRef.from_prefix(self._terms.run).work(self._terms.plan_uid)
        done, recent = committed_rows(self._store, work, total, self._terms.chunk_rows, since)
        return Rows(total - done, done, recent)

    @cached_property
    def _store(self) -> ObjectStore:
        return self._open_bucket()
