"""When a run moves to its next compute profile: rule 4 of `nightshift.jobset.fleet.policy`. Pure.

A profile names others to fall back to (Spot, then flex-start, then on-demand). The run starts on the first. A second JobSet on
the next profile *helps*: both work on the same ledger, so nothing has to be moved, and nothing is computed twice but what both
hold open. When the helper works, the old one is *replaced*: dropped, if it is still of no use.

Several JobSets of one profile (`nightshift.jobset.fleet.deadline` adds such) are judged and dropped together (`of_profiles`).

A JobSet is **short** while fewer than half of its pods run (`enough`). It **fails** in one of two ways:

    no capacity   it has been short for   patience = min(PATIENCE_S, time left / PATIENCE_SHARE)
    loses         in the last window   disruptions >= DISRUPTIONS_MIN  and  disruptions * cost_s > useful_s

``cost_s`` is what one disruption costs: the seconds until a new pod's first row (image, weights, warm-up) and the work that was
under way and not saved. ``useful_s`` is the work that was kept, in the same unit: rows committed in the window / rows that a
worker does in a second. Above that line a worker spends more time on starting than on rows.

    one JobSet, it fails, there is a next profile, time left > START_S     HELP     submit the next profile
    two, the old one fails, the new one was asked for fewer workers        HELP     submit the difference, on the new profile
    two, the old one fails, the helper has had enough pods for HOLD_S      REPLACE  drop the old one
    two, both fail, there is a profile after the helper's, time as above   REPLACE  drop the one with fewer pods, submit that
    anything else                                                          STAY

What prevents flapping: at most two profiles are in use; a run only goes down the list; a helper has a full patience of its own
before it is judged; falling takes patience, dropping takes HOLD_S of a working helper. The last profile never falls back. With
less than START_S left a new JobSet would not finish a row before the deadline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from nightshift.fields.text import n

PATIENCE_S: Final = 900.0
"""How long a JobSet may be short. Flex-start and Spot commonly come within minutes or not for hours."""
PATIENCE_SHARE: Final = 4
"""At most this part of the time left is spent waiting: the next profile, and one after it, need theirs."""
HOLD_S: Final = 600.0
START_S: Final = 600.0
"""From submitting to the first row, on a profile that has capacity: a node's start, image, weights."""
DISRUPTIONS_MIN: Final = 3
"""One reclaim that took two pods is not yet a trend."""


class Step(StrEnum):
    """What to do now."""

    STAY = "stay"
    HELP = "help"
    REPLACE = "replace"


@dataclass(frozen=True)
class Measured:
    """A JobSet of the run that has not ended, and what it did in the last window.

    wanted, running: its pods; hosts: pods of one worker. short_s: for how many seconds it has been short, from its start on; 0
    while it is not. held_s: the reverse.
    disruptions: pods that were taken away. cost_s: worker-seconds that each of them costs. useful_s: those of the work kept.
    """

    profile: str
    wanted: int
    running: int
    short_s: float = 0.0
    held_s: float = 0.0
    disruptions: int = 0
    cost_s: float = 0.0
    useful_s: float = 0.0
    hosts: int = 1

    @property
    def workers(self) -> int:
        return self.wanted // self.hosts


@dataclass(frozen=True)
class FallbackDecision:
    """submit: the profile of a JobSet to make; drop: that of the JobSets to delete; '' for none. why: a sentence.

    workers: of the JobSet to make; 0 for the plan's.
    """

    step: Step
    why: str
    submit: str = ""
    drop: str = ""
    workers: int = 0


def enough(wanted: int) -> int:
    """How many pods have to run: half, and at least one."""
    return max(1, (wanted + 1) // 2)


def measured(profile: str, counts: Mapping[str, Any], hosts: int = 1) -> Measured:
    """From a JobSet's counts since the last decision (`nightshift.jobset.kubernetes.follow.JobSetCounts`)."""
    count = dict(counts)
    worked_s = count.pop("worked_s")
    useful_s = max(0.0, worked_s - count["disruptions"] * START_S)
    return Measured(profile, **count, cost_s=START_S, useful_s=useful_s, hosts=hosts)


def decide(profiles: Sequence[str], live: Sequence[Measured], *, left_s: float) -> FallbackDecision:
    """profiles: in the order of falling back. live: the run's JobSets. left_s: seconds to its deadline.

    Raises ValueError for a JobSet on a profile that is not in the list, and for none.
    """
    found = sorted(of_profiles(live), key=lambda each: _position(profiles, each))
    if not found:
        raise ValueError("a run that waits has at least one JobSet")
    if len(found) > 2:
        return FallbackDecision(Step.STAY, f"{len(found)} profiles are at work, more than the two that help and replace")
    patience_s = min(PATIENCE_S, left_s / PATIENCE_SHARE)
    old, new = found[0], found[-1]
    trouble = _trouble(old, patience_s)
    after = _position(profiles, new) + 1
    following = profiles[after] if after < len(profiles) else ""
    if not trouble:
        return FallbackDecision(Step.STAY, f"{old.profile} has {old.running} of {n(old.wanted, 'pod')} at work")
    if old is not new:
        return _with_helper(old, new, trouble, following, patience_s, left_s)
    if not following:
        return FallbackDecision(Step.STAY, f"{trouble}, and {old.profile} is the last profile")
    if left_s <= START_S:
        return FallbackDecision(Step.STAY, f"{trouble}, but in the {left_s:.0f} s left {following} cannot start")
    return FallbackDecision(Step.HELP, f"{trouble}: {following} helps", submit=following)


def of_profiles(live: Sequence[Measured]) -> list[Measured]:
    """The JobSets of each profile as one: it is short if all its pods together are too few."""
    together: dict[str, list[Measured]] = {}
    for each in live:
        together.setdefault(each.profile, []).append(each)
    return [_as_one(each) if len(each) > 1 else each[0] for each in together.values()]


def _as_one(live: Sequence[Measured]) -> Measured:
    wanted, running = sum(each.wanted for each in live), sum(each.running for each in live)
    short = running < enough(wanted)
    return Measured(
        live[0].profile,
        wanted,
        running,
        short_s=max(each.short_s for each in live) if short else 0.0,
        held_s=0.0 if short else max(each.held_s for each in live),
        disruptions=sum(each.disruptions for each in live),
        cost_s=max(each.cost_s for each in live),
        useful_s=sum(each.useful_s for each in live),
        hosts=live[0].hosts,
    )


def _with_helper(
    old: Measured, new: Measured, trouble: str, following: str, patience_s: float, left_s: float
) -> FallbackDecision:
    """trouble: the old one's."""
    lacking = old.workers - new.workers
    if lacking > 0 and left_s > START_S:
        # It was added to keep the deadline, not to take over.
        why = f"{trouble}, and {new.profile} was asked for {n(new.workers, 'worker')}: {lacking} more help there"
        return FallbackDecision(Step.HELP, why, submit=new.profile, workers=lacking)
    if new.held_s >= HOLD_S:
        why = f"{trouble}, and {new.profile} has had enough pods for {new.held_s:.0f} s: it replaces {old.profile}"
        return FallbackDecision(Step.REPLACE, why, drop=old.profile)
    second = _trouble(new, patience_s)
    if not second:
        return FallbackDecision(Step.STAY, f"{trouble}; {new.profile} helps with {new.running} of {n(new.wanted, 'pod')}")
    if not following or left_s <= START_S:
        return FallbackDecision(Step.STAY, f"{trouble}; {second}; and nothing after it could still start")
    drop = min((old, new), key=lambda each: each.running).profile
    return FallbackDecision(Step.REPLACE, f"{trouble}; {second}: {following} replaces {drop}", submit=following, drop=drop)


def _trouble(jobset: Measured, patience_s: float) -> str:
    """How it fails, as a sentence's beginning; '' when it does not."""
    if jobset.short_s >= patience_s:
        of = f"{jobset.running} of {n(jobset.wanted, 'pod')}"
        return f"{jobset.profile} has had fewer than {n(enough(jobset.wanted), 'pod')} for {jobset.short_s:.0f} s ({of})"
    lost_s = jobset.disruptions * jobset.cost_s
    if jobset.disruptions >= DISRUPTIONS_MIN and lost_s > jobset.useful_s:
        spent = f"{lost_s:.0f} s of work to {jobset.disruptions} disruptions and kept {jobset.useful_s:.0f} s"
        return f"{jobset.profile} lost {spent}"
    return ""


def _position(profiles: Sequence[str], jobset: Measured) -> int:
    try:
        return list(profiles).index(jobset.profile)
    except ValueError:
        raise ValueError(f"a JobSet runs on profile {jobset.profile!r}, which is not one of {', '.join(profiles)}") from None
