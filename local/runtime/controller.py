"""One JobSet under the agent: `reconcile` looks at what was asked and what has ended, decides, writes, then acts.

What is written to status.json before an act is what makes the act safe to repeat after the agent was killed: a pod is
recorded before its first process starts, its end before a replacement is made, the end of a Job before its last pods get
their SIGTERM.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from local.runtime import policy
from local.runtime.config import Config
from local.runtime.pod import Pod, Ports
from local.runtime.records import JobSetRecord, PodRecord
from local.runtime.spec import INDEX_ANNOTATION, JobSetSpec, read_manifest
from nightshift.jobset.local.folder import JobSetFolder
from nightshift.jobset.runtime import JobSetStatus, Phase

log = logging.getLogger(__name__)

EVICTED: Final = "EvictionByEvictionAPI"
NODE_LOST: Final = "DeletionByPodGC"
NODE_SHUTDOWN: Final = "TerminationByKubelet"
"""Reasons of the condition DisruptionTarget."""

_SUFFIX_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
"""What Kubernetes makes random name suffixes of."""


@dataclass
class Node:
    """What the JobSets of one agent share. bound: pods that have their place. draining: no pod gets one any more."""

    config: Config
    wake: Callable[[], None]
    ports: Ports = field(default_factory=Ports)
    bound: int = 0
    draining: bool = False

    def has_room(self) -> bool:
        return not self.draining and self.bound < self.config.max_pods


@dataclass
class _Live:
    pod: Pod
    task: asyncio.Task[None]


class Controller:
    """Raises ManifestError when it is made for a manifest that cannot be carried out."""

    def __init__(self, folder: JobSetFolder, node: Node, now: float) -> None:
        self.folder = folder
        self.created_at = folder.created_at()
        self._node = node
        self._spec = read_manifest(folder.manifest())
        self._live: dict[str, _Live] = {}
        written = folder.read_status()
        self._record = JobSetRecord.from_dict(written["state"]) if written else JobSetRecord()
        self._saved: dict[str, object] = {}
        self._recover(now)

    @property
    def idle(self) -> bool:
        """No process of it is left."""
        return not self._live

    def reconcile(self, now: float) -> bool:
        """One step. False when the JobSet is gone, by request or because its time after the end is over."""
        self._collect(now)
        if self.folder.stop_asked():
            return not self._delete(now)
        self._evict(now)
        if self._record.finished_at:
            return not self._expire(now)
        if self._spec.suspended and not self.folder.resume_asked():
            self._save()
            return True
        if not self._record.started_at:
            self._record.started_at = now
        self._advance(now)
        self._save()
        self._bind()
        return True

    def shut_down(self, now: float) -> None:
        """The node ends: every pod gets SIGTERM and at most the node's own grace period."""
        for record in self._open():
            if record.bound:
                record.reason = record.reason or NODE_SHUTDOWN
        self._save()
        grace = min(float(self._spec.pod.grace_s), self._node.config.shutdown_grace_s)
        for live in self._live.values():
            live.pod.stop(grace)

    def _open(self) -> list[PodRecord]:
        return [record for record in self._record.pods if not record.outcome]

    def _recover(self, now: float) -> None:
        """After a restart: pods that had their place were lost with the node."""
        for record in self._open():
            if record.bound:
                log.warning("pod %s was lost with the agent before this one", record.name)
                record.reason = record.reason or NODE_LOST
                record.containers = tuple(replace(status, started=False, ready=False) for status in record.containers)
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
            record.outcome = "Succeeded"
        elif self._record.ending is not None:
            record.outcome = "Deleted"
        else:
            name = f"{self._spec.namespace}/{record.name}"
            rules = self._spec.job.rules
            record.outcome, record.message = policy.judge(rules, name, exit_codes, disrupted=bool(record.reason))
        log.info(
            "pod %s: %s %s exit codes %s -> %s", record.name, record.phase, record.reason, dict(exit_codes), record.outcome
        )

    def _stop_pods(self, now: float) -> None:
        for record in self._open():
            if record.name in self._live:
                self._live[record.name].pod.stop(self._spec.pod.grace_s)
            elif not record.bound:
                self._close(record, [], now, succeeded=False)

    def _delete(self, now: float) -> bool:
        if not self._record.ending:
            # Pods that end from here on say nothing about the job.
            self._record.ending = policy.Ending(False, "Deleted", "JobSet was deleted")
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
                record.reason = record.reason or EVICTED
                self._save()
                if record.name in self._live:
                    self._live[record.name].pod.stop(self._spec.pod.grace_s)
                elif not record.bound:
                    self._close(record, [], now, succeeded=False)
            self.folder.forget_eviction(name)

    def _advance(self, now: float) -> None:
        record = self._record
        if record.ending is None:
            attempts = [pod.view() for pod in record.pods]
            backoff_s = self._node.config.pod_backoff_s
            decision = policy.decide(self._spec.job, attempts, started_at=record.started_at, now=now, backoff_s=backoff_s)
            record.ending = decision.ending
            for index in decision.start:
                record.pods.append(self._new_pod(index))
        if record.ending is not None:
            self._save()
            self._stop_pods(now)
            if not self._live:
                record.finished_at = now
                log.info("%s: %s, %s", self.folder.name, record.ending.reason, record.ending.message)

    def _new_pod(self, index: int) -> PodRecord:
        earlier = [pod.outcome for pod in self._record.pods if pod.index == index]
        return PodRecord(
            name=f"{self._spec.job_name}-{index}-{''.join(secrets.choice(_SUFFIX_LETTERS) for _ in range(5))}",
            index=index,
            attempt=1 + len(earlier),
            failures=earlier.count("Count"),
            ignored=earlier.count("Ignore"),
        )

    def _bind(self) -> None:
        """Gives waiting pods their place on the node, in order, while there is one."""
        for record in self._open():
            if record.bound or not self._node.has_room():
                continue
            record.bound = True
            self._save()
            pod = Pod(record.name, record.index, self._spec, self.folder, self._node.config, self._node.ports, self._save)
            task = asyncio.create_task(pod.run(), name=record.name)
            task.add_done_callback(lambda _: self._node.wake())
            self._live[record.name] = _Live(pod, task)
            self._node.bound += 1
            log.info("pod %s starts, attempt %d", record.name, record.attempt)

    def _save(self) -> None:
        """Writes what is known now; nothing when it is what was written last."""
        for record in self._open():
            live = self._live.get(record.name)
            if live is not None:
                record.containers = live.pod.statuses()
                record.phase = "Running" if live.pod.running else "Pending"
        value: dict[str, object] = {"status": self.status().to_dict(), "state": self._record.to_dict()}
        pods = {record.name: self._describe(record) for record in self._open()}
        if {**value, "pods": pods} == self._saved:
            return
        self.folder.write_status(value)
        self.folder.write_pods(pods)
        self._saved = {**value, "pods": pods}

    def status(self) -> JobSetStatus:
        record, job = self._record, self._spec.job
        attempts = [pod.view() for pod in record.pods]
        phase: Phase = "Running"
        reason = message = ""
        if record.finished_at and record.ending is not None:
            phase, reason, message = _condition(self._spec, record.ending)
        elif self._spec.suspended and not record.started_at:
            phase = "Suspended"
        return JobSetStatus(
            name=self.folder.name,
            phase=phase,
            reason=reason,
            message=message,
            completed_indexes=policy.completed_indexes(attempts),
            failed_indexes=policy.failed_indexes(job, attempts),
            pods=tuple(pod.status() for pod in record.pods),
            annotations=dict(self._spec.annotations),
        )

    def _describe(self, record: PodRecord) -> dict[str, object]:
        """What Kubernetes' pod object would carry, and the process ids."""
        live = self._live.get(record.name)
        spec = self._spec
        labels = {
            **dict(spec.pod.labels),
            "jobset.sigs.k8s.io/jobset-name": spec.name,
            "jobset.sigs.k8s.io/replicatedjob-name": spec.replicated_job,
            "jobset.sigs.k8s.io/job-index": "0",
            "batch.kubernetes.io/job-name": spec.job_name,
            INDEX_ANNOTATION: str(record.index),
        }
        annotations = {
            **dict(spec.pod.annotations),
            INDEX_ANNOTATION: str(record.index),
            "batch.kubernetes.io/job-index-failure-count": str(record.failures),
            "batch.kubernetes.io/job-index-ignored-failure-count": str(record.ignored),
        }
        return {
            "index": record.index,
            "attempt": record.attempt,
            "labels": labels,
            "annotations": annotations,
            "ports": live.pod.ports if live else {},
            "pids": live.pod.pids() if live else {},
        }


def _condition(spec: JobSetSpec, ending: policy.Ending) -> tuple[Phase, str, str]:
    """The JobSet's condition for the end of its only Job. There is no failurePolicy: the first failed Job fails the JobSet."""
    if ending.succeeded:
        return "Completed", "AllJobsCompleted", "jobset completed successfully"
    message = f"jobset failed due to one or more job failures (first failed job: {spec.job_name})"
    return "Failed", "FailedJobs", f"{message}: {ending.reason}: {ending.message}"
