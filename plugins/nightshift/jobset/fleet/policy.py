"""How a run's JobSets change, from what was observed. Pure: `decide` applies its rules in this order.

    1 paused     a user has paused the run: its JobSets are suspended (`nightshift.jobset.fleet.pause`), nothing else changes
    2 workers    a user has changed ``compute.workers``: the JobSets get that number, and lost workers are replaced
    3 lost       a JobSet that was taken away is replaced on the same profile (`after_loss`)
    4 fallback   a profile gives too few pods, or loses more than it keeps: the next one helps, then replaces it
                 (`nightshift.jobset.fleet.fallback`); if Kueue has given up on its only JobSet, at once
    5 deadline   the run will be late: another JobSet helps (`nightshift.jobset.fleet.deadline`)

Only the first rule with a change applies; the others are checked again when its change shows. Rule 3 is for a JobSet that has
ended. Rule 4 is for one with too few pods for long, or with many lost, which the trigger sees at once. Rule 5 is checked by the
trigger, whose event has the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from nightshift.jobset.fleet import deadline, fallback
from nightshift.jobset.fleet.fallback import Measured
from nightshift.jobset.fleet.memory import FleetMember, FleetState
from nightshift.jobset.fleet.records import WatchReport


class Rule(StrEnum):
    """Which rule decided, in the log's words."""

    NONE = "nothing to change"
    PAUSED = "paused"
    WORKERS = "following compute.workers"
    FALLBACK = "falling back"
    DEADLINE = "keeping the deadline"


@dataclass(frozen=True)
class Wanted:
    """What the run's terms and its job's file ask for.

    profiles: in the order of falling back. planned: workers of the plan. chunks: more workers than these are useless. terms,
    file: ``compute.workers`` of the run's terms and of the job's present file; None for "as planned" and for a file that was
    not read. paused: whether a user has paused the run.
    """

    profiles: Sequence[str]
    planned: int
    chunks: int
    terms: int | None = None
    file: int | None = None
    paused: bool = False

    def at_most(self, workers: int) -> int:
        """No more than there are chunks."""
        return min(workers, max(1, self.chunks))

    def whole(self, state: FleetState) -> tuple[str, int]:
        """Profile and workers of a JobSet that is to do all of the work; 0 for the plan's workers."""
        return self.profiles[0], 0 if state.asked is None else self.at_most(state.asked)


@dataclass(frozen=True)
class Seen:
    """members: the task's JobSets by name, in order of creation. report: of the trigger's last check.

    measured: what each one's pods did since the last decision; empty unless rule 4 applies. left_s: until the deadline.
    given_up: the name of the one that Kueue will never admit again; '' for none.
    """

    members: Mapping[str, FleetMember]
    report: WatchReport | None = None
    measured: Sequence[Measured] = ()
    left_s: float = 0.0
    given_up: str = ""


@dataclass(frozen=True)
class Addition:
    """A JobSet to create. workers: 0 for the plan's."""

    profile: str
    workers: int
    helps: bool


@dataclass(frozen=True)
class Change:
    """rule: that decided. why: a sentence. drop: names. asked: the new ``compute.workers`` to remember; None: as before."""

    rule: Rule
    why: str = ""
    add: Addition | None = None
    drop: tuple[str, ...] = ()
    asked: int | None = None

    def applied(self, state: FleetState, members: Mapping[str, FleetMember], now: float) -> FleetState:
        """The new state. members: by name. now: Unix time."""
        gone = [members[name] for name in self.drop if name in members]
        live = [each for each in state.live if each not in gone]
        if self.add:
            live.append(FleetMember(state.next, self.add.profile, self.add.workers, helps=self.add.helps, since=now))
        new = state.with_all(tuple(live))
        if self.rule is Rule.DEADLINE:
            new = replace(new, helped=state.helped + 1)
        return new if self.asked is None else replace(new, asked=self.asked)


def decide(wanted: Wanted, state: FleetState, seen: Seen) -> Change:
    """state: what the task remembers."""
    if wanted.paused:
        return Change(Rule.PAUSED, "the run is paused: nothing changes until it is resumed")
    if change := _workers(wanted, state, seen):
        return change
    if seen.given_up:
        return _without(wanted, state, seen)
    if seen.measured:
        return _fallback(wanted, state, seen)
    if seen.report and seen.report.workers:
        report = seen.report
        return Change(Rule.DEADLINE, report.why, Addition(report.profile, report.workers, helps=True), report.drop)
    return Change(Rule.NONE)


def after_loss(state: FleetState, lost: FleetMember, whole: tuple[str, int], now: float) -> FleetState:
    """Rule 3: with a replacement for a JobSet that was taken away. state: without it. whole: `Wanted.whole`."""
    profile, workers = whole
    profile = lost.profile or profile
    if state.live:
        return state.with_all((*state.live, replace(lost, generation=state.next, profile=profile, since=now)))
    # The replacement of a helper does all the work.
    return state.with_new(profile, now, workers or (0 if lost.helps else lost.workers))


def _workers(wanted: Wanted, state: FleetState, seen: Seen) -> Change | None:
    """Rule 2. None if no number is set, or the number of workers is right.

    A number that a user set holds: workers lost with a JobSet, or to another profile, are replaced.
    """
    changed = wanted.file is not None and wanted.file != (wanted.terms if state.asked is None else state.asked)
    number = wanted.file if changed else state.asked
    if number is None or (not changed and len({each.profile for each in seen.members.values()}) > 1):
        # While one profile takes over from another, both have workers.
        return None
    counted = _counted(seen.members)
    sizes = {name: each.size(wanted.planned) for name, each in counted.items()}
    have, target = sum(sizes.values()), wanted.at_most(number)
    add: Addition | None = None
    drop: tuple[str, ...] = ()
    if target > have:
        newest = max(counted.values(), key=lambda each: each.generation)
        add, done = Addition(newest.profile, target - have, helps=True), [f"{target - have} more help"]
    else:
        drop, left = _too_many(counted, sizes, target)
        done = [f"{name} is deleted" for name in drop]
        if left:
            # A JobSet cannot shrink: its pods are indexes of a Job. What its workers have committed stays.
            last = counted[drop[-1]]
            add = Addition(last.profile, left, last.helps)
            done.append(f"a JobSet with {left} replaces it")
    if not changed and not add and not drop:
        return None
    why = f"the job's compute.workers is now {number}, and {have} were at work: {', '.join(done) or 'nothing to change'}"
    return Change(Rule.WORKERS, why, add, drop, asked=number)


def _counted(members: Mapping[str, FleetMember]) -> dict[str, FleetMember]:
    """The JobSets that a user's number covers: without those that another profile is about to replace."""
    first = [each for each in members.values() if not each.helps]
    newest = max(first, key=lambda each: each.generation, default=None)
    return {name: each for name, each in members.items() if each.helps or (newest and each.profile == newest.profile)}


def _too_many(counted: Mapping[str, FleetMember], sizes: Mapping[str, int], target: int) -> tuple[tuple[str, ...], int]:
    """Names to delete, newest helpers first, and how many workers are then missing."""
    have = sum(sizes.values())
    drop: list[str] = []
    newest_first = list(counted)[::-1]
    for name in (name for helps in (True, False) for name in newest_first if counted[name].helps is helps):
        if have <= target:
            break
        drop.append(name)
        have -= sizes[name]
    return tuple(drop), target - have


def _fallback(wanted: Wanted, state: FleetState, seen: Seen) -> Change:
    decision = fallback.decide(wanted.profiles, seen.measured, left_s=seen.left_s)
    running = sum(each.running for each in seen.measured if each.profile == decision.drop)
    decision = deadline.careful(decision, seen.report is not None and seen.report.late, running)
    drop = tuple(name for name, each in seen.members.items() if decision.drop and each.profile == decision.drop)
    add = None
    if decision.submit:
        # JobSets that help to reach a user's number continue beside it.
        workers = decision.workers or min(wanted.whole(state)[1], wanted.planned)
        add = Addition(decision.submit, workers, helps=False)
    return Change(Rule.FALLBACK, f"{decision.step.value}; {decision.why}", add, drop)


def _without(wanted: Wanted, state: FleetState, seen: Seen) -> Change:
    """For a JobSet that Kueue gave up on. Nothing, if others go on with its work, or no profile is left."""
    profile = seen.members[seen.given_up].profile
    following = wanted.profiles[wanted.profiles.index(profile) + 1 :]
    if len(seen.members) > 1 or not following or seen.left_s <= fallback.START_S:
        return Change(Rule.NONE)
    why = f"Kueue gave up on {profile}: {following[0]} replaces it"
    return Change(Rule.FALLBACK, why, Addition(following[0], wanted.whole(state)[1], helps=False), (seen.given_up,))
