"""When a night that will be late gets more workers: rule 5 of `nightshift.jobset.fleet.policy`. Pure.

More workers come as a *helping* JobSet on the same ledger; it ends with the ledger, like any other. It gets

    workers = (rows left / speed - work that is expected anyway) / (IN_TIME * time left - start-up)

so that the night ends within 85% of the time that is left (`nightshift.jobset.fleet.forecast.IN_TIME`; both sums over the
workers and seconds until then). Never more than the quota, the deployment's limit and full batches allow; without a
deployment's limit no more than `TIMES_PLAN` times the plan's workers.

    the forecast has been late for less than HOLD_S, or is not just now  STAY
    a person said how many workers there are (``compute.workers``)       STAY, but say how many would keep the deadline
    a JobSet can still be starting                                       STAY, until it is there or its time is over
    HELPS_MAX JobSets have helped                                        STAY
    the only profile in use is short of pods, and there is a next one    STAY: `nightshift.jobset.fleet.fallback` moves on
    a JobSet of the last profile in use has less than GIVES of its pods  HELP on the next profile; STAY if there is none
    a JobSet submitted now would start for longer than it would work     STAY
    anything else                                                        HELP on the last profile in use

What keeps it calm. A band: late is above 95% of the time left, in time below 85%, and in between what was said last holds. A
hold: late for HOLD_S without a break. A pause: nothing is decided while a JobSet is starting, so that its work is seen first. A
bound: HELPS_MAX JobSets a night. One direction: this rule never takes a worker away, so it cannot go back and forth; and while
the night is late, falling back does not either (`careful`). A helping JobSet that got no worker at all goes when the next
profile helps.

It does not look at prices. Workers that a profile was asked for and does not give count against the room.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from nightshift.fields.text import minutes, n
from nightshift.jobset.fleet.fallback import FallbackDecision, Step, enough
from nightshift.jobset.fleet.forecast import IN_TIME, LATE, Forecast, missing

HOLD_S: Final = 300.0
"""One slow chunk, or a few preemptions at once, are over by then."""
HELPS_MAX: Final = 3
"""Of a night. A forecast that needs a fourth correction is of no use."""
TIMES_PLAN: Final = 4
"""All workers of a night together, where no operator has said how many there may be (``NIGHTSHIFT_WORKERS_MAX``). Twice for a
speed that was half as high as believed, and twice for a storm that takes half of the workers."""
GIVES: Final = 0.75
"""A profile that runs less than this share of the workers that were asked of it has no capacity for more."""


@dataclass(frozen=True)
class Asked:
    """A JobSet of the night. profile, wanted: its workers. helps: whether this rule or a person added it."""

    profile: str
    wanted: int
    helps: bool = False


@dataclass(frozen=True)
class Terms:
    """What bounds the help. profiles: in the order of falling back. start_up_s: of a new JobSet.

    room: the most workers that the night may have, None if nobody says. useful: with more, a worker would not have a full
    batch. stated: whether a person said how many workers there are. helped: how many JobSets have helped so far.
    """

    profiles: Sequence[str]
    start_up_s: float
    room: int | None
    useful: int = 0
    stated: bool = False
    helped: int = 0


@dataclass(frozen=True)
class Keeping:
    """What to do for the deadline. workers: of a helping JobSet on `profile`; 0 for none. why: a sentence.

    drop: names of helping JobSets that got no worker.
    """

    why: str
    workers: int = 0
    profile: str = ""
    drop: tuple[str, ...] = ()


def decide(forecast: Forecast, jobsets: Mapping[str, Asked], terms: Terms) -> Keeping:
    """jobsets: by the names that the forecast has."""
    if forecast.end_s is None:
        return Keeping("it is not known yet when it will end")
    said = _when(forecast)
    if not forecast.late:
        return Keeping(said)
    if forecast.late_s < HOLD_S or forecast.end_s <= LATE * forecast.left_s:
        return Keeping(f"{said}; it has been late for {forecast.late_s:.0f} s")
    needed = missing(forecast, IN_TIME * forecast.left_s, terms.start_up_s)
    if terms.stated:
        would = f"; {n(needed, 'more worker')} would keep the deadline" if needed else ""
        return Keeping(f"{said}{would}, but the job sets their number (compute.workers)")
    if starting := [name for name in jobsets if not forecast.fleets[name].ready]:
        return Keeping(f"{said}, and {starting[-1]} is still starting")
    if terms.helped >= HELPS_MAX:
        return Keeping(f"{said}, but {HELPS_MAX} JobSets have helped, which is the limit")
    return _help(forecast, jobsets, terms, said, needed)


def _help(forecast: Forecast, jobsets: Mapping[str, Asked], terms: Terms, said: str, needed: int | None) -> Keeping:
    used = [profile for profile in terms.profiles if any(each.profile == profile for each in jobsets.values())]
    profile, drop = used[-1], []
    names = [name for name, each in jobsets.items() if each.profile == profile]
    following = terms.profiles[terms.profiles.index(profile) + 1 :]
    wanted, runs = sum(jobsets[name].wanted for name in names), sum(forecast.fleets[name].workers for name in names)
    of = f"{runs:.0f} of {wanted:,} workers"
    if len(used) == 1 and following and runs < enough(wanted):
        return Keeping(f"{said}; {profile} runs {of}, so the fallback rule decides")
    if any(forecast.fleets[name].workers < GIVES * jobsets[name].wanted for name in names):
        said = f"{said}; {profile} runs only {of}"
        if not following:
            return Keeping(f"{said}, and it is the last profile")
        drop = [name for name in names if jobsets[name].helps and not forecast.fleets[name].workers]
        profile = following[0]
    works_s = IN_TIME * forecast.left_s - terms.start_up_s
    if needed is None or works_s < terms.start_up_s:
        works = f", {minutes(works_s)} of work" if works_s > 0 else ""
        return Keeping(
            f"{said}, but workers that start now would come too late ({minutes(terms.start_up_s)} of start-up{works})"
        )
    have = sum(each.wanted for name, each in jobsets.items() if name not in drop)
    most = min(terms.useful, math.inf if terms.room is None else terms.room) - have
    if most < 1:
        return Keeping(f"{said}, but it may have no more than {n(have, 'worker')}")
    workers = int(min(needed, most))
    short = f" of the {needed:,} that it needs" if workers < needed else ""
    return Keeping(f"{said}: {n(workers, 'more worker')}{short} on {profile}", workers, profile, tuple(drop))


def careful(decision: FallbackDecision, late: bool, running: int) -> FallbackDecision:
    """Falling back, without taking workers away from a night that is late. running: pods of the profile to be dropped."""
    if decision.step is not Step.REPLACE or not late or not running:
        return decision
    why = f"{decision.why}; the night is late, so the {running} pods of {decision.drop} stay"
    return replace(decision, step=Step.HELP if decision.submit else Step.STAY, why=why, drop="")


def _when(forecast: Forecast) -> str:
    if forecast.end_s is None or math.isinf(forecast.end_s):
        return f"at this rate it will never end, and {minutes(forecast.left_s)} are left"
    by = forecast.end_s - forecast.left_s
    how = f"{minutes(by)} after the deadline" if by > 0 else f"{minutes(-by)} before the deadline"
    return f"it will end in {minutes(forecast.end_s)}, {how}"
