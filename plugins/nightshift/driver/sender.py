"""Makes one request, sends it until it is known what becomes of it, and hands the outcome to the scheduler."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from nightshift.driver.attribution import Canary, Fault, Verdict
from nightshift.driver.backoff import Backoff
from nightshift.driver.budget import ByteBudget, Hold, bytes_of
from nightshift.driver.engine import Busy, Failed, Gone, Refused, Replied, SendResult, Unsent
from nightshift.driver.engines import Engine, Engines, Standing
from nightshift.driver.fault_search import SAY_EVERY_S, FaultSearch, Hooks
from nightshift.driver.fetch import Fetcher
from nightshift.driver.health import EngineBudget
from nightshift.driver.scheduler import Group, Scheduler
from nightshift.driver.stats import Retry, Stats
from nightshift.driver.time_limit import Stopped, reading
from nightshift.fields.text import n
from nightshift.store import StoreUnavailable
from nightshift.tasks.base import (
    Answer,
    Answers,
    BadInput,
    Fetching,
    InvalidAnswer,
    InvalidReply,
    NotDone,
    Reason,
    TaskKind,
    WrongModel,
)

log = logging.getLogger(__name__)

RETRY_AFTER_MAX_S: Final = 60.0
"""An engine may ask to be left alone for longer, or until a wrong date: nothing must wait for that."""
COPIES: Final = 3
"""Of a row's text while its request is made and sent: as payload, as JSON, and in the connection's buffer."""
FETCHED_COPIES: Final = 8
"""Of an image's bytes while its request is made: as read, as base64 (4/3) in bytes, in text and in the URL, as JSON, sent."""
WHY: Final = {
    Reason.TIMEOUT: Retry.TIMEOUT,
    Reason.ENGINE_ERROR: Retry.FAILED,
    Reason.INVALID_OUTPUT: Retry.INVALID_OUTPUT,
    Reason.REJECTED: Retry.REFUSED,
}
"""How faults that lead to such dead letters are counted."""
REASONS: Final = {why: reason for reason, why in WHY.items()}


class RequestObserver(Protocol):
    """Who is given every request of rows: `nightshift.driver.traces.RequestTraces`, or a preview, which shows them."""

    def sent(self, group: Group, path: str) -> Mapping[str, str]:
        """The group's request is sent; returns further headers of it."""
        ...

    def replied(self, group: Group, outcome: SendResult) -> None:
        """What became of the request, before it is known what becomes of its rows."""
        ...

    def settled(self, group: Group) -> None:
        """It is known what becomes of the group's rows, or they are sent again."""
        ...


@dataclass(eq=False)
class Sender:
    """Sends groups of rows for one worker. fault_search: of those whose requests failed. budget: bytes of requests."""

    kind: TaskKind
    engines: Engines
    scheduler: Scheduler
    patience: Backoff
    stats: Stats
    budget: ByteBudget
    engine_budget: EngineBudget
    hooks: Hooks
    traces: RequestObserver | None = None
    _said_busy: float = field(init=False, default=float("-inf"))

    def __post_init__(self) -> None:
        self._refusals_left = self.engine_budget.refusals_first
        self.fault_search = FaultSearch(
            self.scheduler, self.engines, self.patience, self.stats, self.engine_budget, self.hooks, self._send_canary
        )
        self._fetcher = Fetcher(self.kind, self.patience) if isinstance(self.kind, Fetching) else None

    def ask(self, group: Group, *, again: bool = False) -> Hold:
        """Asks for the bytes that it takes to make the group's request, at most, and chooses its engine.

        again: it is to meet the one that it has met.
        """
        group.resting = True
        if not again:
            self.engines.choose(group)
        size = sum(map(bytes_of, group.payloads))
        if self._fetcher is None:
            return self.budget.ask(COPIES * size)
        return self.budget.ask(FETCHED_COPIES * (size + sum(map(self._fetcher.bytes_most, group.payloads))))

    async def send(self, group: Group, held: Hold) -> None:
        """Sends one group until there is an outcome for it, and hands it to the scheduler. held: what `ask` has returned.

        Raises WrongModel, StoreUnavailable.
        """
        while self.scheduler.wants(group) and not self.patience.stop.is_set():
            try:
                await held.granted
                fault = await self._try(group, held)
            finally:
                # What waits to be judged or sent again holds no bytes: a request is made again for every try.
                held.release()
            if fault is None or await self._judged(group, fault):
                return
            held = self.ask(group, again=True)
        held.release()
        self.scheduler.returned(group)

    async def _try(self, group: Group, held: Hold) -> Fault | None:
        """Makes the group's request and sends it; returns a fault that has to be judged first."""
        if not self.scheduler.wants(group) or self.patience.stop.is_set():
            self.scheduler.returned(group)
            return None
        try:
            request = await self.request(group.payloads, group.rows[0].invalid)
        except StoreUnavailable:
            raise
        except Exception as error:  # Whatever their kind raises concerns these rows alone.
            message = str(error) if isinstance(error, BadInput) else f"no request can be made from the row: {error!r}"
            self.scheduler.refused(group, Reason.BAD_INPUT, message)
            return None
        crowded = self.budget.crowded
        held.shrink(sum(map(bytes_of, group.payloads)) + len(request.body))
        if crowded and not self.budget.crowded:
            # There was no room to make another request; now there is, whether or not one is answered.
            self.hooks.over()
        engine = self.engines.of(group)
        if not engine.health.good or (engine.standing is Standing.ILL and self.engines.answer):
            self.engines.choose(group)  # It went away, or was found to be ill, while the request was made.
        group.resting = False
        group.sent = asyncio.get_running_loop().time()
        self.stats.times.sent(group.sent)
        self.fault_search.sent(group)
        return await self._settle(group, request, await self._sent(request, self.engines.of(group), group))

    async def request(self, payloads: list[Any], invalid: int) -> Canary:
        """A request of these payloads. Objects that they name are read here, while other requests are in flight.

        invalid: replies to its rows that were no answer.
        """
        if self._fetcher is None:
            return Canary(*self.kind.request(payloads, invalid), payloads)
        complete = [await self._fetcher.complete(payload) for payload in payloads]
        # An image's body is megabytes to encode: a thread keeps that from holding up the loop.
        return Canary(*await asyncio.to_thread(self.kind.request, complete, invalid), payloads)

    async def _sent(self, request: Canary, engine: Engine, group: Group | None = None) -> SendResult:
        """What became of one request, of a canary's if there is no group. It is counted even if it is called back."""
        clock, stats = asyncio.get_running_loop().time, self.stats
        began = clock()
        stats.requests_sent += 1
        try:
            if self.traces is None or group is None:
                return await engine.client.send(request.path, request.body, canary=group is None)
            headers = self.traces.sent(group, request.path)
            outcome = await engine.client.send(request.path, request.body, headers=headers)
            self.traces.replied(group, outcome)
            return outcome
        finally:
            stats.requests.add(clock() - began)

    async def _send_canary(self, canary: Canary, engine: Engine) -> Fault | None:
        """Sends a request that was answered before, and throws its answer away; what went wrong, None if there was one."""
        self.stats.canaries += 1
        outcome = await self._sent(canary, engine)
        match outcome:
            case Replied(body):
                try:
                    self._answers(canary.payloads, body)
                except InvalidAnswer:
                    return None
                except (InvalidReply, WrongModel) as error:
                    return Fault(WHY[Reason.INVALID_OUTPUT], str(error))
                except NotDone:
                    return Fault(Retry.ABORTED, "the engine aborted the request")
                return None
            case Busy(message, retry_after, status):
                return Fault(Retry.BUSY, message, status, self._asked_to_wait(engine, retry_after))
            case Failed(message, reason, status, lasting):
                return Fault(WHY[reason], message, status, lasting=lasting)
            case Unsent(message):
                return Fault(Retry.DESCRIPTORS, message)
            case _:
                return Fault(Retry.GONE if isinstance(outcome, Gone) else WHY[Reason.REJECTED], outcome.message, outcome.status)

    async def _settle(self, group: Group, request: Canary, outcome: SendResult) -> Fault | None:
        """Hands an outcome to the scheduler; returns a fault that has to be judged first."""
        engine = self.engines.of(group)
        if isinstance(outcome, Failed) and not await engine.client.healthy():
            outcome = Gone(outcome.message, outcome.status)
        match outcome:
            case Replied(body):
                return self._take(group, request, body)
            case Refused(reason, message, status):
                if not self.fault_search.known.ever_answered and self._refusals_left <= 0:
                    return Fault(WHY[Reason.REJECTED], message, status or 400, lasting=True)
                self._refusals_left -= len(group.rows) == 1
                engine.health.answered()
                self.stats.times.answered(asyncio.get_running_loop().time())
                self.scheduler.refused(group, reason, message, status)
            case Unsent(message):
                log.warning("request not sent", extra={"fields": {"error": message}})
                engine.window.refused(asyncio.get_running_loop().time())
                return Fault(Retry.DESCRIPTORS, message)
            case Busy(message, retry_after, status):
                return self._turned_away(group, message, retry_after, status)
            case Failed(message, reason, status, lasting):
                log.warning("engine error", extra={"fields": {"rows": len(group.rows), "error": str(outcome)[:200]}})
                return Fault(WHY[reason], message, status, lasting=lasting)
            case Gone(message, status, reached):
                # What was refused as the engine was dead already did not kill it.
                group.resting = not reached
                if await engine.health.alive(outcome):
                    return Fault(Retry.GONE, message, status)
                self.scheduler.returned(group)
        return None

    def _turned_away(self, group: Group, message: str, retry_after: float | None, status: int | None) -> Fault:
        """The engine had no room. What it says to a row that it turned away while it answered others is for that row."""
        now, engine = asyncio.get_running_loop().time(), self.engines.of(group)
        until = now + min(retry_after or 0.0, RETRY_AFTER_MAX_S)
        if not any(row.refusals for row in group.rows):
            engine.window.refused(now)
            until = self._asked_to_wait(engine, retry_after)
        fault = Fault(Retry.BUSY, message, status, until)
        if now - self._said_busy >= SAY_EVERY_S:
            self._said_busy = now
            log.warning("the engine turns requests away", extra={"fields": {"error": str(fault)[:200]}})
        return fault

    def _asked_to_wait(self, engine: Engine, retry_after: float | None) -> float:
        """The engine asks to be left alone for that long. When it may be asked again (the loop's time)."""
        seconds = min(retry_after or 0.0, RETRY_AFTER_MAX_S)
        if engine.silence.ask(seconds):
            self.hooks.spawn(self._go_on_after_silence(engine))
        return asyncio.get_running_loop().time() + seconds

    async def _go_on_after_silence(self, engine: Engine) -> None:
        await engine.silence.over()
        self.hooks.over()

    def _take(self, group: Group, request: Canary, body: Any) -> Fault | None:
        engine = self.engines.of(group)
        try:
            answers = self._answers(request.payloads, body)
        except NotDone:
            return Fault(Retry.ABORTED, "the engine aborted the request")
        except WrongModel as error:
            if not self.fault_search.known.ever_answered and not self.engines.others_answer(engine):
                raise
            # The model has given what it should before, or another engine may.
            return Fault(WHY[Reason.INVALID_OUTPUT], str(error))
        except InvalidReply as error:
            if isinstance(error, InvalidAnswer):
                engine.health.answered()
                self.fault_search.note_answer(group.sent, engine)
            return Fault(WHY[Reason.INVALID_OUTPUT], str(error))
        engine.health.answered()
        self.stats.times.answered(asyncio.get_running_loop().time())
        engine.window.answered(len(group.rows))
        self.stats.rows_answered += sum(isinstance(row, Answer) for row in answers.rows)
        self.stats.prompt_tokens += answers.prompt_tokens
        self.stats.output_tokens += answers.output_tokens
        self.scheduler.answered(group, answers)
        self.fault_search.answered(group.sent, engine, request)
        return None

    async def _judged(self, group: Group, fault: Fault) -> bool:
        """Waits until it is known whose fault it is. False: the request is to be sent again to find that out."""
        self.stats.retries[fault.why] += 1
        group.resting = True
        # Without a connection nothing can be learned of the engine or the row.
        verdict = Verdict.ENGINE if fault.why is Retry.DESCRIPTORS else await self.fault_search.verdict(group, fault)
        if fault.why is Retry.DESCRIPTORS or verdict in (Verdict.ROWS, Verdict.CANARY):
            await self.patience.pause(self.patience.jitter(group.rows[0].tries))
        await self.patience.pause(fault.until - asyncio.get_running_loop().time())
        if verdict is Verdict.PROBE:
            await self.engines.of(group).silence.over()
        match verdict:
            case Verdict.ROWS | Verdict.CANARY | Verdict.FINAL:
                self._count(group, fault, verdict)
            case Verdict.ENGINE:
                self.scheduler.returned(group)
            case Verdict.HALVES:
                self.scheduler.halved(group)
        return verdict is not Verdict.PROBE

    def _count(self, group: Group, fault: Fault, verdict: Verdict) -> None:
        """The rows are to blame."""
        match fault.why:
            case Retry.GONE | Retry.ABORTED:
                self.scheduler.dropped(group, fault.message, fault.status)
            case Retry.BUSY:
                self.scheduler.dropped(group, fault.message, fault.status, busy=True, proven=verdict is Verdict.CANARY)
            case _ if verdict is Verdict.FINAL:
                self.scheduler.refused(group, REASONS[fault.why], fault.message, fault.status)
            case _:
                self.scheduler.failed(group, REASONS[fault.why], fault.message, fault.status)

    def _answers(self, payloads: list[Any], body: Any) -> Answers:
        try:
            answers = reading(self.kind.answers, body, payloads)
        except (InvalidReply, NotDone, WrongModel):
            raise
        except Stopped as error:
            raise NotDone from error
        except Exception as error:  # A reply that its kind did not foresee concerns these rows alone.
            raise InvalidReply(f"the reply cannot be read: {error!r}") from error
        if len(answers.rows) != len(payloads):
            raise InvalidReply(f"{n(len(answers.rows), 'answer')} for {n(len(payloads), 'row')}")
        return answers
