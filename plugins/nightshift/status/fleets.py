"""Where the pods of a run are and who has to act, for people: what `nightshift.run.observed.pods_now` knows, with heartbeats,
added up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from nightshift.fields.text import minutes, n
from nightshift.run.observed.heartbeats import Heartbeat
from nightshift.run.observed.pods_now import Acts, JobSetNow, Stage, refined, waited_s
from nightshift.run.observed.progress import STALLED_S

RESTARTS: Final = 2
"""After so many restarts of an engine that never answered, somebody is told."""
ENGINE_RUNS: Final = (Stage.WEIGHTS, Stage.WARM_UP, Stage.WORKING)


@dataclass(frozen=True)
class StageCount:
    """Pods of a run at one stage that wait for the same. since: when the first of them came there, ISO 8601 in UTC; '' if
    unknown. waits_for: '' if for nothing."""

    stage: Stage
    pods: int
    acts: Acts
    waits_for: str
    since: str


def with_heartbeats(jobsets: Iterable[JobSetNow], beats: Mapping[str, Heartbeat]) -> tuple[JobSetNow, ...]:
    """beats: by pod."""
    return tuple(
        replace(each, pods=tuple(refined(pod, beats[pod.name]) if pod.name in beats else pod for pod in each.pods))
        for each in jobsets
    )


def stages(jobsets: Iterable[JobSetNow]) -> tuple[StageCount, ...]:
    """In the order of a pod's path; those that are wanted and do not exist yet are counted, too."""
    found: dict[tuple[Stage, Acts, str], list[str]] = {}
    for jobset in jobsets:
        for pod in jobset.pods:
            found.setdefault((pod.stage, pod.acts, pod.waits_for), []).append(pod.since)
        if jobset.stage in (Stage.PAUSED, Stage.QUEUE) and (held := jobset.counts().get(jobset.stage, 0)):
            found.setdefault((jobset.stage, jobset.acts, jobset.why), []).extend([jobset.since] * held)
    order = list(Stage)
    counts = [StageCount(stage, len(since), acts, what, min(since)) for (stage, acts, what), since in found.items()]
    return tuple(sorted(counts, key=lambda each: (order.index(each.stage), -each.pods)))


def trouble(jobsets: Sequence[JobSetNow], now: float, start_s: float, answered: Callable[[], bool]) -> tuple[str, str] | None:
    """Why a run does not begin to work, as a kind (engine or waiting) and a sentence; None if it works, or may yet.

    now: Unix time. start_s: the longest that an engine should take to start. answered: whether any row has a result; it is
    asked only if no engine should be starting any more.
    """
    pods = [pod for jobset in jobsets for pod in jobset.pods if pod.stage is not Stage.ENDED]
    idle = [pod for pod in pods if pod.stage is not Stage.WORKING]
    broken = [pod for pod in idle if pod.words is not None and (pod.restarts >= RESTARTS or pod.acts is Acts.AUTHOR)]
    if broken and idle == pods:
        return "engine", f"No engine starts: {max(broken, key=lambda pod: pod.restarts).waits_for}."
    held = [each for each in stages(jobsets) if each.acts is Acts.CLUSTER and waited_s(each.since, now) > STALLED_S]
    if held and idle == pods:
        longest = max(held, key=lambda each: waited_s(each.since, now))
        waited = waited_s(longest.since, now)
        what = longest.waits_for or str(longest.stage)
        return "waiting", f"{n(longest.pods, 'pod')} waiting for {what} for {minutes(waited)}: ask who runs the cluster."
    runs = max((waited_s(pod.since, now) for pod in pods if pod.stage in ENGINE_RUNS), default=0.0)
    if runs > start_s and not answered():
        words = f"No row is answered, and an engine has run for {minutes(runs)}; a start takes {minutes(start_s)} at most."
        return "engine", f"{words} It may hang: its last lines are in the log of infer; clearing that task starts it again."
    return None
