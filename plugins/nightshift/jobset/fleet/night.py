"""A run in progress: what its trigger needs to watch it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nightshift.jobset.fleet.deadline import TIMES_PLAN, Terms
from nightshift.jobset.fleet.forecast import WatchState
from nightshift.jobset.fleet.memory import FleetMember, FleetState
from nightshift.jobset.fleet.records import WatchedJobSet, WatchTerms
from nightshift.spec.limits import WORKERS_MAX

if TYPE_CHECKING:
    from nightshift.profiles.limits import Limits
    from nightshift.run.names import RunRef
    from nightshift.run.plan import Plan
    from nightshift.spec import JobSpec


@dataclass(frozen=True)
class Night:
    """A run in progress. spec: with the terms of the DAG run. speed: planned rows a second of one worker; 0 if unknown.

    start_up_s: of a JobSet, from its start to its first row.
    price(profile): of one of its workers for an hour, in `currency`; None if unknown.
    """

    spec: JobSpec
    run: RunRef
    plan: Plan
    speed: float
    start_up_s: float
    limits: Limits
    price: Callable[[str], float | None] = lambda _: None
    currency: str = ""

    def hosts(self, profile: str) -> int:
        return self.spec.compute.worker(profile).hosts

    @property
    def room(self) -> int:
        """The most workers that the run may have."""
        most = self.limits.workers_max or min(WORKERS_MAX, TIMES_PLAN * self.plan.workers)
        units = self.spec.compute.worker().accelerators_in_all or 1
        return most if self.limits.quota is None else min(most, self.limits.quota // units)

    def watch_terms(self, members: Mapping[str, FleetMember], kept: FleetState, state: WatchState | None) -> WatchTerms:
        """What the trigger needs. members: the JobSets that the task waits for, by name. state: of the last watch."""
        jobsets = {
            name: WatchedJobSet(
                profile=live.profile or self.spec.compute.profile,
                workers=live.size(self.plan.workers),
                helps=live.helps,
                hosts=self.hosts(live.profile or self.spec.compute.profile),
                ready_at=live.since + self.start_up_s,
                price=self.price(live.profile or self.spec.compute.profile),
            )
            for name, live in members.items()
        }
        terms = Terms(
            profiles=self.spec.compute.profiles,
            start_up_s=self.start_up_s,
            room=self.room,
            stated=self.spec.compute.workers is not None or kept.asked is not None,
            helped=kept.helped,
        )
        return WatchTerms(
            run=self.run.prefix,
            rows=self.plan.rows,
            chunk_rows=self.plan.chunk_rows,
            plan_uid=self.plan.uid,
            seqs=self.spec.seats(),
            state=state or WatchState(self.speed),
            jobsets=jobsets,
            terms=terms,
            currency=self.currency,
        )
