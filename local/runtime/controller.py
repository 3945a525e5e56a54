"""One JobSet under the agent: `reconcile` reads what was requested and what has ended, decides, writes, then acts.

Each act is recorded in status.json first, which makes it safe to repeat after the agent was killed: a pod is recorded
before its first process starts, its end before a replacement is made, the end of a Job before its last pods get their
SIGTERM.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from local.runtime import policy
from local.runtime.config import AgentConfig
from local.runtime.folder import STATUS_VERSION, AgentJobSetFolder
from local.runtime.objects import EVICTED, objects
from local.runtime.pod import Pod, Ports
from local.runtime.records import JobSetRecord, PodRecord
from local.runtime.spec import read_manifest

log = logging.getLogger(__name__)

NODE_LOST: Final = "DeletionByPodGC"
NODE_SHUTDOWN: Final = "TerminationByKubelet"
"""Reasons for the condition DisruptionTarget, beside EVICTED."""

_SUFFIX_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
"""The characters of Kubernetes' random name suffixes."""


class OtherRelease(ValueError):
    """An agent of another release has written the record of the JobSet."""


@dataclass
class Node:
    """What the JobSets of one agent share. bound: pods that have a place. draining: no more pods get one."""

    config: AgentConfig
    wake: Callable[[], None]
    ports: Ports = field(default_factory=Ports)
    bound: int = 0
    draining: bool = False

    def has_room(self) -> bool:
        return not self.draining and self.bound < self.config.max_pods


@dataclass
class _Started:
    pod: Pod
    task: asyncio.Task[None]


class Controller:
    """Raises ManifestError for a manifest that cannot be carried out."""

    def __init__(self, folder: AgentJobSetFolder, node: Node, now: float) -> None:
        self.folder = folder
        self.created_at = folder.created_at()
        self._node = node
        self._manifest = folder.manifest()
        self.spec = self._spec = read_manifest(self._manifest)
        self.object = folder.object()
        """The JobSet as the API has it, without its status."""
        self.seen: dict[str, Any] = {}
        """What was written last, as `objects` returns it."""
        self._deleting = False
        self._resting = False
        self._live: dict[str, _Started] = {}
        self._record = self._remembered()
        self._saved: dict[str, Any] = {}
        self._recover(now)
        self._save()

    @property
    def idle(self) -> bool:
        """Whether no process of it is left."""
        return not self._live

    def reconcile(self, now: float) -> bool:
        """One step. False if the JobSet is gone: by request, or because its time after the end is over."""
        self._collect(now)
        if self.folder.stop_asked_at():
            return not self._delete(now)
        self._evict(now)
        if self._record.finished_at:
            return not self._expire(now)
        if self._suspended():
            self._rest(now)
            return True
        if self._resting or not self._record.started_at:
            # As in Kubernetes, the Job's time begins again when it goes on.
            self._record.started_at, self._resting = now, False
        self._advance(now)
        self._save()
        self._bind()
        return True

    def change(self, new: dict[str, Any]) -> None:
        """Makes this the JobSet; of its spec only ``suspend`` may differ. It takes effect with the next `reconcile`."""
        self.folder.write_object(new)
        self.object = new
        self._save()

    def stop(self) -> None:
        """Begins to delete it."""
        if not self.folder.stop_asked_at():
            self.folder.ask_stop()
        self._save()

    def evict(self, pod: str) -> None:
        self.folder.ask_eviction(pod)

    def _suspended(self) -> bool:
        return bool(self.object["spec"].get("suspend"))

    def _rest(self, now: float) -> None:
        """Suspended: pods end, finished indexes stay. An end that was decided before is carried out."""
        if self._record.end is not None:
            self._advance(now)
        elif self._record.started_at:
            self._resting = True
            self._stop_pods(now)
        self._save()

    def shut_down(self, now: float) -> None:
        """The node shuts down: every pod gets SIGTERM and at most the node's grace period."""
        for record in self._open():
            if record.bound:
                record.disrupt(NODE_SHUTDOWN, now)
        self._save()
        grace = min(float(self._spec.pod.grace_s), self._node.config.shutdown_grace_s)
        for live in self._live.values():
            live.pod.stop(grace)

    def _open(self) -> list[PodRecord]:
        return [record for record in self._record.pods if not record.ruling]

    def _remembered(self) -> JobSetRecord:
        """What an earlier agent wrote; an empty record if none did, or it refused the JobSet.

        Raises OtherRelease.
        """
        written = self.folder.read_status()
        if written is None or not written["state"]:
            return JobSetRecord()
        if written.get("version") != STATUS_VERSION:
            raise OtherRelease("an agent of another release has begun this JobSet, and this one cannot go on with it")
        return JobSetRecord.from_dict(written["state"])

    def _recover(self, now: float) -> None:
        """After a restart: pods that had their place were lost with the node."""
        for record in self._open():
            if record.bound:
                log.warning("pod %s was lost with the agent before this one", record.name)
                record.disrupt(NODE_LOST, now)
                for status in (each for part in record.containers.values() for each in part):
                    status |= {"started": False, "ready": False}
                self._close(record, [], now, succeeded=False)

    def _collect(self, now: float) -> None:
        for record in self._open():
            live = self._live.get(record.name)
            if live is None or not live.task.done():
                continue
            live.task.result()
            del self._live[record.name]
            self._node.bound -= 1
            record.containers = live.pod.statuses()
            self._close(record, live.pod.exit_codes(), now, succeeded=live.pod.succeeded)
            self._save()

    def _close(self, record: PodRecord, exit_codes: list[tuple[str, int]], now: float, *, succeeded: bool) -> None:
        record.phase = "Succeeded" if succeeded else "Failed"
        record.ended_at = now
        if succeeded:
            record.ruling = "Succeeded"
        elif self._record.end is not None or record.deleted_at or self.folder.stop_asked_at():
            record.ruling = "Deleted"
        else:
            name = f"{self._spec.namespace}/{record.name}"
            rules = self._spec.job.rules
            record.ruling, record.message = policy.judge(rules, name, exit_codes, disrupted=bool(record.reason))
        log.info("pod %s: %s %s exit codes %s -> %s", record.name, record.phase, record.reason, dict(exit_codes), record.ruling)

    def _stop_pods(self, now: float) -> None:
        for record in self._open():
            record.deleted_at = record.deleted_at or now
            self._end(record, now)

    def _end(self, record: PodRecord, now: float) -> None:
        """Signals a pod to end; a pod without a place on the node has nothing to end."""
        if record.name in self._live:
            self._live[record.name].pod.stop(self._spec.pod.grace_s)
        elif not record.bound:
            self._close(record, [], now, succeeded=False)

    def _delete(self, now: float) -> bool:
        if not self._deleting:
            self._deleting = True
            log.info("%s: stop asked", self.folder.name)
        self._stop_pods(now)
        self._save()
        if self._live:
            return False
        self._remove()
        return True

    def _expire(self, now: float) -> bool:
        ttl = self._spec.ttl_s
        if ttl is None or now < self._record.finished_at + ttl:
            return False
        self._remove()
        return True

    def _remove(self) -> None:
        self.folder.remove()
        log.info("%s: removed", self.folder.name)

    def _evict(self, now: float) -> None:
        for name in self.folder.evictions_asked():
            record = next((record for record in self._open() if record.name == name), None)
            if record is not None:
                record.disrupt(EVICTED, now)
                self._save()
                self._end(record, now)
            self.folder.forget_eviction(name)

    def _advance(self, now: float) -> None:
        record = self._record
        if record.end is None:
            pods = [pod.view() for pod in record.pods]
            backoff_s = self._node.config.pod_backoff_s
            following = policy.decide(self._spec.job, pods, started_at=record.started_at, now=now, backoff_s=backoff_s)
            if following.end is not None:
                record.end, record.decided_at = following.end, now
            for index in following.start:
                record.pods.append(self._new_pod(index, now))
        if record.end is not None:
            self._save()
            self._stop_pods(now)
            if not self._live:
                record.finished_at = now
                log.info("%s: %s, %s", self.folder.name, record.end.reason, record.end.message)

    def _new_pod(self, index: int, now: float) -> PodRecord:
        earlier = [pod.ruling for pod in self._record.pods if pod.index == index]
        return PodRecord(
            name=f"{self._spec.job_name}-{index}-{''.join(secrets.choice(_SUFFIX_LETTERS) for _ in range(5))}",
            index=index,
            attempt=1 + len(earlier),
            created_at=now,
            failures=earlier.count("Count"),
            ignored=earlier.count("Ignore"),
        )

    def _bind(self) -> None:
        """Gives waiting pods their place on the node, in order, while there is room."""
        for record in self._open():
            if record.bound or not self._node.has_room():
                continue
            record.bound = True
            self._save()
            pod = Pod(record.name, record.index, self._spec, self.folder, self._node.config, self._node.ports, self._save)
            task = asyncio.create_task(pod.run(), name=record.name)
            task.add_done_callback(lambda _: self._node.wake())
            self._live[record.name] = _Started(pod, task)
            self._node.bound += 1
            log.info("pod %s starts, attempt %d", record.name, record.attempt)

    def _save(self) -> None:
        """Writes the current state, unless it was written last time."""
        for record in self._open():
            live = self._live.get(record.name)
            if live is not None:
                record.containers = live.pod.statuses()
                record.phase = "Running" if live.pod.running else "Pending"
        stopped_at = self.folder.stop_asked_at()
        current = {**self.object, "spec": {**self.object["spec"], "suspend": self._suspended()}}
        seen = self.seen = objects(current, self._spec, self._record, self._node.config.node_name, stopped_at)
        status = {"version": STATUS_VERSION, **seen, "state": self._record.to_dict()}
        processes = {record.name: self._processes(record) for record in self._open()}
        if {**status, "processes": processes} == self._saved:
            return
        self.folder.write_status(status)
        self.folder.write_pods(processes)
        self._saved = {**status, "processes": processes}
        self._node.wake()

    def _processes(self, record: PodRecord) -> dict[str, Any]:
        live = self._live.get(record.name)
        return {"ports": live.pod.ports if live else {}, "pids": live.pod.pids() if live else {}}
