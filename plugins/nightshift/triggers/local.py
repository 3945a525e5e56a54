"""Waits for a JobSet of the local runtime, in the triggerer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException
from airflow.triggers.base import BaseTrigger, TriggerEvent

from nightshift.jobset.labels import PAUSED_ANNOTATION
from nightshift.triggers.jobset import KILL_TIMEOUT_S, jobset_event
from nightshift.triggers.polling import DeadlinePassed, poll

if TYPE_CHECKING:
    from nightshift.jobset.local.client import LocalRuntime
    from nightshift.jobset.observation import Observation


class LocalJobSetTrigger(BaseTrigger):
    """
    Fires once, when the JobSet is finished or gone, or when the deadline has passed.

    The event is that of :class:`~nightshift.triggers.jobset.KubernetesJobSetTrigger`. The local runtime keeps its pods' ends
    and logs, so the trigger need not collect them. An unreachable runtime never ends the wait before the deadline. If
    you fail or clear the waiting task, the JobSet is deleted (`on_kill`); a restart of the triggerer does not delete it.

    :param jobsets: the ``name`` of the one to wait for, and an empty ``uid``.
    :param deadline: Unix time.
    :param owner: has no effect here.
    :param get_logs: has no effect here.
    :param poll_interval: seconds between polls.
    """

    def __init__(
        self,
        *,
        jobsets: Sequence[dict[str, str]],
        deadline: float,
        owner: str = "",
        get_logs: bool = True,
        poll_interval: float = 2.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.jobsets = list(jobsets)
        self.deadline = deadline
        self.owner = owner
        self.get_logs = get_logs
        self.poll_interval = poll_interval
        self._last_progress = ""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "nightshift.triggers.local.LocalJobSetTrigger", {
            "jobsets": self.jobsets,
            "deadline": self.deadline,
            "owner": self.owner,
            "get_logs": self.get_logs,
            "poll_interval": self.poll_interval,
        }

    @property
    def name(self) -> str:
        return self.jobsets[-1]["name"]

    async def run(self) -> AsyncIterator[TriggerEvent]:
        from nightshift.jobset.kubernetes.follow import Followed
        from nightshift.jobset.local.folder import REFUSED
        from nightshift.jobset.observation import condition, finished
        from nightshift.jobset.runtime import RuntimeUnavailable

        followed = Followed("finished")
        try:
            runtime = await asyncio.to_thread(_runtime)
            seen = await poll(
                lambda: self._ask(runtime),
                final=lambda seen: seen.jobset is None or finished(seen.jobset),
                interval_s=self.poll_interval,
                deadline=self.deadline,
                unavailable=RuntimeUnavailable,
                log=self.log,
            )
            if seen.jobset is None:
                followed = Followed("lost")
            elif (failed := condition(seen.jobset, "Failed")) and failed["reason"] == REFUSED:
                followed = Followed("refused", failed["message"])
        except DeadlinePassed:
            followed = Followed("deadline")
        yield TriggerEvent(jobset_event(self.jobsets[-1], followed, {}))  # type: ignore[no-untyped-call]

    async def on_kill(self) -> None:
        """Deletes the JobSet: a person has ended the task, and nothing waits for the pods any more."""
        self.log.info("Deleting JobSet %s: a person ended its task", self.name)
        async with asyncio.timeout(KILL_TIMEOUT_S):
            await asyncio.to_thread(lambda: _runtime().stop(self.name))

    def _ask(self, runtime: LocalRuntime) -> Observation:
        seen = runtime.observe(self.name)
        progress = _progress(seen)
        if progress != self._last_progress:
            self.log.info("JobSet %s: %s", self.name, progress)
            self._last_progress = progress
        return seen


def _progress(seen: Observation) -> str:
    """For a person: "2 pods run, 1 index is done, 1 pod has failed"."""
    from nightshift.jobset.verdict import indexes

    if seen.jobset is None:
        return "it is gone"
    paused = (seen.jobset["metadata"].get("annotations") or {}).get(PAUSED_ANNOTATION)
    phases = Counter(pod["status"]["phase"] for pod in seen.pods)
    done = sum(len(indexes.parse(job["status"].get("completedIndexes", ""))) for job in seen.jobs)
    parts = [
        f"{phases['Running']} {'pod runs' if phases['Running'] == 1 else 'pods run'}",
        f"{done} {'index is' if done == 1 else 'indexes are'} done",
        f"{phases['Failed']} {'pod has' if phases['Failed'] == 1 else 'pods have'} failed",
    ]
    return ", ".join([paused, *parts] if paused else parts)


def _runtime() -> LocalRuntime:
    from nightshift.jobset.local.client import local_runtime
    from nightshift.settings import Settings

    settings = Settings.from_environment()
    found = local_runtime(settings)
    if found is None:
        raise AirflowFailException(
            f"NIGHTSHIFT_RUNTIME is {settings.runtime!r} now, but the task waits for a JobSet on a local runtime. "
            "Set it back, or clear the task."
        )
    return found
