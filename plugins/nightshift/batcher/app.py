"""What happens to a request: it waits for others, or is passed through, or is turned away."""

from __future__ import annotations

import asyncio
import re
from typing import Final

from aiohttp import HttpVersion10, HttpVersion11, web

from nightshift.batcher.connections import HEAD_MAX_BYTES, SERVER, TOO_LARGE, Account, Connection, Server, connection_of
from nightshift.batcher.dispatch import Answer, Caller, Dispatcher
from nightshift.batcher.endpoint import Asked, Endpoint
from nightshift.batcher.headers import Counting, HeaderRules, of_one, sendable, utf8
from nightshift.batcher.kserve import axes_of
from nightshift.batcher.metrics import Metrics
from nightshift.batcher.options import Options
from nightshift.batcher.oversized import PIECES_MOST, in_pieces
from nightshift.batcher.passthrough import PIECE_BYTES, Passer, Refused, too_large
from nightshift.batcher.rate import Rate
from nightshift.batcher.readiness import Questions, Separate
from nightshift.batcher.routes import Routes, error_body, model_of
from nightshift.batcher.upstream import REPLY_MAX_BYTES, Upstream, error_answer
from nightshift.driver.http import HttpClient

COPIES: Final = 3
"""Of a request's bytes: its body, its items until they are sent, and the merged request in the connection's buffer."""
MERGED_MAX_BYTES: Final = 1 << 20
"""A larger body gains nothing from company, and takes long to be read: it is passed through unread."""
ELEMENTS_MOST: Final = 1 << 18
"""Of a body that is read; as many commas."""
NESTED_MOST: Final = 1 << 14
"""Lists and objects of a body that is read: each takes ten times as long as a number."""
LARGE_BYTES: Final = 64 << 10
"""Of larger bodies, one is read at a time, and others have their turn between two."""
JSON: Final = {"content-type": "application/json"}
_TEXT: Final = {"content-type": "text/plain; charset=utf-8"}
_PATH: Final = re.compile(r"/[\x21-\x22\x24-\x7e]*")


class Batcher:
    """Stands in front of the server that the options name: an asynchronous context manager.

    Raises ValueError for a URL that cannot be used.
    """

    def __init__(self, options: Options, routes: Routes, rules: HeaderRules) -> None:
        self._options = options
        self._routes = routes
        self._rules = rules
        self._body_most = options.max_body_mb << 20
        self._key = {"authorization": f"Bearer {options.key}"} if options.key else {}
        self._client = HttpClient(
            options.upstream, headers={"Content-Type": "application/json"}, body_max_bytes=REPLY_MAX_BYTES
        )
        self._questions = Questions(self._client, self._key)
        self._separate = Separate()
        self._rate = Rate()
        self.metrics = Metrics()
        self.account = Account(
            # With room for the largest head, besides: the largest body has to fit.
            bytes_most=(options.max_memory_mb << 20) + COPIES * HEAD_MAX_BYTES,
            connections_most=options.max_connections,
            refused=lambda reason: self.metrics.rejected.labels(reason).inc(),
        )
        self.server: Server
        self._dispatcher: Dispatcher
        self._passer: Passer
        self._reading = asyncio.Lock()
        self._draining = self._closing = False
        self._callers = 0
        self.in_hand = 0
        """Requests that have no whole answer yet."""

    def __repr__(self) -> str:
        return f"<Batcher {self._client!r} {self.account!r} in_hand={self.in_hand}>"

    async def __aenter__(self) -> Batcher:
        upstream = Upstream(self._client, self.metrics, self._separate, self._options.timeout, self._key, self.account.add)
        self._dispatcher = Dispatcher(
            upstream.send,
            self.metrics,
            items_most=self._options.max_batch_size,
            wait_s=self._options.max_latency,
            upstream_most=self._options.max_upstream,
        )
        self.server = Server(self._serve, self.account)
        self._passer = Passer(self._options.upstream, self._options.timeout, self._key)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.shutdown(0.1)
        await self._passer.close()
        await self._client.close()

    def drain(self) -> None:
        """From now on it is not ready, and no caller waits for others. It serves callers that still come."""
        self._draining = True
        self._dispatcher.drain()

    def stop(self) -> None:
        """From now on each connection ends with its answer."""
        self._closing = True
        for each in list(self.account.idle):
            each.cut()

    def abandon(self) -> int:
        """Tells everybody who waits that there will be no answer; returns how many those are."""
        return self._dispatcher.abandon(
            lambda caller: error_answer(caller, 503, "the batcher is shutting down", {"retry-after": "1"})
        )

    async def _own(self, path: str) -> Answer | None:
        """The answer to a path of its own; None for others."""
        match path:
            case "/nightshift/livez":
                return Answer(200, _TEXT, b"alive\n")
            case "/nightshift/readyz":
                problem = "draining" if self._draining else await self._questions.problem()
                return Answer(503, _TEXT, f"{problem}\n".encode()) if problem else Answer(200, _TEXT, b"ready\n")
            case "/nightshift/metrics":
                self.metrics.in_hand.set(self.in_hand)
                self.metrics.held.set(self.account.bytes)
                return Answer(200, {"content-type": self.metrics.content_type}, self.metrics.page())
        return None

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = connection_of(request)
        counted = False
        try:
            if request.method in ("GET", "HEAD") and (own := await self._own(request.raw_path)) is not None:
                return await self._respond(request, own)
            counted = True
            self.in_hand += 1
            return await self._answer(request)
        except asyncio.CancelledError:
            if connection.arriving:
                self.metrics.gone.labels("sending").inc()
            raise
        finally:
            self.in_hand -= counted
            connection.ends(request)
            if self._closing and request.content.is_eof():
                connection.close()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        endpoint = None
        try:
            self._check(request)
            endpoint = self._routes.find(request.method, request.raw_path.partition("?")[0])
            counting = None if endpoint is None else self._rules.counting(request.raw_headers)
            if endpoint is not None and counting is not None:
                return await self._collect(request, endpoint, counting)
            self.metrics.passed.labels("other" if endpoint is None else "headers").inc()
            await self._expected(request)
            return await self._passer(request)
        except Refused as error:
            refused = error
        except web.RequestPayloadError:
            refused = Refused(400, "the body is not valid HTTP/1.1", "invalid")
        if endpoint is not None and refused.reason:
            self.metrics.callers.labels(endpoint.name, str(refused.status)).inc()
        return await self._respond(request, self._turned_away(request, refused), last=refused.status != 429)

    def _turned_away(self, request: web.BaseRequest, refused: Refused) -> Answer:
        if refused.reason:
            self.account.refused(refused.reason)
        retry = self._rate.retry_after_s(self._callers, asyncio.get_running_loop().time())
        headers = {**JSON, "retry-after": str(retry)} if refused.status == 429 else JSON
        return Answer(refused.status, headers, error_body(request.raw_path)(refused.status, str(refused)))

    async def _expected(self, request: web.BaseRequest) -> None:
        """Asks for a body whose caller waits for that."""
        if request.version == HttpVersion11 and request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _check(self, request: web.BaseRequest) -> None:
        """Raises Refused for what must not get to the server."""
        target, headers = request.raw_path, request.raw_headers
        if sum(len(name) + len(value) for name, value in headers) + len(target) > HEAD_MAX_BYTES:
            raise Refused(431, TOO_LARGE, "head")
        if request.method == "CONNECT":
            raise Refused(400, "CONNECT is for proxies: this is a server", "invalid")
        if request.version not in (HttpVersion10, HttpVersion11):
            raise Refused(400, "this is an HTTP/1.1 server", "invalid")
        encodings = request.headers.getall("Transfer-Encoding", [])
        if encodings and (request.version != HttpVersion11 or [each.strip().lower() for each in encodings] != ["chunked"]):
            # Where such a body ends, another server may see otherwise.
            raise Refused(400, "a body is sent with a length, or in chunks and HTTP/1.1", "invalid")
        if not _PATH.fullmatch(target) or not sendable(headers):
            raise Refused(400, "the path or a header has characters that HTTP does not allow, or is not UTF-8", "invalid")
        if (name := self._rules.dropped(headers)) is not None:
            message = f"the header Connection must not name {name!r}: it says who the caller is, and would be dropped"
            raise Refused(400, message, "connection")

    async def _collect(self, request: web.BaseRequest, endpoint: Endpoint, counting: Counting) -> web.StreamResponse:
        """Lets a caller wait for others, and gives it its answer."""
        connection, loop = connection_of(request), asyncio.get_running_loop()
        if (request.content_length or 0) > self._body_most:
            raise too_large(self._body_most)
        if self._callers >= self._options.max_queue:
            raise self._no_room("queue")
        # Also of one that announces more: what is never sent takes no connection to the server.
        body, whole = await self._body(request, connection)
        if not whole:
            self.metrics.passed.labels("body").inc()
            return await self._passer(request, body, most=self._body_most)
        if self._callers >= self._options.max_queue:
            raise self._no_room("queue")
        self._callers += 1
        try:
            connection.works()
            connection.hold((COPIES - 1) * len(body))
            if not connection.has_room():
                raise self._no_room("memory")
            if (asked := await self._read(endpoint, body)) is None:
                self.metrics.passed.labels("body").inc()
                return await self._passer(request, body, whole=True)
            own, answering = of_one(request.raw_headers), loop.create_future()
            caller = Caller(
                endpoint, request.raw_path, counting, own, body, asked, loop.time(), answering, hold=connection.hold
            )
            return await self._respond(request, await self._ask(caller))
        finally:
            self._callers -= 1
            self._rate.add(loop.time())

    async def _body(self, request: web.BaseRequest, connection: Connection) -> tuple[bytes, bool]:
        """A caller's body as far as it may be merged, and whether that is the whole of it."""
        await self._expected(request)
        loop, body = asyncio.get_running_loop(), bytearray()
        try:
            async with asyncio.timeout(None) as limit:
                connection.give_way = lambda: limit.reschedule(loop.time())
                while len(body) <= MERGED_MAX_BYTES:
                    if not (piece := await request.content.readany()):
                        return bytes(body), True
                    body += piece
        except TimeoutError:
            raise self._no_room("memory") from None
        finally:
            connection.give_way = None
        return bytes(body), False

    async def _read(self, endpoint: Endpoint, body: bytes) -> Asked | None:
        """What a body asks for; None if it goes as it is, also because reading it would keep others waiting."""
        if body.count(b",") > ELEMENTS_MOST or body.count(b"[") + body.count(b"{") > NESTED_MOST:
            return None
        if len(body) <= LARGE_BYTES:
            asked = endpoint.read(body)
        else:
            async with self._reading:
                asked = endpoint.read(body)
                await asyncio.sleep(0)
        return None if asked is None or asked.count > PIECES_MOST * self._options.max_batch_size else asked

    async def _ask(self, caller: Caller) -> Answer:
        loop, most = asyncio.get_running_loop(), self._options.max_batch_size
        caller.alone = self._separate.holds(caller, loop.time())
        if not caller.alone and (model := model_of(caller.target)) is not None:
            caller.alone = not await self._questions.may_merge(model, dict(caller.counting), axes_of(caller.asked))
            caller.since = loop.time()
        if caller.alone or caller.asked.count <= most:
            answer = await self._dispatcher.ask(caller)
        else:
            answer = await in_pieces(caller, self._dispatcher, self._separate, most)
        self.metrics.callers.labels(caller.endpoint.name, str(answer.status)).inc()
        return answer

    def _no_room(self, full: str) -> Refused:
        return Refused(429, f"the batcher has no room now: its {full} is full", full)

    async def _respond(self, request: web.BaseRequest, answer: Answer, *, last: bool = False) -> web.StreamResponse:
        """Gives a caller its whole answer, in pieces: it takes each before the next is written. last: of its connection."""
        connection = connection_of(request)
        connection.works()
        connection.hold_only(len(answer.body))
        if not connection.has_room():
            answer = self._turned_away(request, self._no_room("memory"))
            connection.hold_only(len(answer.body))
        headers = utf8(answer.headers.items())
        headers.setdefault("server", SERVER)
        small = len(answer.body) <= PIECE_BYTES
        response = (
            web.Response(status=answer.status, headers=headers, body=answer.body)
            if small
            else web.StreamResponse(status=answer.status, headers={**headers, "content-length": str(len(answer.body))})
        )
        if last or self._closing or not request.content.is_eof():
            response.force_close()
        connection.reads()
        await response.prepare(request)
        for start in range(0, 0 if small else len(answer.body), PIECE_BYTES):
            await response.write(answer.body[start : start + PIECE_BYTES])
        await response.write_eof()
        return response
