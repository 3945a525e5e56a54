"""What tasks wait for that releases 0.2.0 and 0.3.0 deferred on the local runtime. The next release has no use for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from nightshift.triggers.jobset import arguments, jobset_event
from nightshift.triggers.polling import SETTLE_S


class LocalJobSetTrigger(BaseTrigger):
    """Fires at once: its task looks at the JobSets itself, and waits for them on as on any cluster.

    Its parameters are those that Airflow stored; of these, only the names in ``jobsets`` still mean anything.
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

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("jobsets", "deadline", "owner", "get_logs", "poll_interval", "look", "before")
        return "nightshift.triggers.local.LocalJobSetTrigger", arguments(self, *names)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        from nightshift.jobset.kubernetes.follow import Followed

        # Airflow takes a task that resumes too early for dead.
        await asyncio.sleep(SETTLE_S)
        yield TriggerEvent(jobset_event(self.jobsets[0], Followed("look"), {}))  # type: ignore[no-untyped-call]
