"""Waits for a JobSet of the local runtime, in the triggerer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from nightshift.hooks.runtime import NoSuchRuntime
from nightshift.jobset.labels import PAUSED_ANNOTATION
from nightshift.triggers.ended import ended_by_a_person
from nightshift.triggers.first_ending import first_ending
from nightshift.triggers.jobset import arguments, jobset_event
from nightshift.triggers.night_gauges import NightGauges
from nightshift.triggers.polling import DeadlinePassed, poll
from nightshift.triggers.shielded import run_shielded

if TYPE_CHECKING:
    from nightshift.jobset.fleet.watch import FleetWatch
    from nightshift.jobset.kubernetes.follow import Followed
    from nightshift.jobset.local.client import LocalRuntime
    from nightshift.jobset.observation import Observation
    from nightshift.jobset.verdict.cannot_start import CannotStart
    from nightshift.run.observed.pods_now import JobSetNow


class LocalJobSetTrigger(BaseTrigger):
    """
    Fires once, when one of the JobSets is finished or gone, when the deadline has passed, or when the run needs a decision.

    The event is that of :class:`~nightshift.triggers.jobset.KubernetesJobSetTrigger`. The local runtime keeps its pods' ends
    and logs, so the trigger need not collect them. An unreachable runtime never ends the wait before the deadline. If
    you fail or clear the waiting task, the JobSets are deleted (`on_kill`); a restart of the triggerer does not delete them.

    :param jobsets: the ``name`` of each, and an empty ``uid``.
    :param deadline: Unix time.
    :param owner: has no effect here.
    :param get_logs: say where the logs are. They are not copied.
    :param look: as of the other trigger.
    :param before: as of the other trigger; here only the seconds that pods have run.
    :param poll_interval: seconds between polls.
    """

    def __init__(
        self,
        *,
        jobsets: Sequence[dict[str, Any]],
        deadline: float,
        owner: str = "",
        get_logs: bool = True,
        poll_interval: float = 2.0,
        look: dict[str, Any] | None = None,
        before: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.jobsets = list(jobsets)
        self.deadline = deadline
        self.owner = owner
        self.get_logs = get_logs
        self.poll_interval = poll_interval
        self.look = look
        self.before = before
        self._last_progress: dict[str, str] = {}
        self._asked_at = time.monotonic()
        self._paused: frozenset[str] = frozenset()
        self._now: dict[str, JobSetNow] = {}
        self._counts: dict[str, dict[str, Any]] = {}
        for each in self.jobsets:
            earlier = (before or {}).get(each["name"], {"counts": {"worked_s": 0.0}})
            self._counts[each["name"]] = {"running": 0, "worked_s": earlier["counts"]["worked_s"]}

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("jobsets", "deadline", "owner", "get_logs", "poll_interval", "look", "before")
        return "nightshift.triggers.local.LocalJobSetTrigger", arguments(self, *names)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        from nightshift.hooks.credentials import open_bucket
        from nightshift.jobset.fleet.watch import FleetWatch
        from nightshift.jobset.kubernetes.follow import Followed

        lookout = None
        if (look := self.look) is not None:
            gauges = NightGauges(look["run"])
            lookout = await asyncio.to_thread(FleetWatch, look, self.deadline, self.log, open_bucket, gauges)
        needed = self._needed(lookout) if lookout else None
        try:
            found = await first_ending([self._follow()], needed)
        finally:
            if lookout:
                lookout.close()
        jobset, followed = (self.jobsets[0], Followed("look")) if found is None else found[1]
        before = None
        if found is not None and self.get_logs:
            folder, most = await asyncio.to_thread(_kept)
            self.log.info(
                "Logs of the pods: %s/TIME-%s, once the JobSet is gone (the last %d stay)", folder, jobset["name"], most
            )
        if found is None:
            before = {name: {"counts": counts} for name, counts in self._counts.items()}
        event = jobset_event(jobset, followed, {}, lookout.report if lookout else None, before)
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]

    async def _needed(self, lookout: FleetWatch) -> None:
        await lookout.until_needed(lambda: self._counts, lambda: self._paused, pods=lambda: list(self._now.values()))

    async def _follow(self) -> tuple[dict[str, Any], Followed]:
        """Until one of the JobSets has ended: which, and how."""
        from nightshift.jobset.kubernetes.follow import Followed
        from nightshift.jobset.local.folder import REFUSED
        from nightshift.jobset.observation import condition, finished
        from nightshift.jobset.runtime import RuntimeUnavailable

        try:
            runtime = await asyncio.to_thread(_runtime)
            found = await poll(
                lambda: self._ask(runtime),
                final=lambda found: found is not None,
                interval_s=self.poll_interval,
                deadline=self.deadline,
                unavailable=RuntimeUnavailable,
                log=self.log,
            )
        except DeadlinePassed:
            return self.jobsets[-1], Followed("deadline")
        assert found is not None
        jobset, seen = found
        if (stuck := self._stuck(jobset["name"])) and not finished(seen.jobset or {}):
            return jobset, Followed("broken", stuck.explanation, stuck=stuck)
        if seen.jobset is None:
            return jobset, Followed("lost")
        if (failed := condition(seen.jobset, "Failed")) and failed["reason"] == REFUSED:
            return jobset, Followed("refused", failed["message"])
        return jobset, Followed("finished")

    async def on_kill(self) -> None:
        """Deletes the JobSets: a user has ended the task, and nothing waits for the pods now."""
        await run_shielded(self._end(), self.log)

    async def _end(self) -> None:
        # At the same time: Airflow may take minutes to answer, and pods cost money.
        told = asyncio.create_task(ended_by_a_person(self))
        for each in self.jobsets:
            name = each["name"]
            self.log.info("Deleting JobSet %s: a user ended its task", name)
            await asyncio.to_thread(lambda name: _runtime().stop(name), name)
        await told

    def _ask(self, runtime: LocalRuntime) -> tuple[dict[str, Any], Observation] | None:
        """The first JobSet that has ended, if there is one."""
        from nightshift.jobset.observation import finished

        now = time.monotonic()
        passed_s, self._asked_at = now - self._asked_at, now
        ended = None
        for each in self.jobsets:
            name = each["name"]
            seen = runtime.observe(name)
            self._paused = self._paused - {name} | ({name} if _paused(seen) else set())
            count = self._counts[name]
            # Those that were seen last time have run until now.
            count["worked_s"] += count["running"] * passed_s
            count["running"] = sum(pod["status"]["phase"] == "Running" for pod in seen.pods)
            progress = self._look(runtime, name, seen)
            if progress != self._last_progress.get(name):
                self.log.info("JobSet %s: %s", name, progress)
                self._last_progress[name] = progress
            if ended is None and (seen.jobset is None or finished(seen.jobset) or self._stuck(name)):
                ended = each, seen
        return ended

    def _stuck(self, name: str) -> CannotStart | None:
        """Of a run: why its engine cannot start."""
        from nightshift.jobset.verdict.cannot_start import cannot_start

        if self.look is None or name in self._paused or self._counts[name]["worked_s"] or name not in self._now:
            return None
        return cannot_start(self._now[name].pods, time.time())

    def _look(self, runtime: LocalRuntime, name: str, seen: Observation) -> str:
        """Keeps where the JobSet's pods are; returns it in words."""
        from nightshift.jobset.fleet.shown import heard
        from nightshift.jobset.verdict.stages import jobset_now, pod_now
        from nightshift.run.observed.pods_now import in_words

        if seen.jobset is None:
            return "it is gone"
        at = time.time()
        pods = [heard(runtime, name, pod_now(pod, at)) for pod in seen.pods]
        self._now[name] = jobset_now(seen, pods, at)
        return in_words(self._now[name])


def _paused(seen: Observation) -> str:
    """Who has paused the JobSet, as a sentence; '' if it is not paused."""
    annotations = seen.jobset and seen.jobset["metadata"].get("annotations")
    return str((annotations or {}).get(PAUSED_ANNOTATION, ""))


def _runtime() -> LocalRuntime:
    from nightshift.jobset.local.client import local_runtime
    from nightshift.settings import Settings

    settings = Settings.from_environment()
    found = local_runtime(settings)
    if found is None:
        raise NoSuchRuntime(
            f"NIGHTSHIFT_RUNTIME is {settings.runtime!r} now, but the task waits for a JobSet on a local runtime. "
            "Set it back, or clear the task."
        )
    return found


def _kept() -> tuple[Path, int]:
    """Where logs of JobSets that are gone stay, and of how many."""
    from nightshift.jobset.local.folder import ENDED, ENDED_MOST
    from nightshift.settings import Settings

    return Path(Settings.from_environment().local_folder) / ENDED, ENDED_MOST
