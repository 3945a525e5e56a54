"""What is held for callers, in one account: every byte wherever it waits, and every connection.

aiohttp serves HTTP; this counts. Over the bound of bytes, the connection gives way that has kept the batcher waiting for
longest, for the rest of its request or to take its answer; over that of connections, one that owes a request or is idle.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from nightshift.batcher.endpoint import openai_error

SERVER: Final = "nightshift"
KEEP_ALIVE_S: Final = 75
"""Longer than load balancers keep an idle connection: otherwise they send a request into one that is being closed."""
HEAD_MAX_BYTES: Final = 64 << 10
"""Of a request's line and headers. As much in a row without any of the body is refused, too: trailers, for example."""
HEADERS_MOST: Final = 256
SLOW_S: Final = 2.0
"""A request that has been arriving for longer gives way when its room is needed."""
LINGER_S: Final = 10.0
"""What a caller still sends after a refusal is thrown away for so long: a close at once would take the refusal with it."""


class Account:
    """Bytes and connections, up to `bytes_most` and `connections_most`. refused(reason): called when one is turned away."""

    def __init__(self, *, bytes_most: int, connections_most: int, refused: Callable[[str], None]) -> None:
        self.bytes_most = bytes_most
        self.connections_most = connections_most
        self.refused = refused
        self.bytes = 0
        # Whom we wait for, since when; in this order.
        self.slow: OrderedDict[Connection, float] = OrderedDict()
        self.idle: OrderedDict[Connection, None] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Account bytes={self.bytes}/{self.bytes_most} slow={len(self.slow)} idle={len(self.idle)}>"

    def add(self, size: int, own: Connection | None = None) -> None:
        """Counts bytes that are there. own: whose they are."""
        self.bytes += size
        if size > 0:
            self.make_room(own)

    def make_room(self, own: Connection | None, *, patient: bool = False) -> bool:
        """Whether there is room, once others than `own` have given way. patient: only those who are slow do."""
        while self.bytes > self.bytes_most:
            found = next((each for each in self.slow if each is not own), None)
            if found is None or (patient and found.loop.time() - self.slow[found] < SLOW_S):
                return False
            found.drop("memory" if found.arriving else "unread")
        return True

    def room_for(self, connections: int) -> bool:
        """Makes room for one more connection if need be. connections: that are open, with the new one."""
        if connections <= self.connections_most:
            return True
        slow = next((each for each, since in self.slow.items() if each.arriving and each.loop.time() - since >= SLOW_S), None)
        found = slow or next(iter(self.idle), None)
        if found is not None:
            found.drop("connections", told=False)
        return found is not None


class Connection(web.RequestHandler):
    """A caller's connection. held: its bytes in the account. arriving: its request is not whole. give_way: ends a request's
    arrival with an answer; None if it has to be cut."""

    __slots__ = ("_account", "_over", "_request", "_silent", "_thrown_away", "arriving", "give_way", "held", "loop")

    def __init__(self, server: Server, account: Account, loop: asyncio.AbstractEventLoop, **named: Any) -> None:
        super().__init__(server, loop=loop, **named)
        self.loop = loop
        self._account = account
        self._request: web.BaseRequest | None = None
        self._over = False
        self._thrown_away = False
        self._silent = 0
        self.held = 0
        self.arriving = False
        self.give_way: Callable[[], None] | None = None

    # What the application says of its request.

    def begins(self, request: web.BaseRequest) -> None:
        self._request = request
        self._silent = 0
        self.owes()
        self._notice_broken()

    def owes(self) -> None:
        """The rest of a request has to come."""
        self._account.idle.pop(self, None)
        self._account.slow.setdefault(self, self.loop.time())
        self.arriving = True

    def works(self) -> None:
        """Its request is whole."""
        self._account.slow.pop(self, None)
        self._account.idle.pop(self, None)
        self.arriving = False
        self.give_way = None

    def reads(self) -> None:
        """Its caller has an answer to take."""
        self.works()
        self._account.slow[self] = self.loop.time()

    def hold(self, size: int) -> None:
        """More bytes are held for it, or fewer."""
        self.held += size
        self._account.add(size, self)

    def hold_only(self, size: int) -> None:
        """Nothing else is held for it any more."""
        self.hold(size - self.held)

    def has_room(self) -> bool:
        """Whether what is held for it has room, once others have given way."""
        return self._account.make_room(self)

    def ends(self, request: web.BaseRequest) -> None:
        """The request has its whole answer. What is left of its body is read and thrown away, and the connection closed."""
        if request.content.exception() is not None:
            request.content.feed_eof()  # There is nothing more to be read.
        self._thrown_away = not request.content.is_eof()
        self._request = None
        self._silent = 0
        self.works()
        if self.transport is None:
            self.hold_only(0)
        elif self._messages:
            self.owes()  # What was sent ahead stays counted.
        else:
            self.hold_only(0)
            self._account.idle[self] = None

    def drop(self, reason: str, *, told: bool = True) -> None:
        """Ends it. told: with an answer, if it can have one."""
        if told and self.give_way is not None:
            give_way, self.give_way = self.give_way, None
            self._account.slow.pop(self, None)
            self.hold_only(0)
            give_way()
            return
        self._account.refused(reason)
        self.cut()

    def cut(self) -> None:
        """Ends it without a word, and at once: a peer that reads nothing must not keep it."""
        self.works()
        self.hold_only(0)
        self._over = True
        if self.transport is not None:
            self.transport.abort()

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert isinstance(self._manager, Server)
        if self._account.room_for(len(self._manager.connections)):
            self.owes()
        else:
            self._refuse(429, "connections", "the batcher has no room now: its connections are full")

    def connection_lost(self, exc: BaseException | None) -> None:
        self.works()
        self.hold_only(0)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        if self._thrown_away:
            super().data_received(data)
            return
        if self._request is None:
            self.owes()
        before = self._body_bytes()
        self.held += len(data)
        self._account.bytes += len(data)
        if not self._account.make_room(self, patient=True):
            self.drop("memory")
        super().data_received(data)
        if self._messages and (error := getattr(self._messages[-1][0], "exc", None)) is not None:
            # With its frames, it would keep the bytes until Python looks for cycles. What follows is no HTTP, either.
            error.__traceback__ = None
            self._over = True
        self._notice_broken()
        waits_for_more = not self._messages and self._body_bytes() == before
        self._silent = self._silent + len(data) if waits_for_more else 0
        if self._silent > HEAD_MAX_BYTES:
            self._refuse(431, "head", TOO_LARGE)

    def _notice_broken(self) -> None:
        """Tells a body that it will never end: aiohttp tells only who asks for the next request."""
        if self._request is not None and self._messages and not self._request.content.is_eof():
            self._messages.clear()
            self._request.content.set_exception(web.RequestPayloadError("a chunk that is none"))

    def _body_bytes(self) -> int:
        return 0 if self._request is None else self._request.content.total_bytes

    # Answers without the application.

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """What is not HTTP, in the form of other errors."""
        if status != 400:
            if not isinstance(exc, ConnectionError):  # Its caller was cut off while it had its answer.
                self.logger.error("a request failed unexpectedly", exc_info=exc)
            found = _Last(status=status, body=openai_error(status, "the batcher failed; its log says how"))
        else:
            too_large = isinstance(exc, LineTooLong) or "Too many" in str(exc)
            self._account.refused("head" if too_large else "invalid")
            status, words = (431, TOO_LARGE) if too_large else (400, "the request is not valid HTTP/1.1")
            found = _Last(status=status, body=openai_error(status, words))
        found.content_type = "application/json"
        found.headers["Server"] = SERVER
        found.force_close()
        return found

    def _refuse(self, status: int, reason: str, message: str) -> None:
        """Its words would be taken for the answer of a request that is being worked on: then there are none."""
        if self._request is not None or self.transport is None:
            self.drop(reason, told=False)
            return
        self._account.refused(reason)
        body = openai_error(status, message)
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
        head += f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(head.encode() + body)
        self.linger()

    def linger(self) -> None:
        """Its last answer is written: what still comes is thrown away for `LINGER_S`, and then it ends."""
        self.works()
        self.hold_only(0)
        self._over = True
        if self.transport is not None:
            self.transport.write_eof()
            self._account.idle[self] = None
            self.loop.call_later(LINGER_S, self.transport.abort)


def connection_of(request: web.BaseRequest) -> Connection:
    assert isinstance(request.protocol, Connection)
    return request.protocol


class _Last(web.Response):
    """The last answer of a connection. aiohttp closes as soon as it is written, which would take it from who still sends."""

    async def prepare(self, request: web.BaseRequest) -> Any:
        self._connection = connection_of(request)
        return await super().prepare(request)

    async def write_eof(self, data: bytes = b"") -> None:
        await super().write_eof(data)
        self._connection.linger()
        await asyncio.sleep(LINGER_S)  # Its end cancels this.


TOO_LARGE: Final = f"the request's head has more than {HEAD_MAX_BYTES} bytes or {HEADERS_MOST} headers"


class Server(web.Server):
    """aiohttp's, with connections that are counted."""

    def __init__(self, handler: Callable[[web.BaseRequest], Any], account: Account) -> None:
        super().__init__(handler, request_factory=self._begin, handler_cancellation=True)
        self._account = account

    def _begin(self, message: Any, payload: Any, connection: Any, writer: Any, task: Any) -> web.BaseRequest:
        if message.upgrade:
            # aiohttp loses what comes in one piece behind an offer to upgrade, and would take the rest of it for a request.
            message = message._replace(should_close=True)
        # Not in the application, whose task begins later: what comes meanwhile belongs to this request.
        request = self._make_request(message, payload, connection, writer, task)
        connection.begins(request)
        return request

    def __call__(self) -> Connection:
        return Connection(
            self,
            self._account,
            asyncio.get_running_loop(),
            keepalive_timeout=KEEP_ALIVE_S,
            max_line_size=HEAD_MAX_BYTES,
            max_field_size=HEAD_MAX_BYTES,
            max_headers=HEADERS_MOST,
            read_bufsize=64 << 10,
            auto_decompress=False,
            access_log=None,
        )
