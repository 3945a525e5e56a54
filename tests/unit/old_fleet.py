"""The rules before there was one policy, as they were at 8b1d3a0: only to compare the policy with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from nightshift.jobset.fleet import fallback, keeping
from nightshift.jobset.fleet.fallback import Measured
from nightshift.jobset.fleet.keeping import Asked, resized
from nightshift.jobset.fleet.memory import FleetMember, FleetState
from nightshift.jobset.fleet.records import WatchReport


@dataclass(frozen=True)
class Night:
    profiles: Sequence[str]
    planned: int
    chunks: int
    terms: int | None

    def workers(self, live: FleetMember) -> int:
        return live.workers or self.planned

    def at_most(self, workers: int) -> int:
        return min(workers, max(1, self.chunks))

    def whole(self, kept: FleetState) -> int:
        return 0 if kept.asked is None else self.at_most(kept.asked)

    def helped(self, names: Mapping[str, FleetMember], kept: FleetState, look: WatchReport, now: float) -> FleetState | None:
        if not look.workers:
            return None
        gone = [names[name] for name in look.drop if name in names]
        live = FleetMember(kept.next, look.profile, look.workers, helps=True, since=now)
        stay = tuple(each for each in kept.live if each not in gone)
        return replace(kept.with_all((*stay, live)), helped=kept.helped + 1)

    def resized(
        self, names: Mapping[str, FleetMember], kept: FleetState, said: int | None, now: float
    ) -> tuple[FleetState, str] | None:
        changed = said is not None and said != (self.terms if kept.asked is None else kept.asked)
        wanted = said if changed else kept.asked
        if wanted is None or (not changed and len({live.profile for live in names.values()}) > 1):
            return None
        counted = {name: names[name] for name in self._counted(names)}
        asked: dict[str, Asked] = {name: Asked(live.profile, self.workers(live), live.helps) for name, live in counted.items()}
        have = sum(each.wanted for each in asked.values())
        change = resized(asked, self.at_most(wanted))
        if not changed and not (change.add or change.drop):
            return None
        gone = [counted[name] for name in change.drop]
        lives = [live for live in kept.live if live not in gone]
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
        first = [live for live in names.values() if not live.helps]
        newest = max(first, key=lambda live: live.generation, default=None)
        return [name for name, live in names.items() if live.helps or (newest and live.profile == newest.profile)]

    def looked(
        self, names: Mapping[str, FleetMember], kept: FleetState, said: int | None, look: WatchReport, now: float
    ) -> tuple[FleetState, str]:
        if found := self.resized(names, kept, said, now):
            return found
        if helped := self.helped(names, kept, look, now):
            return helped, look.why
        return kept, ""

    def fallen_back(
        self, kept: FleetState, measured: Sequence[Measured], *, late: bool, left_s: float, now: float
    ) -> tuple[FleetState, str]:
        decision = fallback.decide(self.profiles, measured, left_s=left_s)
        running = sum(each.running for each in measured if each.profile == decision.drop)
        decision = keeping.careful(decision, late, running)
        why = f"{decision.step.value}; {decision.why}"
        stay = tuple(live for live in kept.live if live.profile != decision.drop)
        if not decision.submit:
            return kept.with_all(stay), why
        workers = decision.workers or min(self.whole(kept), self.planned)
        return kept.with_all((*stay, FleetMember(kept.next, decision.submit, workers, since=now))), why
