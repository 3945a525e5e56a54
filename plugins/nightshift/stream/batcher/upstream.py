"""One bundle to the upstream: what its reply means for each caller in it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from nightshift.driver.engine import Busy, Failed, Gone, judge
from nightshift.driver.http import ConnectionLost, HttpClient, NoDescriptors, Response
from nightshift.stream.batcher.bisection import Bisection
from nightshift.stream.batcher.dispatch import Answer, Caller
from nightshift.stream.batcher.endpoint import WrongReply
from nightshift.stream.batcher.headers import end_to_end
from nightshift.stream.batcher.metrics import Metrics

log = logging.getLogger(__name__)

REPLY_MAX_BYTES: Final = 64 << 20
CALLERS: Final = "x-nightshift-batch-callers"
"""Says in an answer how many callers shared the request to the upstream."""
REFUSED: Final = (400, 413, 422, 500)
"""What may be one request's fault. 500 too: servers answer it for an input that their model cannot use. If the server itself is
ill, the halves are less than twice the requests that it would get without a batcher."""
BUSY: Final = (429, 503)
TIMEOUT: Final = (408, 504)


class Upstream:
    """client: to the server. timeout_s: of one request."""

    def __init__(self, client: HttpClient, metrics: Metrics, timeout_s: float) -> None:
        self._client = client
        self._metrics = metrics
        self._timeout_s = timeout_s

    async def send(self, bundle: list[Caller]) -> None:
        """Sends it, in parts if it is refused, and settles every caller in it."""
        parts = Bisection(bundle)
        while (part := parts.next()) is not None:
            # Those that went while an earlier part was with the upstream cost nothing.
            callers = [caller for caller in part if caller.waits]
            if not callers:
                continue
            try:
                answers = await self._ask(callers)
            except _Refused:
                self._metrics.bisections.labels(callers[0].endpoint.name).inc()
                parts.refused(callers)
                continue
            except Exception:
                # A fault of this program must not leave callers without an answer.
                log.exception("a request to the upstream failed unexpectedly")
                self._metrics.errors.labels("internal").inc()
                answers = [error_answer(caller, 500, "the batcher failed; its log says how") for caller in callers]
            for caller, answer in zip(callers, answers, strict=True):
                caller.settle(answer)

    async def _ask(self, callers: list[Caller]) -> list[Answer]:
        """One request, and the answer for each. Raises _Refused if the request of one of them may be at fault for all."""
        first, alone = callers[0], len(callers) == 1
        # Alone, it is sent as it came: the answer is what the upstream would have given without a batcher.
        body = first.body if alone else first.endpoint.merge([caller.asked for caller in callers])
        headers = first.own if alone else dict(first.counting)
        self._metrics.batch_callers.observe(len(callers))
        self._metrics.batch_items.observe(sum(caller.asked.count for caller in callers))
        try:
            with self._metrics.upstream_seconds.time():
                reply = await self._client.request("POST", first.target, body, headers, timeout_s=self._timeout_s)
        except TimeoutError as error:
            return self._failed(callers, "timeout", 504, f"the server did not answer: {error}")
        except NoDescriptors as error:
            return self._failed(callers, "descriptors", 429, f"the batcher has no room for another connection: {error}")
        except ConnectionLost as error:
            return self._failed(callers, "connection", 502, f"the server did not answer: {error}")
        if reply.status in REFUSED and not alone:
            raise _Refused
        return self._answers(callers, reply)

    def _answers(self, callers: list[Caller], reply: Response) -> list[Answer]:
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
        try:
            bodies = callers[0].endpoint.split(reply.body, [caller.asked for caller in callers])
        except WrongReply as error:
            return self._failed(callers, "reply", 502, f"the server's reply to a merged request cannot be used: {error}")
        return [Answer(status, headers, body) for body in bodies]

    def _failed(
        self, callers: list[Caller], kind: str, status: int, message: str, headers: Mapping[str, str] | None = None
    ) -> list[Answer]:
        self._metrics.errors.labels(kind).inc()
        log.warning("no answer from the upstream for %d callers: %s", len(callers), message)
        headers = headers or ({"retry-after": "1"} if status == 429 else {})
        return [error_answer(caller, status, message, headers) for caller in callers]


class _Refused(Exception):
    """The upstream refused a merged request."""


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
