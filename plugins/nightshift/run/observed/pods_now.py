"""Where the pods of a run are now, and who has to act: for people, while the night runs and after it.

The trigger of the task `infer` writes it beside what `nightshift.run.observed.pod_startup` keeps, at most once a minute and
only when it has changed; the task writes it once more when a JobSet has ended. Nothing is decided or proven from it, so no
failure to read or write it touches a night. `nightshift.run.observed.pods_kept` reads and writes it.

A cluster does not see everything. It counts a pod as working as soon as its driver runs: until the driver's first request,
`refined` knows more, from its heartbeat. So it is with the hosts of a worker of several, whose drivers start before the engine.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from nightshift.fields.stored import read
from nightshift.formats import STARTS
from nightshift.run.names import canonical_json

if TYPE_CHECKING:
    from nightshift.run.observed.heartbeats import Heartbeat

FORECAST_S: Final = 300.0
"""A forecast that is older is not shown: the trigger that makes one each minute is gone."""
LINES_MOST: Final = 20
CHARACTERS_MOST: Final = 500
"""Of one line of last words."""


class Stage(StrEnum):
    """The path of a pod, in order; the first two come before it exists."""

    PAUSED = "paused"
    QUEUE = "queue"
    """Its JobSet waits for quota."""
    NODE = "node"
    IMAGE = "image"
    """It has a machine; its containers are not running yet."""
    WEIGHTS = "weights"
    """Its engine runs and does not answer yet: it downloads, loads, compiles, or exits and is started again."""
    WARM_UP = "warm_up"
    """Its engine answers; its driver has sent no request yet."""
    WORKING = "working"
    ENDED = "ended"


_WAITING: Final = {
    Stage.NODE: "a machine",
    Stage.IMAGE: "its image",
    Stage.WEIGHTS: "its engine",
    Stage.WARM_UP: "its first request",
}


class Acts(StrEnum):
    """Who has to act, so that a pod gets on."""

    NOBODY = "nobody"
    CLUSTER = "cluster"
    """Who runs the cluster: quota, machines, images, secrets."""
    AUTHOR = "author"
    """Who wrote the job: model, flags, memory."""
    USER = "user"
    """Who paused the run."""

    @property
    def words(self) -> str:
        """For people."""
        return _ACT_WORDS[self]


_ACT_WORDS: Final = {
    Acts.NOBODY: "nobody",
    Acts.CLUSTER: "who runs the cluster",
    Acts.AUTHOR: "who wrote the job",
    Acts.USER: "who paused the run",
}


def waited_s(since: str, now: float) -> float:
    """Seconds from a time, ISO 8601, to now, Unix time; 0 if it is no time."""
    try:
        return now - datetime.fromisoformat(since).timestamp()
    except ValueError:
        return 0.0


class PodEnding(StrEnum):
    """How a pod ended."""

    DONE = "done"
    FAILED = "failed"
    TAKEN = "taken"
    """The cluster, a pause or a smaller JobSet took it away."""


SIGKILL: Final = 137
"""The exit code of a container that was killed."""
OUT_OF_MEMORY: Final = "OOMKilled"
"""Why, if it was its memory limit."""


@dataclass(frozen=True)
class LastWords:
    """Of a container that exited with an error.

    reason: Kubernetes' own (Error, OOMKilled, StartError). at: ISO 8601 in UTC, '' if unknown. restarts: of the container, so
    far; exits: how often it has ended. cause: the line that says why, '' if none does. lines: the last ones, at most
    `LINES_MOST`. may_pass: whether a server did not answer it, so that another start may succeed.
    """

    container: str
    exit_code: int
    reason: str
    restarts: int = 0
    at: str = ""
    cause: str = ""
    lines: tuple[str, ...] = ()
    exits: int = 0
    may_pass: bool = False

    @property
    def killed(self) -> bool:
        """Whether something else than its own memory limit has ended it: then its log does not know why."""
        return self.exit_code == SIGKILL and self.reason != OUT_OF_MEMORY

    @property
    def said(self) -> str:
        """One line: the cause; without one the last line, or the exit code. A program that was killed had no say in it."""
        if self.killed:
            return f"it was killed: exit code {self.exit_code} (SIGKILL), by its probe, its node or by hand"
        if self.reason == OUT_OF_MEMORY:
            return self.cause or "it was killed: it used more memory than its limit"
        last = self.lines[-1].strip() if self.lines else f"exit code {self.exit_code} ({self.reason})"
        return self.cause or last


@dataclass(frozen=True)
class PodNow:
    """A pod at one moment.

    since: when the stage began, ISO 8601 in UTC. why: what it waits for, in the words of scheduler or kubelet; '' if they have
    none. ending: None until it has ended. words: of the last container that failed; None if none has. restarts: of the
    container that was restarted most. stuck: a container cannot be made: its image, a volume, or a secret that it needs.
    """

    name: str
    index: int
    stage: Stage
    since: str
    acts: Acts = Acts.NOBODY
    why: str = ""
    node: str = ""
    restarts: int = 0
    ending: PodEnding | None = None
    words: LastWords | None = None
    stuck: bool = False

    @property
    def waits_for(self) -> str:
        """What it waits for before it works: "server (restarted 3 times, last error: ...)"; '' if for nothing."""
        if self.stage not in _WAITING:
            return ""
        if self.words is None:
            return f"{_WAITING[self.stage]} ({self.why})" if self.why else _WAITING[self.stage]
        again = "once" if self.restarts == 1 else f"{self.restarts} times"
        return f"{self.words.container} (restarted {again}, last error: {self.words.said})"


@dataclass(frozen=True)
class JobSetNow:
    """A JobSet at one moment.

    at: when this was written, ISO 8601 in UTC. wanted: pods that are to run at once. stage: PAUSED or QUEUE if the JobSet is
    held, ENDED once it is over; None while its pods say where they are. since, acts, why: of that stage. profile: '' if it is
    unknown. ends_at: when the last row of the run will be committed, as its trigger forecast it at forecast_at; both '' if it
    made no forecast, and in what an earlier release wrote.
    """

    name: str
    at: str
    wanted: int
    stage: Stage | None = None
    since: str = ""
    acts: Acts = Acts.NOBODY
    why: str = ""
    profile: str = ""
    pods: tuple[PodNow, ...] = field(default=())
    ends_at: str = ""
    forecast_at: str = ""

    def counts(self) -> dict[Stage, int]:
        """Pods by stage, in its order; those that are wanted and do not exist count for the JobSet's own stage."""
        found = Counter(pod.stage for pod in self.pods)
        if self.stage in (Stage.PAUSED, Stage.QUEUE):
            found[self.stage] += max(0, self.wanted - sum(pod.stage is not Stage.ENDED for pod in self.pods))
        return {stage: found[stage] for stage in Stage if found[stage]}

    def last_words(self) -> LastWords | None:
        """The newest of its pods."""
        spoken = [pod.words for pod in self.pods if pod.words]
        return max(spoken, key=lambda words: words.at, default=None)

    def same_as(self, other: JobSetNow) -> bool:
        """Whether nothing but the time differs."""
        return replace(self, at="") == replace(other, at="")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def to_bytes(self) -> bytes:
        return canonical_json({**STARTS.stamp(), "now": self.to_json()})

    @classmethod
    def from_bytes(cls, body: bytes) -> JobSetNow | None:
        """Inverse of `to_bytes`; None for anything else. Entries that a later release added are passed over."""
        try:
            value = json.loads(body)
            STARTS.check(value, "it")
            return read(cls, value["now"])
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
            return None


def forecast_end(jobsets: Iterable[JobSetNow], now: float) -> float | None:
    """When the last row of their run will be committed, Unix time, by the newest forecast; None if that is not of the last
    `FORECAST_S`. now: Unix time."""
    made = max(jobsets, key=lambda each: each.forecast_at, default=None)
    if made is None or not made.ends_at or waited_s(made.forecast_at, now) > FORECAST_S:
        return None
    return now - waited_s(made.ends_at, now)


def in_words(now: JobSetNow) -> str:
    """For a log: "1 running, 0 finished, 0 failed; 2 waiting for server (restarted 3 times, last error: ...)"."""
    endings = Counter(pod.ending for pod in now.pods if pod.ending)
    running = sum(pod.stage is Stage.WORKING for pod in now.pods)
    parts = [f"{running} running", f"{endings[PodEnding.DONE]} finished", f"{endings[PodEnding.FAILED]} failed"]
    if endings[PodEnding.TAKEN]:
        parts.append(f"{endings[PodEnding.TAKEN]} taken away")
    counts = ", ".join(parts)
    if now.stage is Stage.PAUSED:
        return f"{now.why}; {counts}" if now.why else f"paused; {counts}"
    return "; ".join(filter(None, (counts, waiting(now))))


def waiting(now: JobSetNow) -> str:
    """What a JobSet that is not paused waits for: "waiting for quota", "2 waiting for server (...)"; '' if for nothing."""
    if now.stage is Stage.QUEUE:
        return f"waiting for quota{f' ({now.why})' if now.why else ''}"
    waits = Counter(pod.waits_for for pod in now.pods if pod.waits_for)
    several = sum(waits.values()) > 1
    return ", ".join(f"{f'{count} ' if several else ''}waiting for {what}" for what, count in waits.most_common(2))


def waits(jobsets: Iterable[JobSetNow], now: float) -> str:
    """What the pods of a run wait for, and the longest of each JobSet's waits; '' if for nothing. now: Unix time."""
    said = []
    for each in jobsets:
        words = (each.why or "paused") if each.stage is Stage.PAUSED else waiting(each)
        held = [each.since] if each.stage in (Stage.PAUSED, Stage.QUEUE) else [pod.since for pod in each.pods if pod.waits_for]
        waited = max((waited_s(since, now) for since in held), default=0.0) / 60
        said.append(f"{words} for {waited:.0f} min" if words and waited >= 1 else words)
    return "; ".join(filter(None, said))


def merged(before: JobSetNow | None, now: JobSetNow) -> JobSetNow:
    """`now`, with what an earlier look knows better: when a stage began, the last words of a container, and the forecast."""
    if before is None:
        return now
    if not now.forecast_at:
        now = replace(now, ends_at=before.ends_at, forecast_at=before.forecast_at)
    earlier = {pod.name: pod for pod in before.pods}
    pods = tuple(_continued(earlier[pod.name], pod) if pod.name in earlier else pod for pod in now.pods)
    same = before.stage is now.stage and before.since and before.since < now.since
    return replace(now, pods=pods, since=before.since if same else now.since, profile=now.profile or before.profile)


def refined(pod: PodNow, beat: Heartbeat) -> PodNow:
    """With what its driver's newest heartbeat says of its start."""
    if pod.stage is not Stage.WORKING or "warm_up" in beat.start_up_s:
        return pod
    return replace(pod, stage=Stage.WARM_UP if "weights" in beat.start_up_s else Stage.WEIGHTS)


def in_time(seconds: float) -> str:
    """A moment, given in seconds since the epoch, as it is written here."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def clipped(lines: Iterable[str]) -> tuple[str, ...]:
    """The last lines, each of bounded length, without empty ones at the end."""
    kept = [line.rstrip()[:CHARACTERS_MOST] for line in lines if line.strip()]
    return tuple(kept[-LINES_MOST:])


def _continued(before: PodNow, now: PodNow) -> PodNow:
    since = before.since if before.stage is now.stage and before.since and before.since < now.since else now.since
    words = now.words
    if words is None or (before.words and before.words.at == words.at and not words.cause):
        words = before.words
    return replace(now, since=since, words=words, restarts=max(before.restarts, now.restarts))
