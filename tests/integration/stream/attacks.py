"""Requests whose end two servers may see at different places. In each, a second request of another name is hidden.

The kinds: what offers an upgrade; what states a length and an encoding, or several lengths; what states a length or an encoding
that is not one; chunks that are none; trailers; lines that end otherwise; names and values with what they may not have; a
request line that is another; and all of these in HTTP/1.0 and 1.1, in one packet and in two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HIDDEN: Final = (
    b"POST /v1/embeddings HTTP/1.1\r\nHost: h\r\nX-User: admin\r\nContent-Type: application/json\r\nContent-Length: 31\r\n\r\n"
    b'{"model":"m","input":"hidden"} '
)
PLAIN: Final = b'{"model": "m", "input": "raw"}'
UPGRADES: Final = (
    b"Connection: Upgrade\r\nUpgrade: foo",
    b"Connection: Upgrade\r\nUpgrade: h2c",
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    b"Connection: keep-alive, Upgrade\r\nUpgrade: TLS/1.2, foo/2",
    b"Connection: Upgrade",
    b"Upgrade: h2c",
    b"Connection: Upgrade\r\nConnection: close\r\nUpgrade: foo",
)


@dataclass(frozen=True)
class Attack:
    """name: its kind and number. head: its headers besides those of an honest request. body: with what is hidden in it.

    whole: the body as a server has to see it, if it may see the request at all; None: it must not.
    """

    name: str
    head: bytes
    body: bytes
    whole: bytes | None = None

    def sent(self, path: bytes, version: bytes, number: int) -> tuple[bytes, bytes]:
        """The head and what follows it. number: of this way to send it, in the header X-Attack."""
        line = b"POST %b HTTP/%b\r\nX-Attack: %d\r\n" % (path, version, number)
        return line + b"Host: h\r\nContent-Type: application/json\r\n" + self.head + b"\r\n\r\n", self.body


def chunked(body: bytes, *, extension: bytes = b"", trailers: bytes = b"") -> bytes:
    return b"%x%b\r\n%b\r\n0\r\n%b\r\n" % (len(body), extension, body, trailers)


def length_of(size: int) -> bytes:
    return b"Content-Length: %d" % size


def _attacks() -> list[Attack]:
    length, size = length_of(len(HIDDEN)), len(PLAIN)
    te = b"Transfer-Encoding: chunked"
    found: list[tuple[str, bytes, bytes, bytes | None]] = []
    for offer in UPGRADES:
        found.append(("upgrade", offer + b"\r\n" + length, HIDDEN, HIDDEN))
        found.append(("upgrade, chunked", offer + b"\r\n" + te, chunked(HIDDEN), HIDDEN))
    both = chunked(PLAIN) + HIDDEN
    found += [
        ("both", te + b"\r\n" + length_of(size), both, None),
        ("both", length_of(size) + b"\r\n" + te, both, None),
        ("both", length_of(len(both)) + b"\r\n" + te, both, None),
        ("both", length_of(len(both)) + b"\r\nTransfer-Encoding: identity", both, None),
        ("lengths", length_of(size) + b"\r\n" + length_of(size + len(HIDDEN)), PLAIN + HIDDEN, None),
        ("lengths", length_of(size + len(HIDDEN)) + b"\r\n" + length_of(size), PLAIN + HIDDEN, None),
        ("lengths", b"Content-Length: %d, %d" % (size, size + len(HIDDEN)), PLAIN + HIDDEN, None),
    ]
    for wrong in (b"+30", b"-30", b"0x1e", b"3_0", b"30.0", b"30;q=1", b"\x0b30", b"18446744073709551646", b"", b"x", b"3 0"):
        found.append(("no length", b"Content-Length: " + wrong, PLAIN + HIDDEN, None))
    for wrong in (
        b"identity, chunked",
        b"chunked, identity",
        b"chunked, chunked",
        b"xchunked",
        b"gzip",
        b"chunked;q=1",
        b"\x0bchunked",
        b"chunked\r\nTransfer-Encoding: identity",
        b'"chunked"',
    ):
        found.append(("no encoding", b"Transfer-Encoding: " + wrong, both, None))
    for wrong in (b"Transfer-Encoding : chunked", b"Transfer_Encoding\x00: chunked", b"X: 1\r\n Transfer-Encoding: chunked"):
        found.append(("no name", wrong + b"\r\n" + length_of(size), PLAIN, None))
    for wrong in (b"0x1e", b"-1", b"+1e", b"1e 1", b"", b"g", b"10000000000000001e", b"1e\n", b"1_e"):
        found.append(("no chunk", te, wrong + b"\r\n" + PLAIN + b"\r\n0\r\n\r\n" + HIDDEN, None))
    found += [
        ("no chunk", te, b"1e\r\n" + PLAIN + b"XX0\r\n\r\n" + HIDDEN, None),
        ("no chunk", te, b"1e\r" + PLAIN + b"\r\n0\r\n\r\n" + HIDDEN, None),
        ("no chunk", te, b"1e;a\nb\r\n" + PLAIN + b"\r\n0\r\n\r\n" + HIDDEN, None),
        ("trailers", te, chunked(PLAIN, trailers=b"X-User: admin\r\nContent-Length: 9\r\nHost: other\r\n"), PLAIN),
        ("trailers", te, chunked(PLAIN, extension=b';a="\\r\\n0"'), PLAIN),
        ("lines", b"X-A: 1\n" + length_of(size), PLAIN, None),
        ("lines", b"X-A: 1\rX-User: admin\r\n" + length_of(size), PLAIN, None),
        ("lines", b"X-A: 1\r\n\tX-User: admin\r\n" + length_of(size), PLAIN, None),
        ("values", b"X-A: \x00\r\n" + length_of(size), PLAIN, None),
        ("values", b"X-User: \xff\xfe\r\n" + length_of(size), PLAIN, None),
        ("values", b"Host: other\r\n" + length_of(size), PLAIN, None),
    ]
    return [Attack(f"{kind} {number}", head, body, whole) for number, (kind, head, body, whole) in enumerate(found)]


ATTACKS: Final = tuple(_attacks())
LINES: Final = (
    b"GET /echo/a HTTP/1.1\r\nHost: h\r\nX: 1\n\n",
    b"GET  /echo/a HTTP/1.1\r\nHost: h\r\n\r\n",
    b"GET /echo/a b HTTP/1.1\r\nHost: h\r\n\r\n",
    b"GET /echo/a HTTP/1.1 \r\nHost: h\r\n\r\n",
    b"GET /echo/a HTTP/2.0\r\nHost: h\r\n\r\n",
    b"GET /echo/a HTTP/01.1\r\nHost: h\r\n\r\n",
    b"GET http://other/echo/a HTTP/1.1\r\nHost: h\r\n\r\n",
    b"CONNECT other:80 HTTP/1.1\r\nHost: other:80\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /echo/a\r\n",
    b"G\x00T /echo/a HTTP/1.1\r\nHost: h\r\n\r\n",
    b"GET /echo/\xff HTTP/1.1\r\nHost: h\r\n\r\n",
    b" GET /echo/a HTTP/1.1\r\nHost: h\r\n\r\n",
)
"""Requests that are none, with another behind each."""
