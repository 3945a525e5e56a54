"""The batcher as an ASGI application: which requests wait for others, which are passed through, who is turned away."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, Router

from nightshift.driver.http import HttpClient, NoDescriptors
from nightshift.stream.batcher.admission import COPIES, Admission, Place
from nightshift.stream.batcher.connections import HEAD_MAX_BYTES
from nightshift.stream.batcher.dispatch import Answer, Caller, Dispatcher
from nightshift.stream.batcher.division import Separate
from nightshift.stream.batcher.endpoint import Endpoint
from nightshift.stream.batcher.headers import HeaderRules, of_one, sendable
from nightshift.stream.batcher.metrics import Metrics
from nightshift.stream.batcher.oversized import in_pieces
from nightshift.stream.batcher.passthrough import Passer, Receive, Scope, Send, respond
from nightshift.stream.batcher.routes import Routes, error_body
from nightshift.stream.batcher.upstream import REPLY_MAX_BYTES, Upstream, error_answer

log = logging.getLogger(__name__)

BODY_TIMEOUT_S: Final = 60.0
"""For a caller to send the whole of its request: one that dribbles holds a place that others wait for."""
ANSWER_TIMEOUT_S: Final = 60.0
"""For a caller to read the whole of its answer, for the same reason."""
HEALTH_PATHS: Final = ("/health", "/v2/health/ready")
"""vLLM's and most others', and that of the Open Inference Protocol."""
HEALTH_S: Final = 5.0
BELIEVED_S: Final = 1.0
"""However often it is asked, the server is asked no more often."""
_PATH: Final = re.compile(rb"/[\x21-\x22\x24-\x7e]*")


@dataclass(frozen=True)
class Limits:
    """batch_items: in a merged request. latency_s: how long a caller waits for others. upstream: requests at once. queue:
    callers whose whole request is in hand. connections: from callers. body_bytes: of one request. memory_bytes: of all requests
    in hand. timeout_s: of one to the upstream."""

    batch_items: int = 32
    latency_s: float = 0.02
    upstream: int = 8
    queue: int = 1024
    connections: int = 2048
    body_bytes: int = 8 << 20
    memory_bytes: int = 512 << 20
    timeout_s: float = 600.0


class Batcher:
    """Stands in front of the server at `upstream`. Serve `app`; it opens and closes what is needed.

    Raises ValueError for a URL that cannot be used.
    """

    def __init__(self, upstream: str, routes: Routes, rules: HeaderRules, limits: Limits) -> None:
        self._routes = routes
        self._rules = rules
        self._limits = limits
        self._client = HttpClient(upstream, headers={"Content-Type": "application/json"}, body_max_bytes=REPLY_MAX_BYTES)
        self._readiness = Readiness(self._client)
        self._passer = Passer(upstream, limits.timeout_s)
        # With room for the largest head, besides: the largest body has to fit.
        most = limits.memory_bytes + COPIES * HEAD_MAX_BYTES
        self._admission = Admission(callers_most=limits.queue, bytes_most=most)
        self._separate = Separate()
        self.metrics = Metrics()
        self._dispatcher: Dispatcher
        self._draining = False
        self._passing = 0
        own = [
            Route("/nightshift/livez", self._alive),
            Route("/nightshift/readyz", self._ready),
            Route("/nightshift/metrics", self._page),
        ]
        self.app = Router(own, redirect_slashes=False, default=self._serve, lifespan=self._life)

    def __repr__(self) -> str:
        return f"<Batcher {self._client!r} {self._admission!r}>"

    @property
    def in_hand(self) -> int:
        """Callers who have no whole answer yet, also of what is passed through."""
        return self._admission.in_hand + self._passing

    def drain(self) -> None:
        """From now on it is not ready, and no caller waits for others. It serves callers that still come."""
        self._draining = True
        self._dispatcher.drain()

    def abandon(self) -> int:
        """Tells everybody who waits that there will be no answer; returns how many those are."""
        return self._dispatcher.abandon(
            lambda caller: error_answer(caller, 503, "the batcher is shutting down", {"retry-after": "1"})
        )

    @contextlib.asynccontextmanager
    async def _life(self, _: Router) -> AsyncIterator[None]:
        upstream = Upstream(self._client, self.metrics, self._separate, self._limits.timeout_s)
        self._dispatcher = Dispatcher(
            upstream.send,
            self.metrics,
            items_most=self._limits.batch_items,
            wait_s=self._limits.latency_s,
            upstream_most=self._limits.upstream,
        )
        async with self._client:
            yield

    # Its own paths.

    async def _alive(self, _: Request) -> Response:
        return PlainTextResponse("alive\n")

    async def _ready(self, _: Request) -> Response:
        problem = "draining" if self._draining else await self._readiness.problem()
        return PlainTextResponse(f"{problem}\n", 503) if problem else PlainTextResponse("ready\n")

    async def _page(self, _: Request) -> Response:
        self.metrics.in_hand.set(self.in_hand)
        return Response(self.metrics.page(), media_type=self.metrics.content_type)

    # Everything else.

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["raw_path"]
        target = path + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        if not _PATH.fullmatch(target) or not sendable(scope["headers"]):
            message = "the path or a header has characters that HTTP does not allow"
            await respond(send, 400, {}, error_body(scope["path"])(400, message))
            return
        if (name := self._rules.dropped(scope["headers"])) is not None:
            message = f"the header Connection must not name {name!r}: it says who the caller is, and would be dropped"
            self.metrics.rejected.labels("connection").inc()
            await respond(send, 400, {}, error_body(scope["path"])(400, message))
            return
        endpoint = self._routes.find(scope["method"], path.decode())
        counting = None if endpoint is None else self._rules.counting(scope["headers"])
        if endpoint is None or counting is None:
            self.metrics.passed.labels("other" if endpoint is None else "headers").inc()
            self._passing += 1
            try:
                await self._passer(scope, receive, send)
            finally:
                self._passing -= 1
            return
        if _announced(scope) > self._limits.body_bytes:
            await self._reject(send, endpoint, "body", 413, self._too_large())
            return
        if self._admission.full:
            await self._no_room(send, endpoint, "queue")
            return
        loop = asyncio.get_running_loop()
        place = self._admission.begin(loop.time())
        try:
            if (body := await self._body(place, endpoint, scope, receive, send)) is None:
                return
            if self._admission.enter(place):
                await self._collect(endpoint, target.decode(), counting, body, scope, receive, send)
            else:
                await self._no_room(send, endpoint, "queue")
        finally:
            self._admission.leave(place, loop.time())

    async def _collect(
        self,
        endpoint: Endpoint,
        target: str,
        counting: tuple[tuple[str, str], ...],
        body: bytes,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Lets a caller wait for others, and gives it its answer."""
        asked = endpoint.read(body)
        if asked is None:
            self.metrics.passed.labels("body").inc()
            await self._passer(scope, receive, send, body)
            return
        loop = asyncio.get_running_loop()
        now, answering = loop.time(), loop.create_future()
        alone = self._separate.holds(endpoint, target, asked, now)
        caller = Caller(endpoint, target, counting, of_one(scope["headers"]), body, asked, now, answering, alone)
        answer = await self._answer(caller, receive)
        if answer is not None:
            self.metrics.callers.labels(endpoint.name, str(answer.status)).inc()
            with contextlib.suppress(TimeoutError):  # Then the connection is closed.
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    await respond(send, answer.status, answer.headers, answer.body)

    async def _answer(self, caller: Caller, receive: Receive) -> Answer | None:
        """The caller's answer; None if it leaves before."""
        left = asyncio.ensure_future(receive())
        most = self._limits.batch_items
        if caller.alone or caller.asked.count <= most:
            self._dispatcher.submit(caller)
            answer = caller.answer
        else:
            answer = asyncio.ensure_future(in_pieces(caller, self._dispatcher, self._separate, most))
        try:
            await asyncio.wait((answer, left), return_when=asyncio.FIRST_COMPLETED)
            return answer.result() if answer.done() else None
        finally:
            left.cancel()
            # Also if this task is cancelled, as the server does at the end of a drain.
            if answer is not caller.answer:
                answer.cancel()
            elif caller.waits:
                self._dispatcher.leave(caller)

    async def _body(self, place: Place, endpoint: Endpoint, scope: Scope, receive: Receive, send: Send) -> bytes | None:
        """A caller's whole request; None if there is none: then it has its answer, or has left."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S) as limit:
                place.give_way = lambda: limit.reschedule(loop.time())
                body = await self._arrive(place, scope, receive)
        except TimeoutError:
            body = "memory" if place.turned_away else "slow"
        finally:
            place.give_way = lambda: None  # It has arrived, or is refused already.
        match body:
            case "gone":
                self.metrics.gone.labels("sending").inc()
            case "body":
                await self._reject(send, endpoint, "body", 413, self._too_large())
            case "slow":
                message = f"the request took longer than {BODY_TIMEOUT_S:g} s to arrive"
                await self._reject(send, endpoint, "slow", 408, message)
            case "memory":
                await self._no_room(send, endpoint, "memory")
            case bytes():
                return body
        return None

    async def _arrive(self, place: Place, scope: Scope, receive: Receive) -> bytes | str:
        """The whole body, or why there is none."""
        loop = asyncio.get_running_loop()
        body = bytearray()
        room = self._admission.grow(place, sum(len(name) + len(value) for name, value in scope["headers"]), loop.time())
        while room:
            message = await receive()
            if message["type"] != "http.request":
                return "gone"
            body += message.get("body", b"")
            if len(body) > self._limits.body_bytes:
                return "body"
            room = self._admission.grow(place, len(message.get("body", b"")), loop.time())
            if room and not message.get("more_body", False):
                return bytes(body)
        return "memory"

    def _too_large(self) -> str:
        return f"the request has more than {self._limits.body_bytes} bytes (--max-body-mb)"

    async def _no_room(self, send: Send, endpoint: Endpoint, full: str) -> None:
        await self._reject(send, endpoint, full, 429, f"the batcher has no room now: its {full} is full")

    async def _reject(self, send: Send, endpoint: Endpoint, reason: str, status: int, message: str) -> None:
        self.metrics.rejected.labels(reason).inc()
        self.metrics.callers.labels(endpoint.name, str(status)).inc()
        headers = {"connection": "close"} if status in (408, 413) else {}
        if status == 429:
            headers["retry-after"] = str(self._admission.retry_after_s(asyncio.get_running_loop().time()))
        await respond(send, status, headers, endpoint.error(status, message))


def _announced(scope: Scope) -> int:
    """The length that a request says its body has; 0 if it says none."""
    found = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    return int(found) if found.isdigit() else 0


class Readiness:
    """Whether work can be done: what the server at `client` says of its health."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._asking: asyncio.Task[str] | None = None
        self._asked_at = float("-inf")

    async def problem(self) -> str:
        """Why no work can be done now; empty if it can."""
        loop = asyncio.get_running_loop()
        if self._asking is None or (self._asking.done() and loop.time() - self._asked_at >= BELIEVED_S):
            self._asked_at = loop.time()
            self._asking = loop.create_task(self._ask())
        # A prober that leaves must not end it for the others.
        return await asyncio.shield(self._asking)

    async def _ask(self) -> str:
        for path in HEALTH_PATHS:
            try:
                status = (await self._client.request("GET", path, timeout_s=HEALTH_S)).status
            except NoDescriptors:
                return ""  # That says nothing of the server.
            except (OSError, TimeoutError) as error:
                return f"the server does not answer {path}: {error}"
            if status not in (404, 405):
                # A gateway that wants a key says 401 to this, and serves callers who have one.
                bad = status >= 500 or status == 429 or (path != HEALTH_PATHS[0] and status == 400)
                return f"the server answers {path} with {status}" if bad else ""
        return ""  # It answers, and has no such path.
