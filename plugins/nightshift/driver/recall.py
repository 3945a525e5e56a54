"""Finds a request that was answered in another attempt, for a worker that has had no answer of its own yet."""

from __future__ import annotations

import logging

from nightshift.driver.feeder import Feeder
from nightshift.driver.scheduler import Scheduler
from nightshift.driver.sender import Sender
from nightshift.driver.trial import Canary
from nightshift.store import StoreUnavailable
from nightshift.tasks.base import BadInput, TaskKind

log = logging.getLogger(__name__)


class Recall:
    """What one worker can recall of its run."""

    def __init__(self, kind: TaskKind, feeder: Feeder, scheduler: Scheduler, sender: Sender) -> None:
        self._kind = kind
        self._feeder = feeder
        self._scheduler = scheduler
        self._sender = sender

    async def canary(self) -> Canary | None:
        """A request with a row of an open or a committed chunk that was answered; None if none is found."""
        try:
            found = await self._feeder.answered_elsewhere(self._scheduler.answered_before(), self._kind.columns)
            if found is None:
                return None
            ordinal, row = found
            return await self._sender.request([self._kind.render(row, ordinal)], 0)
        except (StoreUnavailable, BadInput) as error:
            log.warning("no answered row could be read", extra={"fields": {"error": str(error)}})
            return None
