"""What people are shown of a run in progress: a line for the log, and where its pods are, in the run's folder."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import obstore

from nightshift.fields.text import n
from nightshift.jobset.runtime import JobSetNotFound, Runtime, RuntimeUnavailable
from nightshift.jobset.verdict.last_words import Words
from nightshift.jobset.verdict.stages import jobset_now, pod_now, with_log
from nightshift.run.names import RunRef
from nightshift.run.observed.pods_kept import load_one
from nightshift.run.observed.pods_now import JobSetNow, PodNow, Stage, merged, waits
from nightshift.store import reaching

if TYPE_CHECKING:
    from obstore.store import ObjectStore

    from nightshift.jobset.fleet.forecast import Forecast, Rows
    from nightshift.jobset.kubernetes.follow import Log
    from nightshift.jobset.observation import Observation

PODS_MOST: Final = 2000
"""Of one JobSet; those that have ended are left out first."""
HEARD_LINES: Final = 500
"""Of a failed container's log, in which its cause is looked for."""
STILL_S: Final = 300.0
"""How often the log says that nothing has changed."""


class Shown:
    """Of one run, as long as one trigger waits for it. run: prefix of its folder."""

    def __init__(self, run: str, log: Log) -> None:
        self._run = RunRef.from_prefix(run)
        self._log = log
        self._written: dict[str, JobSetNow] = {}
        self._silent = False
        self._told: object = None
        self._told_at = 0.0

    async def write(self, store: Callable[[], ObjectStore], jobsets: Sequence[JobSetNow]) -> None:
        """Writes what has changed. Never raises: whatever is wrong, the night goes on. store: blocks."""
        try:
            # A thread that writes goes on when its task is cancelled, and the task `infer` writes the same object at the end.
            await _to_its_end(asyncio.to_thread(self._write, store, jobsets))
            self._silent = False
        except Exception as error:
            if not self._silent:
                self._log.warning("Where the pods are is not shown for now: %r", error)
            self._silent = True

    def _write(self, store: Callable[[], ObjectStore], jobsets: Sequence[JobSetNow]) -> None:
        for each in jobsets:
            before = self._written.get(each.name) or load_one(store(), self._run, each.name)
            now = merged(before, each)
            if before is None or not now.same_as(before):
                save_now(store(), self._run, now)
            self._written[each.name] = now

    def progress(self, rows: Rows, rate: float, forecast: Forecast, jobsets: Sequence[JobSetNow], why: str) -> str:
        """A sentence; '' if nothing but the time has changed since the last one. rate: rows a second now, 0 if unknown.

        why: of the forecast, a sentence.
        """
        now = time.time()
        seen = tuple(self._written.get(each.name, each) for each in jobsets)
        state = (rows.done, forecast.late, [(each.stage, each.counts(), [pod.restarts for pod in each.pods]) for each in seen])
        if state == self._told and now - self._told_at < STILL_S:
            return ""
        self._told, self._told_at = state, now
        done = f"{rows.done:,} of {n(rows.done + rows.left, 'row')} done"
        idle = waits(seen, now)
        if forecast.end_s is None:
            return f"{done}. No forecast yet: {idle or 'nothing has been committed so far'}."
        speed = f", {rate:.3g} rows/s" if rate else ""
        return f"{done}{speed}: {why}{f'. Now {idle}' if idle else ''}."


def show_end(runtime: Runtime, store: ObjectStore, run: RunRef, jobset: str, seen: Observation, log: Log) -> None:
    """Writes where the pods of a JobSet were at its end, beside what its trigger saw. Never raises."""
    try:
        at = time.time()
        pods = [heard(runtime, jobset, pod_now(pod, at)) for pod in seen.pods]
        now = replace(jobset_now(seen, pods, at), name=jobset, stage=Stage.ENDED)
        save_now(store, run, merged(load_one(store, run, jobset), now))
    except Exception as error:
        log.warning("Where the pods of JobSet %s were is not shown: %r", jobset, error)


def heard(runtime: Runtime, jobset: str, pod: PodNow) -> PodNow:
    """With what the log of its failed container says, if its kubelet has not kept the cause."""
    if pod.words is None or pod.words.cause:
        return pod
    try:
        return with_log(pod, Words(runtime.logs(jobset, pod.name, pod.words.container, last=HEARD_LINES)))
    except (JobSetNotFound, RuntimeUnavailable):
        return pod


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def save_now(store: ObjectStore, run: RunRef, now: JobSetNow) -> None:
    """Replaces what was known of a JobSet. Raises StoreUnavailable."""
    if len(now.pods) > PODS_MOST:
        alive_first = sorted(now.pods, key=lambda pod: (pod.stage is Stage.ENDED, pod.index))
        now = replace(now, pods=tuple(alive_first[:PODS_MOST]))
    with reaching(f"write {run.now_path(now.name)}"):
        obstore.put(store, run.now_path(now.name), now.to_bytes())
