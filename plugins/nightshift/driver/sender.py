"""Makes one request, sends it until the engine has room, and hands its outcome to the scheduler."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from nightshift.driver.engine import Busy, Failed, Gone, Refused, Replied, SendResult
from nightshift.driver.fetch import Fetcher
from nightshift.driver.health import EngineHealth, EngineLike
from nightshift.driver.patience import Patience
from nightshift.driver.scheduler import Group, Scheduler
from nightshift.driver.stats import Stats
from nightshift.driver.timely import Stopped, timely
from nightshift.driver.window import Window
from nightshift.store import StoreUnavailable
from nightshift.tasks.base import Answer, Answers, BadInput, Fetching, InvalidReply, NotDone, Reason, TaskKind

log = logging.getLogger(__name__)


class Sender:
    """Sends groups of rows for one worker."""

    def __init__(
        self,
        kind: TaskKind,
        engine: EngineLike,
        scheduler: Scheduler,
        health: EngineHealth,
        window: Window,
        patience: Patience,
        stats: Stats,
    ) -> None:
        self._kind = kind
        self._engine = engine
        self._scheduler = scheduler
        self._health = health
        self._window = window
        self._patience = patience
        self._stats = stats
        self._fetcher = Fetcher(kind, patience) if isinstance(kind, Fetching) else None

    async def send(self, group: Group) -> None:
        """Sends one group until there is an outcome for it, and hands it to the scheduler.

        Raises WrongEngine, StoreUnavailable.
        """
        try:
            payloads, path, body = await self._request(group)
        except StoreUnavailable:
            raise
        except Exception as error:  # Whatever their kind raises concerns these rows alone.
            message = str(error) if isinstance(error, BadInput) else f"no request can be made from the row: {error!r}"
            self._scheduler.refused(group, Reason.BAD_INPUT, message)
            return
        sent = await self._send(group, path, body)
        if sent is None:
            self._scheduler.returned(group)
        else:
            await self._settle(group, payloads, *sent)

    async def _request(self, group: Group) -> tuple[list[Any], str, bytes]:
        """Payloads, path and body. Objects that payloads name are read here, while other requests are in flight."""
        payloads = group.payloads
        if self._fetcher is None:
            return payloads, *self._kind.request(payloads, group.rows[0].invalid)
        payloads = [await self._fetcher.complete(payload) for payload in payloads]
        # An image's body is megabytes to encode: a thread keeps that from holding up the loop.
        return payloads, *await asyncio.to_thread(self._kind.request, payloads, group.rows[0].invalid)

    async def _send(self, group: Group, path: str, body: bytes) -> tuple[SendResult, float] | None:
        """Sends until the engine has room; the outcome, and when its request was sent. None: no longer wanted."""
        loop = asyncio.get_running_loop()
        tries = 0
        while self._scheduler.wants(group) and not self._patience.stop.is_set():
            sent = loop.time()
            self._stats.requests_sent += 1
            outcome = await self._engine.send(path, body)
            if not isinstance(outcome, Busy):
                return outcome, sent
            tries += 1
            self._window.refused(loop.time())
            await self._rest(group, "busy", (outcome.retry_after or 0.0) + self._patience.jitter(tries))
        return None

    async def _settle(self, group: Group, payloads: list[Any], outcome: SendResult, sent: float) -> None:
        if isinstance(outcome, Failed) and not await self._engine.healthy():
            outcome = Gone(outcome.message, outcome.status)
        match outcome:
            case Replied(body):
                await self._take(group, payloads, body)
            case Refused(reason, message, status):
                self._health.answered()
                self._scheduler.refused(group, reason, message, status)
            case Failed(message, timeout, status):
                log.warning("engine error", extra={"fields": {"rows": len(group.rows), "error": str(outcome)[:200]}})
                if timeout:
                    self._health.stalled(group.rows[0].ordinal, sent)
                await self._rest(group, "timeout" if timeout else "failed")
                self._scheduler.failed(group, Reason.TIMEOUT if timeout else Reason.ENGINE_ERROR, message, status)
            case Gone():
                await self._lost_connection(group, outcome)

    async def _lost_connection(self, group: Group, loss: Gone) -> None:
        """The engine is gone, or only this connection was."""
        if await self._health.alive(loss):
            await self._rest(group, "gone")
            self._scheduler.dropped(group, loss.message, loss.status)
        else:
            self._scheduler.returned(group)

    async def _take(self, group: Group, payloads: list[Any], body: Any) -> None:
        try:
            answers = self._answers(payloads, body)
        except NotDone:
            await self._rest(group, "aborted")
            self._scheduler.returned(group)
        except InvalidReply as error:
            await self._rest(group, "invalid_output")
            self._scheduler.failed(group, Reason.INVALID_OUTPUT, str(error))
        else:
            self._health.answered()
            self._window.answered(len(group.rows))
            self._stats.rows_answered += sum(isinstance(row, Answer) for row in answers.rows)
            self._stats.prompt_tokens += answers.prompt_tokens
            self._stats.output_tokens += answers.output_tokens
            self._scheduler.answered(group, answers)

    def _answers(self, payloads: list[Any], body: Any) -> Answers:
        try:
            answers = timely(self._kind.answers, body, payloads)
        except (InvalidReply, NotDone):
            raise
        except Stopped as error:
            raise NotDone from error
        except Exception as error:  # A reply that its kind did not foresee concerns these rows alone.
            raise InvalidReply(f"the reply cannot be read: {error!r}") from error
        if len(answers.rows) != len(payloads):
            raise InvalidReply(f"{len(answers.rows)} answers for {len(payloads)} rows")
        return answers

    async def _rest(self, group: Group, why: str, seconds: float | None = None) -> None:
        """Waits before the group is sent again; the engine does not have it meanwhile."""
        self._stats.retries[why] += 1
        group.resting = True
        await self._patience.pause(self._patience.jitter(group.rows[0].tries) if seconds is None else seconds)
        group.resting = False
