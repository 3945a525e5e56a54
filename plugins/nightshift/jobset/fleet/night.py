"""A night on its way: what its trigger has to know to watch it, and what follows from what the trigger has seen."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nightshift.jobset.fleet.forecast import WatchState
from nightshift.jobset.fleet.keeping import TIMES_PLAN, Asked, Terms, resized
from nightshift.jobset.fleet.memory import FleetMember, FleetState
from nightshift.jobset.fleet.records import WatchedJobSet, WatchReport, WatchTerms
from nightshift.spec.limits import WORKERS_MAX

if TYPE_CHECKING:
    from nightshift.profiles.limits import Limits
    from nightshift.run.names import RunRef
    from nightshift.run.plan import Plan
    from nightshift.spec import JobSpec


@dataclass(frozen=True)
class Night:
    """One run on its way. spec: with the terms of the DAG run. speed: rows a second of one worker, as planned; 0 if unknown.

    start_up_s: of a JobSet, from its start to its first row. many_machines: whether a further JobSet gets machines of its own;
    the local runtime has only one.
    """

    spec: JobSpec
    run: RunRef
    plan: Plan
    speed: float
    start_up_s: float
    limits: Limits
    many_machines: bool

    def workers(self, live: FleetMember) -> int:
        return live.workers or self.plan.workers

    def hosts(self, profile: str) -> int:
        return self.spec.compute.worker(profile).hosts

    @property
    def room(self) -> int:
        """The most workers that it may have."""
        if not self.many_machines and not self.limits.workers_max:
            return self.plan.workers
        most = self.limits.workers_max or min(WORKERS_MAX, TIMES_PLAN * self.plan.workers)
        units = self.spec.compute.worker().accelerators_in_all or 1
        return most if self.limits.quota is None else min(most, self.limits.quota // units)

    def at_most(self, workers: int) -> int:
        """Of these, no more than there are chunks."""
        return min(workers, max(1, self.plan.chunk_count))

    def look(self, names: Mapping[str, FleetMember], kept: FleetState, state: WatchState | None) -> WatchTerms:
        """What the trigger has to know. names: of the JobSets that are waited for. state: of the last watch."""
        jobsets = {
            name: WatchedJobSet(
                profile=live.profile or self.spec.compute.profile,
                workers=self.workers(live),
                helps=live.helps,
                hosts=self.hosts(live.profile or self.spec.compute.profile),
                ready_at=live.since + self.start_up_s,
            )
            for name, live in names.items()
        }
        terms = Terms(
            profiles=self.spec.compute.profiles if self.many_machines else (self.spec.compute.profile,),
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
            seqs=self.spec.engine.max_num_seqs,
            state=state or WatchState(self.speed),
            jobsets=jobsets,
            terms=terms,
        )

    def helped(self, names: Mapping[str, FleetMember], kept: FleetState, look: WatchReport) -> FleetState | None:
        """With the helping JobSet that a look has decided on; None if it has not."""
        if not look.workers:
            return None
        gone = [names[name] for name in look.drop if name in names]
        live = FleetMember(kept.next, look.profile, look.workers, helps=True, since=time.time())
        stay = tuple(each for each in kept.live if each not in gone)
        return replace(kept.with_all((*stay, live)), helped=kept.helped + 1)

    def resized(
        self, names: Mapping[str, FleetMember], kept: FleetState, present: JobSpec | None
    ) -> tuple[FleetState, str] | None:
        """With as many workers as the job says now, and a sentence; None if there are as many, or nobody has changed
        ``compute.workers``.

        A number that a person wrote holds: workers that are missing since, because a JobSet is gone or another profile has
        taken over, come again.
        """
        said = None if present is None else present.compute.workers
        changed = said is not None and said != (self.spec.compute.workers if kept.asked is None else kept.asked)
        wanted = said if changed else kept.asked
        if wanted is None or (not changed and len({live.profile for live in names.values()}) > 1):
            # While one profile takes over from another, both have workers.
            return None
        counted = {name: names[name] for name in self._counted(names)}
        asked: dict[str, Asked] = {name: Asked(live.profile, self.workers(live), live.helps) for name, live in counted.items()}
        have = sum(each.wanted for each in asked.values())
        change = resized(asked, self.at_most(wanted))
        if not changed and not (change.add or change.drop):
            return None
        gone = [counted[name] for name in change.drop]
        lives = [live for live in kept.live if live not in gone]
        now = time.time()
        if change.add:
            newest = max(counted.values(), key=lambda live: live.generation)
            lives.append(FleetMember(kept.next, newest.profile, change.add, helps=True, since=now))
        elif change.smaller:
            lives.append(replace(gone[-1], generation=kept.next, workers=change.smaller, since=now))
        words = f"the job's compute.workers is now {wanted}, and {have} were at work"
        done = [f"{change.add} more help"] * bool(change.add) + [f"{name} is deleted" for name in change.drop]
        done += [f"a JobSet with {change.smaller} replaces it"] * bool(change.smaller)
        return replace(kept.with_all(tuple(lives)), asked=wanted), f"{words}: {', '.join(done) or 'nothing to change'}"

    def _counted(self, names: Mapping[str, FleetMember]) -> Iterable[str]:
        """The JobSets that a person's number is about: without those that another profile is about to replace."""
        first = [live for live in names.values() if not live.helps]
        newest = max(first, key=lambda live: live.generation, default=None)
        return [name for name, live in names.items() if live.helps or (newest and live.profile == newest.profile)]
