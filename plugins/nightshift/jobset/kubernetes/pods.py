"""What a follower remembers of a JobSet's pods."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from nightshift.jobset.labels import INDEX_ANNOTATION
from nightshift.jobset.observation import containers, slim_pod
from nightshift.jobset.verdict.pod_ends import disruption_of
from nightshift.jobset.verdict.stages import pod_now, vanished
from nightshift.run.observed.pods_now import PodNow, Stage

ENDED_MAX: Final = 100
"""Failed and deleted pods that are kept in enough detail to be judged; the newest, if there are more."""


@dataclass(frozen=True, slots=True)
class Life:
    """One start of a container. running: else it has ended. previous: it is the one before the present."""

    id: str
    container: str
    running: bool
    previous: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """What matters of a pod until it is gone."""

    name: str
    index: str
    phase: str

    @property
    def ended(self) -> bool:
        return self.phase in ("Succeeded", "Failed", "Deleted")


class Pods:
    """All pods of a JobSet, by uid. events: of them, when they were asked for last."""

    def __init__(self) -> None:
        self._seen: dict[str, Seen] = {}
        self._last_words: dict[str, dict[str, Any]] = {}
        self._pending: dict[str, dict[str, Any]] = {}
        self._now: dict[str, PodNow] = {}
        self.disruptions = 0
        self.events: tuple[Mapping[str, Any], ...] = ()

    def update(self, pod: Mapping[str, Any], *, deleted: bool = False) -> None:
        uid = pod["metadata"]["uid"]
        before = self._seen.get(uid)
        now = _seen(pod, deleted)
        self._seen[uid] = now
        self._now[uid] = pod_now(pod, time.time(), deleted=deleted)
        self._pending.pop(uid, None)
        if now.phase == "Pending":
            self._pending[uid] = slim_pod(pod)
        if deleted or now.phase == "Failed":
            if (before is None or not before.ended) and (deleted or disruption_of(pod)):
                self.disruptions += now.phase != "Succeeded" and pod.get("status", {}).get("phase") != "Succeeded"
            self._last_words.pop(uid, None)
            self._last_words[uid] = slim_pod(pod)
            if len(self._last_words) > ENDED_MAX:
                self._last_words.pop(next(iter(self._last_words)))

    def recall(self, ended: list[dict[str, Any]], disruptions: int) -> None:
        """Continues from an earlier object's pods and count: these pods are not counted again."""
        for pod in ended:
            uid = pod["metadata"]["uid"]
            self._last_words[uid] = pod
            self._seen[uid] = _seen(pod, deleted=True)
            self._now[uid] = pod_now(pod, time.time(), deleted=True)
        self.disruptions = disruptions

    def keep_only(self, uids: set[str]) -> list[str]:
        """After a new list: the names of pods that disappeared before their end was seen."""
        gone = [uid for uid, seen in self._seen.items() if uid not in uids and seen.phase != "Deleted"]
        names = [self._seen[uid].name for uid in gone if not self._seen[uid].ended]
        for uid in gone:
            seen = self._seen[uid]
            self._seen[uid] = Seen(seen.name, seen.index, "Deleted")
            self._pending.pop(uid, None)
            if self._now[uid].stage is not Stage.ENDED:
                self._now[uid] = vanished(self._now[uid], time.time())
        return names

    def now(self, at: float) -> list[PodNow]:
        """Where each pod is, the newest `ENDED_MAX` of those that have ended included. at: Unix time."""
        # Who has to act for those that wait depends on how long they have.
        found = {**self._now, **{uid: pod_now(pod, at, events=self.events) for uid, pod in self._pending.items()}}
        over = sorted((each for each in found.values() if each.stage is Stage.ENDED), key=lambda each: each.since)
        return [*over[-ENDED_MAX:], *(each for each in found.values() if each.stage is not Stage.ENDED)]

    def last_words(self) -> list[dict[str, Any]]:
        """Failed and deleted pods, slim, oldest first."""
        return list(self._last_words.values())

    def started(self) -> int:
        """Pods that run or have succeeded."""
        return sum(seen.phase in ("Running", "Succeeded") for seen in self._seen.values())

    def running(self) -> int:
        return sum(seen.phase == "Running" for seen in self._seen.values())

    def all_ended(self) -> bool:
        return all(seen.ended for seen in self._seen.values())

    def pending(self) -> tuple[dict[str, Any], ...]:
        """Pods that have not started, slim."""
        return tuple(self._pending.values())


def container_lives(pod: Mapping[str, Any]) -> Iterator[Life]:
    """The starts whose logs can be read: the present one of each container, and the one before it."""
    for each in containers(pod):
        before = each.get("lastState", {}).get("terminated") or {}
        if before.get("containerID") and before["containerID"] != each.get("containerID"):
            yield Life(before["containerID"], each["name"], running=False, previous=True)
        state = each.get("state", {})
        if each.get("containerID") and ("running" in state or "terminated" in state):
            yield Life(each["containerID"], each["name"], running="running" in state)


def _seen(pod: Mapping[str, Any], deleted: bool) -> Seen:
    meta = pod["metadata"]
    phase = "Deleted" if deleted else pod.get("status", {}).get("phase", "Pending")
    index = (meta.get("annotations") or {}).get(INDEX_ANNOTATION, "")
    return Seen(meta["name"], index, phase)
