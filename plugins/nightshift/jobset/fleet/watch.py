"""Looks at a running night from the triggerer, and says when its task has something to do for the deadline.

A look is a LIST of the ledger, and arithmetic (`nightshift.jobset.fleet.forecast`, `nightshift.jobset.fleet.deadline`). It is
made here and not in the task because waking the task costs more: a process, a part of the log that is read again, and some
seconds in which nobody hears that a person ends the task. So the task is woken when there is a decision, when the night's
JobSets do not follow a person's request to pause or resume, and every `WAKE_S`, since only a task's process sees the job's file
as it is now. While the cluster does not answer, it is not: it could do nothing, and each try would cost a retry.
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

LOOK_S: Final = 120.0
WAKE_S: Final = 900.0

Counts = Mapping[str, Mapping[str, Any]]
"""By JobSet: the fields of `nightshift.jobset.kubernetes.follow.JobSetCounts`."""


class FleetWatch:
    """For the life of one trigger. look: JSON of a `WatchTerms`. deadline: Unix time.

    open_bucket: the deployment's, for the run's folder. report: what the task gets with the trigger's event.
    """

    def __init__(self, look: Mapping[str, Any], deadline: float, log: Log, open_bucket: Callable[[], ObjectStore]) -> None:
        # Made in a thread: the triggerer's event loop would stand still while these are imported.
        from nightshift.jobset.fleet.deadline import decide
        from nightshift.jobset.fleet.forecast import Watch
        from nightshift.jobset.fleet.records import WatchReport, WatchTerms

        self._decide = decide
        self._look = WatchTerms.from_json(look)
        self._deadline = deadline
        self._log = log
        self._open_bucket = open_bucket
        self._watch = Watch(self._look.state, self._look.chunk_rows, start_up_s=self._look.terms.start_up_s)
        self._late = self._look.state.late_since is not None
        self._said = False
        self._silent = False
        self.report = WatchReport(self._watch.state, self._late)

    async def until_needed(
        self,
        counts: Callable[[], Counts],
        paused: Callable[[], Collection[str]] = frozenset,
        reachable: Callable[[], bool] = lambda: True,
    ) -> None:
        """Returns when the task should be woken. paused: the JobSets that a person has suspended. reachable: whether the
        cluster answers."""
        wake_at = time.monotonic() + WAKE_S
        while time.monotonic() < wake_at or not reachable():
            await asyncio.sleep(LOOK_S)
            if not reachable():
                continue
            try:
                if await self._is_not_followed(paused()) or await self._looked(counts(), bool(paused())):
                    return
                self._silent = False
            except Exception as error:
                # Whatever the store, the connection or the network says: a night goes on without a forecast.
                if not self._silent:
                    self._log.warning("The run's folder cannot be read, so the end of the night is unknown: %r", error)
                self._silent = True

    async def _is_not_followed(self, paused: Collection[str]) -> bool:
        """Whether a person wants the night paused, or resumed, and some JobSet does not follow: the request was only
        written."""
        request = await asyncio.to_thread(self._pause_request)
        if request is None:
            return False
        return len(paused) < len(self._look.jobsets) if request.paused else bool(paused)

    async def _looked(self, counts: Counts, paused: bool) -> bool:
        """One look; whether there is a decision."""
        from nightshift.jobset.fleet.deadline import Asked
        from nightshift.jobset.fleet.records import WatchReport

        now = time.time()
        rows = await asyncio.to_thread(self._rows, now - self._watch.window_s(now))
        forecast = self._watch.look(now, rows, self._fleets(counts), deadline=self._deadline, paused=paused)
        asked = {name: Asked(each.profile, each.workers, each.helps) for name, each in self._look.jobsets.items()}
        terms = replace(self._look.terms, useful=max(1, rows.left // self._look.seqs))
        decision = self._decide(forecast, asked, terms)
        self.report = WatchReport(
            self._watch.state, forecast.late, decision.why, decision.workers, decision.profile, decision.drop
        )
        self._say(forecast, rows, decision.why)
        return bool(decision.workers)

    def _fleets(self, counts: Counts) -> dict[str, Any]:
        from nightshift.jobset.fleet.forecast import Fleet

        fleets = {}
        for name, each in self._look.jobsets.items():
            count = counts[name]
            fleets[name] = Fleet(each.workers, count["running"] // each.hosts, count["worked_s"] / each.hosts, each.ready_at)
        return fleets

    def _say(self, forecast: Forecast, rows: Rows, why: str) -> None:
        """Once, and whenever it changes between late and in time."""
        if forecast.late == self._late and self._said:
            return
        self._late, self._said = forecast.late, True
        done = f"{rows.done:,} of {rows.done + rows.left:,} rows are committed"
        (self._log.warning if forecast.late else self._log.info)("%s: %s", done, why)

    def _pause_request(self) -> PauseRequest | None:
        from nightshift.run.names import RunRef
        from nightshift.run.pauses import newest

        return newest(self._store, RunRef.from_prefix(self._look.run))

    def _rows(self, since: float) -> Rows:
        from nightshift.jobset.fleet.forecast import Rows
        from nightshift.run.ledger import committed_rows
        from nightshift.run.names import RunRef

        total = self._look.rows
        work = RunRef.from_prefix(self._look.run).work(self._look.plan_uid)
        done, recent = committed_rows(self._store, work, total, self._look.chunk_rows, since)
        return Rows(total - done, done, recent)

    @cached_property
    def _store(self) -> ObjectStore:
        return self._open_bucket()
