"""What a connection may take before a request on it is whole: bytes and time of its head, and a place among all connections.

uvicorn bounds none of it. When there are too many, a new connection takes the place of the one that has owed the rest of a
request for longest, or else of one that is idle; never of one that waits for its answer.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from nightshift.stream.batcher.admission import SLOW_S
from nightshift.stream.batcher.endpoint import openai_error

KEEP_ALIVE_S: Final = 75
"""Longer than load balancers keep an idle connection: otherwise they send a request into one that is being closed."""
HEAD_MAX_BYTES: Final = 64 << 10
"""Of a request's line and headers. As much in a row without any of the body is refused, too: trailers, for example."""
HEADERS_MOST: Final = 256
HEAD_TIMEOUT_S: Final = 10.0
HEADS_MAX_BYTES: Final = 16 << 20
"""Of all heads that are arriving."""
PIPELINED_MOST: Final = 16
"""Requests that a connection may send ahead of their answers."""
LINGER_S: Final = 10.0
"""For the rest of a request that has its answer, and for the rest of an answer after which the connection is closed."""


class Connections:
    """All connections of a server: `most` of them. refused(reason): called when one is turned away."""

    def __init__(self, most: int, refused: Callable[[str], None]) -> None:
        self._most = most
        self.refused = refused
        self._loop = asyncio.get_running_loop()
        # In the order in which they began to owe, and in which they became idle.
        self._owing: OrderedDict[Connection, float] = OrderedDict()
        self._idle: OrderedDict[Connection, None] = OrderedDict()
        self._heads = 0

    def __repr__(self) -> str:
        return f"<Connections owing={len(self._owing)} idle={len(self._idle)} heads={self._heads} most={self._most}>"

    def opened(self, connection: Connection, count: int) -> bool:
        """A new one; False if there is no room for it. count: all that are open, with it."""
        if count > self._most:
            owing = next(iter(self._owing), None)
            if owing is not None and self._loop.time() - self._owing[owing] >= SLOW_S:
                owing.drop("connections")
            elif self._idle:
                next(iter(self._idle)).drop("connections")
            else:
                return False
        self.owes(connection)
        return True

    def owes(self, connection: Connection) -> None:
        """The rest of a request has to come."""
        self._idle.pop(connection, None)
        self._owing.setdefault(connection, self._loop.time())

    def works(self, connection: Connection) -> None:
        """Its request is whole, and has no whole answer."""
        self._owing.pop(connection, None)
        self._idle.pop(connection, None)

    def rests(self, connection: Connection) -> None:
        """It may send another request."""
        self._owing.pop(connection, None)
        self._idle[connection] = None

    def head_grew(self, size: int) -> None:
        """size: more bytes of a head that is arriving; negative when it has arrived."""
        self._heads += size
        while self._heads > HEADS_MAX_BYTES:
            if (oldest := next((each for each in self._owing if each.head_bytes), None)) is None:
                return
            oldest.drop("heads")


class Connection(HttpToolsProtocol):
    """One of a server's connections. head_bytes: of a head that is arriving, as they came."""

    def __init__(self, *arguments: Any, connections: Connections, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._all = connections
        self._timer: asyncio.TimerHandle | None = None
        self._problem: tuple[int, str, str] | None = None
        self._in_head = self._in_body = self._ended = self._over = self._hurried = False
        self._head_size = self._body_size = self._silent = 0
        self.head_bytes = 0

    def drop(self, reason: str) -> None:
        """Ends it at once."""
        self._all.refused(reason)
        self._forget()
        self.transport.abort()

    # What the transport calls.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._all.opened(self, len(self.connections)):
            self._arm(KEEP_ALIVE_S)
        else:
            self._refuse(429, "connections", "the batcher has no room now: its connections are full")

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._over or self.transport.is_closing():
            return
        self._ended = False
        body = self._body_size
        super().data_received(data)
        if self._over or self.transport.is_closing():
            return
        # Where a request ends and the next begins in one piece, its bytes cannot be told apart: it is counted from the next on.
        self._set_head(self.head_bytes + len(data) if self._in_head and not self._ended else 0)
        self._silent = self._silent + len(data) if self._in_body and body == self._body_size else 0
        if max(self.head_bytes, self._silent) > HEAD_MAX_BYTES:
            self._refuse(*_too_large())
        elif not self.transport.is_closing():  # It may just have been dropped.
            self._place(received=True)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._linger()

    # What the parser calls.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._head_size = 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._head_size += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers come here, too. They are no headers: what they say has not been looked at.
        if self._in_head:
            super().on_header(name, value)
            self._head_size += len(name) + len(value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._in_body = True
        if self._head_size > HEAD_MAX_BYTES or len(self.headers) > HEADERS_MOST:
            self._problem = _too_large()
        elif len(self.pipeline) >= PIPELINED_MOST:
            self._problem = (400, "pipelined", f"more than {PIPELINED_MOST} requests were sent ahead of their answers")
        if self._problem is not None:
            raise ValueError(self._problem[-1])  # Ends the parser's work; `send_400_response` is next.
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._body_size += len(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_body = False
        self._ended = True

    # What uvicorn calls.

    def send_400_response(self, msg: str) -> None:
        self._refuse(*(self._problem or (400, "invalid", "the request is not valid HTTP/1.1")))

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._linger()
        else:
            self._place(received=False)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        async def watched(scope: Any, receive: Any, send: Any) -> None:
            try:
                await app(scope, receive, send)
            finally:
                # Then uvicorn closes the connection, but a peer that reads nothing would keep it open for ever.
                if cycle.response_started and not cycle.response_complete:
                    self._linger()

        super()._start_asgi_task(cycle, watched)

    # Its own.

    def _place(self, *, received: bool) -> None:
        """Where it stands now among all connections, and how long it may stay there."""
        working = self.cycle is not None and not self.cycle.response_complete
        if self._in_body or (self._in_head and not working):
            self._all.owes(self)
        elif working:
            self._all.works(self)
        elif not received:
            self._all.rests(self)
        if working or not (received or self._in_head or self._in_body):
            # While it works, nothing more may be read of it, and the application has its own limits of time.
            self._disarm()
        elif not self._hurried:
            self._arm(HEAD_TIMEOUT_S)

    def _set_head(self, size: int) -> None:
        if size:
            self._all.owes(self)
        grown, self.head_bytes = size - self.head_bytes, size
        if grown:
            self._all.head_grew(grown)

    def _arm(self, after_s: float) -> None:
        self._disarm()
        self._hurried = after_s == HEAD_TIMEOUT_S
        self._timer = self.loop.call_later(after_s, self._late)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._hurried = False

    def _late(self) -> None:
        if self._in_head:
            self._refuse(408, "slow", f"the request's head took longer than {HEAD_TIMEOUT_S:g} s to arrive")
        else:
            self.transport.abort()

    def _refuse(self, status: int, reason: str, message: str) -> None:
        """Answers without the application, and closes."""
        if self.cycle is not None and not self.cycle.response_complete:
            # Its words would be taken for the answer that is under way.
            self.drop(reason)
            return
        self._all.refused(reason)
        self._forget()
        body = openai_error(status, message)
        head = [STATUS_LINE[status], b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body)]
        head.append(b"retry-after: 1\r\n" if status == 429 else b"")
        self.transport.write(b"".join([*head, b"connection: close\r\n\r\n", body]))
        self._over = True
        if reason == "connections":
            self.transport.close()
        else:
            # What still comes is thrown away: a connection that is closed before it is read takes the answer with it.
            self.transport.write_eof()
            self._all.rests(self)
        self._linger()

    def _linger(self) -> None:
        """Its end must not wait for a peer that reads nothing."""
        self.loop.call_later(LINGER_S, self.transport.abort)

    def _forget(self) -> None:
        self._disarm()
        self._set_head(0)
        self._all.works(self)


def _too_large() -> tuple[int, str, str]:
    return 431, "head", f"the request's head has more than {HEAD_MAX_BYTES} bytes or {HEADERS_MOST} headers"
