"""One bundle to the upstream: what its reply means for each caller in it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final, TypeVar

from nightshift.batcher.dispatch import Answer, Caller, Seat
from nightshift.batcher.endpoint import WrongReply
from nightshift.batcher.headers import end_to_end
from nightshift.batcher.metrics import Metrics
from nightshift.batcher.readiness import Separate
from nightshift.driver.engine import Busy, Failed, Gone, judge
from nightshift.driver.http import ConnectionLost, HttpClient, NoDescriptors, Response

log = logging.getLogger(__name__)

T = TypeVar("T")

REPLY_MAX_BYTES: Final = 64 << 20
CALLERS: Final = "x-nightshift-batch-callers"
"""Says in an answer how many callers shared the request to the upstream."""
REFUSED: Final = (400, 413, 422, 500)
"""What may be one request's fault. 500 too: servers answer it for an input that their model cannot use. If the server itself is
ill, the parts are no more than twice the requests that it would get without a batcher."""
BUSY: Final = (429, 503)
TIMEOUT: Final = (408, 504)
_NO_ANSWER: Final = (429, 500, 502, 504)
"""What a caller gets when there is no answer; another part may still bring it one."""


@dataclass(frozen=True)
class Upstream:
    """client: to the server. separate: which requests it cannot answer together; more are noted. timeout_s: of one request.
    key: a header for callers who have none of that name. count: told the bytes of replies as they come and go."""

    client: HttpClient
    metrics: Metrics
    separate: Separate
    timeout_s: float
    key: Mapping[str, str] = field(default_factory=dict)
    count: Callable[[int], None] = lambda _: None

    async def send(self, bundle: list[Caller], seat: Seat) -> None:
        """Sends it, in parts if it is refused, and settles every caller in it. Each further request at once takes a seat."""
        failures = await self._send(bundle)
        if failures is None and not self.separate.holds(bundle[0], asyncio.get_running_loop().time()):
            self.metrics.refused.labels(bundle[0].endpoint.name).inc()
            failures = await self._send_all(parts_of(bundle), seat)
        _settle(failures or {})
        # Those that were refused beside others each time, or whose replies cannot be told apart.
        _settle(await self._send_all([[caller] for caller in bundle if caller.waits], seat))

    async def _send_all(self, parts: list[list[Caller]], seat: Seat) -> dict[Caller, Answer]:
        """Sends them at once, as far as there are seats. Returns what those get to whom no part brings an answer."""
        left = deque(parts)
        failures: dict[Caller, Answer] = {}
        asking: set[asyncio.Task[None]] = set()

        async def send_next() -> None:
            if left:
                failures.update(await self._send(left.popleft()) or {})

        async def send_beside() -> None:
            async with seat():
                if (own := asyncio.current_task()) is not None:
                    asking.discard(own)
                await send_next()

        async with asyncio.TaskGroup() as group:
            asking |= {group.create_task(send_beside()) for _ in parts[1:]}
            while left:
                await send_next()
            for each in asking:
                each.cancel()
        return failures

    async def _send(self, part: list[Caller]) -> dict[Caller, Answer] | None:
        """One request. Settles those whom it brings an answer; returns what the others get if nothing else does.

        None: it cannot be answered for all of them together.
        """
        callers = [caller for caller in part if caller.waits]
        if not callers:
            return {}
        try:
            answers = await self._ask(callers)
        except _Refused:
            return None
        except WrongReply as error:
            log.warning(
                "the reply to a request of %d callers cannot be divided, so each is sent alone: %s", len(callers), error
            )
            self.metrics.errors.labels("reply").inc()
            self.separate.add(callers[0], asyncio.get_running_loop().time())
            return None
        except Exception:
            # A fault of this program must not leave callers without an answer.
            log.exception("a request to the upstream failed unexpectedly")
            self.metrics.errors.labels("internal").inc()
            answers = [error_answer(caller, 500, "the batcher failed; its log says how") for caller in callers]
        found = dict(zip(callers, answers, strict=True))
        failures = {caller: answer for caller, answer in found.items() if answer.status in _NO_ANSWER}
        _settle({caller: answer for caller, answer in found.items() if caller not in failures})
        return failures

    async def _ask(self, callers: list[Caller]) -> list[Answer]:
        """One request, and the answer for each.

        Raises _Refused if the request of one of them may be at fault for all, WrongReply if the reply is not one for each.
        """
        first, alone = callers[0], len(callers) == 1
        # Alone, it is sent as it came: the answer is what the upstream would have given without a batcher.
        body = first.body if alone else first.endpoint.merge([caller.asked for caller in callers])
        headers = {**self.key, **(first.own if alone else dict(first.counting))}
        self.metrics.batch_callers.observe(len(callers))
        self.metrics.batch_items.observe(sum(caller.asked.count for caller in callers))
        counted = 0

        def count(size: int) -> None:
            nonlocal counted
            counted += size
            self.count(size)

        try:
            with self.metrics.upstream_seconds.time():
                reply = await self.client.request("POST", first.target, body, headers, timeout_s=self.timeout_s, count=count)
        except TimeoutError as error:
            return self._failed(callers, "timeout", 504, f"the server did not answer: {error}")
        except NoDescriptors as error:
            return self._failed(callers, "descriptors", 429, f"the batcher has no room for another connection: {error}")
        except ConnectionLost as error:
            return self._failed(callers, "connection", 502, f"the server did not answer: {error}")
        finally:
            self.count(-counted)
        if reply.status in REFUSED and not alone:
            raise _Refused
        return self._answers(callers, reply)

    def _answers(self, callers: list[Caller], reply: Response) -> list[Answer]:
        """Raises WrongReply."""
        status = reply.status
        if status in BUSY:
            wait = {"retry-after": reply.headers.get("retry-after", "1")}
            return self._failed(callers, "busy", 429, f"the server has no room now ({status}): {_words(reply)}", wait)
        if status in TIMEOUT:
            return self._failed(callers, "timeout", 504, f"the server answered {status}: {_words(reply)}")
        if status >= 500:
            return self._failed(callers, "failed", 502, f"the server answered {status}: {_words(reply)}")
        headers = _passed_on(reply.headers, len(callers))
        if len(callers) == 1 or not 200 <= status < 300:
            # An error that concerns what all of them share, such as an unknown model, is everybody's.
            return [Answer(status, headers, reply.body)] * len(callers)
        bodies = callers[0].endpoint.split(reply.body, [caller.asked for caller in callers])
        return [Answer(status, headers, body) for body in bodies]

    def _failed(
        self, callers: list[Caller], kind: str, status: int, message: str, headers: Mapping[str, str] | None = None
    ) -> list[Answer]:
        self.metrics.errors.labels(kind).inc()
        log.warning("no answer from the upstream for %d callers: %s", len(callers), message)
        headers = headers or ({"retry-after": "1"} if status == 429 else {})
        return [error_answer(caller, status, message, headers) for caller in callers]


def parts_of(requests: Sequence[T]) -> list[list[T]]:
    """Parts such that whichever one of `requests` is bad, each other one is in a part without it.

    So one bad request delays the others by one further request, where halving would delay some by as many as it takes to find
    it. Each request is in two parts, and no two are in the same two; few are in a part of their own. At 32 these are 9 parts of
    7 or 8. They never are more than one less than the requests unless each is alone.
    """
    count = 3
    while count * (count - 1) // 2 < len(requests):
        count += 1
    if count >= len(requests) - 1:
        return [[each] for each in requests]
    parts: list[list[T]] = [[] for _ in range(count)]
    for each, (one, other) in zip(requests, combinations(range(count), 2), strict=False):
        parts[one].append(each)
        parts[other].append(each)
    return parts


class _Refused(Exception):
    """The upstream refused a merged request."""


def _settle(answers: Mapping[Caller, Answer]) -> None:
    for caller, answer in answers.items():
        caller.settle(answer)


def error_answer(caller: Caller, status: int, message: str, headers: Mapping[str, str] | None = None) -> Answer:
    """An error of the batcher's own, in the form of the caller's endpoint."""
    return Answer(status, {"content-type": "application/json", **(headers or {})}, caller.endpoint.error(status, message))


def _words(reply: Response) -> str:
    """What the server says of a failure."""
    match judge(reply.status, reply.body, reply.headers):
        case Busy(message) | Failed(message) | Gone(message):
            return message
        case other:
            raise AssertionError(f"{reply.status} is not a failure: {other}")


def _passed_on(headers: Mapping[str, str], callers: int) -> dict[str, str]:
    """Of the reply's headers, those for its callers. A cookie would be one caller's, and several cannot be told apart here."""
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    kept = {name: value for name, value in end_to_end(raw) if name not in ("content-length", "set-cookie")}
    return {**kept, CALLERS: str(callers)}
