"""When a late run gets more workers: rule 5 of `nightshift.jobset.fleet.policy`. Pure.

More workers come as a *helping* JobSet on the same ledger; it ends with the ledger, like any other. It gets

    workers = (rows left / speed - work that is expected anyway) / (IN_TIME * time left - start-up)

so that the run ends within 85% of the time left (`nightshift.jobset.fleet.forecast.IN_TIME`; both sums over the workers and
seconds until then), within the quota, full batches and the deployment's limit (default: `TIMES_PLAN` times the plan's workers).

    the forecast has been late for less than HOLD_S, or is not now       STAY
    the job sets the number of workers (``compute.workers``)             STAY, but log how many would keep the deadline
    a JobSet can still be starting                                       STAY, until it is there or its time is over
    HELPS_MAX JobSets have helped                                        STAY
    the only profile in use is short of pods, and there is a next one    STAY: `nightshift.jobset.fleet.fallback` moves on
    a JobSet of the last profile in use has less than GIVES of its pods  HELP on the next profile; STAY if there is none
    a JobSet submitted now would start for longer than it would work     STAY
    anything else                                                        HELP on the last profile in use

What prevents flapping. A band: late is above 95% of the time left, in time below 85%; in between the last state holds. A hold:
late for HOLD_S without a break. A wait: no decision while a JobSet is starting. A bound: HELPS_MAX JobSets per run. One
direction: this rule never removes a worker, and while the run is late, neither does falling back (`careful`). A helping JobSet
that got no worker is dropped when the next profile helps.

Prices do not count. Workers that were requested but not granted count against the room.
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
"""A slow chunk or a few preemptions are over by then."""
HELPS_MAX: Final = 3
"""Per run. A forecast that needs a fourth correction is useless."""
TIMES_PLAN: Final = 4
"""Limit of a run's workers if ``NIGHTSHIFT_WORKERS_MAX`` is unset: twice for half the speed, twice for half of them lost."""
GIVES: Final = 0.75
"""A profile that runs less than this share of the requested workers has no capacity for more."""


@dataclass(frozen=True)
class Asked:
    """A JobSet of the run. profile, wanted: its workers. helps: whether this rule or a user added it."""

    profile: str
    wanted: int
    helps: bool = False


@dataclass(frozen=True)
class Terms:
    """What bounds the help. profiles: in the order of falling back. start_up_s: of a new JobSet.

    room: the most workers that the run may have, None for no limit. useful: with more, a worker would not have a full
    batch. stated: whether a user set the number of workers. helped: how many JobSets have helped so far.
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
        ready = any(each.ready for each in forecast.fleets.values())
        return Keeping(f"no forecast yet: {'nothing is committed so far' if ready else 'no worker is ready'}")
    when = _when(forecast)
    if not forecast.late:
        return Keeping(when)
    if forecast.late_s < HOLD_S or forecast.end_s <= LATE * forecast.left_s:
        return Keeping(f"{when}; it has been late for {forecast.late_s:.0f} s")
    needed = missing(forecast, IN_TIME * forecast.left_s, terms.start_up_s)
    if terms.stated:
        would = f"; {n(needed, 'more worker')} would keep the deadline" if needed else ""
        return Keeping(f"{when}{would}, but the job sets their number (compute.workers)")
    if starting := [name for name in jobsets if not forecast.fleets[name].ready]:
        return Keeping(f"{when}, and {starting[-1]} is still starting")
    if terms.helped >= HELPS_MAX:
        return Keeping(f"{when}, but {HELPS_MAX} JobSets have helped, which is the limit")
    return _help(forecast, jobsets, terms, when, needed)


def _help(forecast: Forecast, jobsets: Mapping[str, Asked], terms: Terms, why: str, needed: int | None) -> Keeping:
    used = [profile for profile in terms.profiles if any(each.profile == profile for each in jobsets.values())]
    profile, drop = used[-1], []
    names = [name for name, each in jobsets.items() if each.profile == profile]
    following = terms.profiles[terms.profiles.index(profile) + 1 :]
    wanted, runs = sum(jobsets[name].wanted for name in names), sum(forecast.fleets[name].workers for name in names)
    of = f"{runs:.0f} of {n(wanted, 'worker')}"
    if len(used) == 1 and following and runs < enough(wanted):
        return Keeping(f"{why}; {profile} runs {of}, so the fallback rule decides")
    if any(forecast.fleets[name].workers < GIVES * jobsets[name].wanted for name in names):
        why = f"{why}; {profile} runs only {of}"
        if not following:
            return Keeping(f"{why}, and it is the last profile")
        drop = [name for name in names if jobsets[name].helps and not forecast.fleets[name].workers]
        profile = following[0]
    works_s = IN_TIME * forecast.left_s - terms.start_up_s
    if needed is None or works_s < terms.start_up_s:
        works = f", {minutes(works_s)} of work" if works_s > 0 else ""
        return Keeping(
            f"{why}, but workers that start now would come too late ({minutes(terms.start_up_s)} of start-up{works})"
        )
    have = sum(each.wanted for name, each in jobsets.items() if name not in drop)
    most = min(terms.useful, math.inf if terms.room is None else terms.room) - have
    if most < 1:
        return Keeping(f"{why}, but it may have no more than {n(have, 'worker')}")
    workers = int(min(needed, most))
    short = f" of the {needed:,} that it needs" if workers < needed else ""
    return Keeping(f"{why}: {n(workers, 'more worker')}{short} on {profile}", workers, profile, tuple(drop))


def careful(decision: FallbackDecision, late: bool, running: int) -> FallbackDecision:
    """Falling back, without taking workers from a late run. running: pods of the profile to be dropped."""
    if decision.step is not Step.REPLACE or not late or not running:
        return decision
    why = f"{decision.why}; the night is late, so {decision.drop} keeps {n(running, 'pod')}"
    return replace(decision, step=Step.HELP if decision.submit else Step.STAY, why=why, drop="")


def _when(forecast: Forecast) -> str:
    if forecast.end_s is None or math.isinf(forecast.end_s):
        return f"at this rate it will never end, and {minutes(forecast.left_s)} are left"
    by = forecast.end_s - forecast.left_s
    how = f"{minutes(by)} after the deadline" if by > 0 else f"{minutes(-by)} before the deadline"
    return f"it will end in {minutes(forecast.end_s)}, {how}"
