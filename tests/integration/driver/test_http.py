"""The HTTP client against servers that misbehave, on asyncio's loop and on uvloop's."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import tracemalloc
from typing import Any

import pytest

from nightshift.driver.http import ConnectionLost, HttpClient, ReplyTooLarge, Response
from tests.integration.driver.peers import LONG_S, OK, Peer, get, on_both_loops, replying, serving

pytestmark = [pytest.mark.integration, pytest.mark.gate]


@on_both_loops
async def test_the_request_is_what_was_asked_for() -> None:
    seen: list[tuple[bytes, bytes]] = []

    async def script(peer: Peer) -> None:
        for _ in range(2):
            seen.append(await peer.request())
            peer.send(OK)

    async with serving(script) as url, HttpClient(f"{url}/base/", headers={"X-A": "1"}) as client:
        reply = await client.request("POST", "/x?y=1", b"body", {"X-B": "2"}, timeout_s=LONG_S)
        await get(client)
        with pytest.raises(ValueError, match="cannot be sent"):
            await client.request("GET", "/x y", timeout_s=LONG_S)
        with pytest.raises(ValueError, match="set by the client itself"):
            await client.request("GET", "/x", headers={"Transfer-Encoding": "chunked"}, timeout_s=LONG_S)
        assert repr(client) == f"<HttpClient {url}/base connections=1 idle=1>"

    host = url.removeprefix("http://").encode()
    common = b"Host: " + host + b"\r\nAccept: */*\r\nAccept-Encoding: identity\r\nX-A: 1\r\n"
    assert reply == Response(200, {"content-length": "2"}, b"ok")
    assert seen == [
        (b"POST /base/x?y=1 HTTP/1.1\r\n" + common + b"X-B: 2\r\nContent-Length: 4\r\n\r\n", b"body"),
        (b"GET /base/x HTTP/1.1\r\n" + common + b"Content-Length: 0\r\n\r\n", b""),
    ]


@pytest.mark.parametrize(
    ("sent", "reply"),
    [
        (OK, Response(200, {"content-length": "2"}, b"ok")),
        (
            (
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-A:  1 \r\nx-a: 2\r\n\r\n"
                b"3;e=1\r\nabc\r\n2\r\nde\r\n0\r\nX-A: 3\r\n\r\n"
            ),
            Response(200, {"transfer-encoding": "chunked", "x-a": "1, 2"}, b"abcde"),
        ),
        (b"HTTP/1.1 100 Continue\r\nX: 1\r\n\r\nHTTP/1.1 102 P\r\n\r\n" + OK, Response(200, {"content-length": "2"}, b"ok")),
        (b"HTTP/1.1 204 No Content\r\n\r\n", Response(204, {}, b"")),
        (
            b"HTTP/1.1 302 Found\r\nLocation: /y\r\nContent-Length: 0\r\n\r\n",
            Response(302, {"location": "/y", "content-length": "0"}, b""),
        ),
        (b"HTTP/1.1 200 OK\r\nX: \xe4\r\nContent-Length: 0\r\n\r\n", Response(200, {"x": "\xe4", "content-length": "0"}, b"")),
    ],
)
@on_both_loops
async def test_a_reply_may_be_cut_anywhere_and_its_connection_serves_again(sent: bytes, reply: Response) -> None:
    connections = []

    async def script(peer: Peer) -> None:
        connections.append(peer)
        for cut in [*range(1, len(sent)), 0]:
            await peer.request()
            for part in (sent[:cut], sent[cut:]):
                peer.send(part)
                await asyncio.sleep(0.001)
        await peer.request()
        for byte in sent:
            peer.send(bytes([byte]))
            await asyncio.sleep(0)

    async with serving(script) as url, HttpClient(url) as client:
        for _ in range(len(sent) + 1):
            assert await get(client) == reply

    assert len(connections) == 1


@pytest.mark.parametrize(
    ("sent", "reply"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nab", Response(200, {}, b"ab")),
        (b"HTTP/1.1 200 OK\r\n\r\n", Response(200, {}, b"")),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nab", Response(200, {"content-length": "2"}, b"ab")),
        (
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
            Response(200, {"connection": "close", "content-length": "0"}, b""),
        ),
        (OK + b"x", Response(200, {"content-length": "2"}, b"ok")),
        (OK + OK, Response(200, {"content-length": "2"}, b"ok")),
        (OK + b"\0", Response(200, {"content-length": "2"}, b"ok")),
    ],
)
@on_both_loops
async def test_a_connection_that_cannot_serve_again_is_closed(sent: bytes, reply: Response) -> None:
    numbers = []

    async def script(peer: Peer) -> None:
        await peer.request()
        numbers.append(peer.number)
        peer.send(sent)
        if b"Length" in sent:
            await peer.closed()

    async with serving(script) as url, HttpClient(url) as client:
        assert [await get(client), await get(client)] == [reply, reply]

    assert numbers == [0, 1]


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (b"", "before its reply"),
        (b"H", "in the middle"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "in the middle"),
        (OK[:-1], "in the middle"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", "in the middle"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", "in the middle"),
        (b"SSH-2.0-OpenSSH\r\n", "not HTTP/1.1"),
        (b"HTTP/1.1 99999 OK\r\n\r\n", "not HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "not HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "not HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 400_000, "without any of its body"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000, "without any of its body"),
    ],
)
@on_both_loops
async def test_half_a_reply_or_none_is_a_lost_connection(sent: bytes, says: str) -> None:
    async with serving(replying(sent)) as url, HttpClient(url) as client:
        with pytest.raises(ConnectionLost, match=says):
            await get(client)
        assert client.all == {} or all(not connection.usable for connection in client.all)


@on_both_loops
async def test_a_reset_is_a_lost_connection() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        peer.send(OK[:-1])
        await peer.writer.drain()
        await asyncio.sleep(0.05)
        peer.reset()

    async with serving(script) as url, HttpClient(url) as client:
        with pytest.raises(ConnectionLost, match="in the middle"):
            await get(client)


@on_both_loops
async def test_a_request_that_meets_a_closed_connection_is_sent_once_more() -> None:
    requests = []

    async def script(peer: Peer) -> None:
        await peer.request()
        peer.send(OK)
        requests.append(await peer.request())
        peer.reset()

    async with serving(script) as url, HttpClient(url) as client:
        await get(client)
        assert (await get(client)).body == b"ok"

    assert len(requests) == 1


@on_both_loops
async def test_it_is_not_sent_a_third_time() -> None:
    heads = []

    async def script(peer: Peer) -> None:
        heads.append(await peer.request())
        if peer.number == 0:
            peer.send(OK)
            heads.append(await peer.request())

    async with serving(script) as url, HttpClient(url) as client:
        await get(client)
        with pytest.raises(ConnectionLost, match="before its reply"):
            await get(client)

    assert len(heads) == 3


@on_both_loops
async def test_a_reply_that_has_begun_is_never_asked_for_again() -> None:
    numbers = []

    async def script(peer: Peer) -> None:
        for reply in (OK, OK[:5]):
            await peer.request()
            numbers.append(peer.number)
            peer.send(reply)

    async with serving(script) as url, HttpClient(url) as client:
        await get(client)
        with pytest.raises(ConnectionLost):
            await get(client)

    assert numbers == [0, 0]


@on_both_loops
async def test_a_server_that_has_gone_refuses() -> None:
    async with serving(replying(OK, OK)) as url:
        client = HttpClient(url)
        await get(client)
    with pytest.raises(ConnectionLost):
        await get(client)
    assert client.idle == []
    await client.close()


@pytest.mark.parametrize("unasked", [b"", b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n"])
@on_both_loops
async def test_idle_connections_that_the_server_closes_or_speaks_on_are_dropped(unasked: bytes) -> None:
    all_idle = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        peer.send(OK)
        await peer.writer.drain()
        await all_idle.wait()
        peer.send(unasked)
        if unasked:
            await peer.closed()

    async with serving(script) as url, HttpClient(url) as client:
        await asyncio.gather(*(get(client) for _ in range(3)))
        assert len(client.idle) == 3
        all_idle.set()
        while client.all:  # noqa: ASYNC110 - the client tells nobody
            await asyncio.sleep(0.01)
        assert client.idle == []


@on_both_loops
async def test_the_connection_used_last_is_used_first() -> None:
    numbers: list[int] = []

    async def script(peer: Peer) -> None:
        while True:
            _, body = await peer.request()
            numbers.append(peer.number)
            if body:
                await asyncio.sleep(0.05)
            peer.send(OK)

    async with serving(script) as url, HttpClient(url) as client:
        await asyncio.gather(*(client.request("POST", "/", b"slow", timeout_s=LONG_S) for _ in range(5)))
        last = numbers[:5]
        for _ in range(4):
            await get(client)
        assert len(client.all) == 5

    assert sorted(last) == [0, 1, 2, 3, 4]
    assert len(set(numbers[5:])) == 1


@on_both_loops
async def test_a_connection_that_is_too_old_is_not_used_again() -> None:
    """Servers that join behind one address get their part of the requests."""
    numbers: list[int] = []

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            numbers.append(peer.number)
            peer.send(OK)

    async with serving(script) as url, HttpClient(url, connection_life_s=LONG_S) as client:
        await get(client)
        await get(client)
        assert len(client.idle) == 1
        client.connection_life_s = 0.0
        await get(client)
        assert not client.all
    async with serving(script) as url, HttpClient(url, connection_life_s=0.0) as client:
        await get(client)
        assert not client.idle

    assert numbers == [0, 0, 1, 0]


@on_both_loops
async def test_a_slow_reply_times_out_and_its_connection_is_not_used_again() -> None:
    closed = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        peer.send(OK)
        await peer.request()
        if peer.number == 0:
            peer.send(OK[:-1])
            await peer.closed()
            closed.set()
        peer.send(OK)

    async with serving(script) as url, HttpClient(url) as client:
        # So that there is a connection: to make one may take as long on a busy machine.
        await get(client)
        with pytest.raises(TimeoutError, match=r"no reply within 0\.2 s"):
            await get(client, timeout_s=0.2)
        assert (await get(client)).body == b"ok"
        await asyncio.wait_for(closed.wait(), LONG_S)


@on_both_loops
async def test_a_cancelled_request_closes_its_connection() -> None:
    arrived, closed = asyncio.Event(), asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        if peer.number == 0:
            arrived.set()
            await peer.closed()
            closed.set()
        peer.send(OK)

    async with serving(script) as url, HttpClient(url) as client:
        task = asyncio.ensure_future(get(client))
        await arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert client.idle == []
        assert (await get(client)).body == b"ok"
        await asyncio.wait_for(closed.wait(), LONG_S)


@on_both_loops
async def test_a_cancel_that_comes_with_the_reply_leaves_the_next_request_alone() -> None:
    """The connection is back in the pool, perhaps with another's request on it, before the cancelled task runs again."""
    handed_back = asyncio.Event()

    class Idle(list[Any]):
        def append(self, connection: Any) -> None:
            super().append(connection)
            if not handed_back.is_set():
                # In this order, before the first task runs again: it is cancelled, and the second one takes the connection.
                asyncio.get_running_loop().call_soon(first.cancel)
                handed_back.set()

    async def take_over(client: HttpClient) -> Response:
        await handed_back.wait()
        return await get(client)

    async with serving(replying(OK, OK)) as url, HttpClient(url) as client:
        client.idle = Idle()
        second = asyncio.ensure_future(take_over(client))
        first = asyncio.ensure_future(get(client))
        assert (await second).body == b"ok"
        assert first.cancelled()
        assert len(client.all) == 1


@on_both_loops
async def test_no_connection_in_time() -> None:
    """A listener whose queue is full answers no connection, as a node that has gone answers none."""
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with HttpClient(url, connect_timeout_s=0.2) as client:
            with pytest.raises(ConnectionLost, match=r"no connection within 0\.2 s"):
                await get(client)
            with pytest.raises(TimeoutError, match=r"no reply within 0\.1 s"):
                await get(client, timeout_s=0.1)


@pytest.mark.parametrize("chunked", [False, True])
@on_both_loops
async def test_a_reply_above_the_limit_is_given_up(chunked: bool) -> None:
    head = b"Transfer-Encoding: chunked\r\n\r\n1389\r\n" if chunked else b"Content-Length: 5001\r\n\r\n"
    tail = b"\r\n0\r\n\r\n" if chunked else b""
    async with serving(replying(b"HTTP/1.1 200 OK\r\n" + head + b"x" * 5001 + tail)) as url:
        async with HttpClient(url, body_max_bytes=5000) as client:
            with pytest.raises(ReplyTooLarge, match="larger than 5000 bytes"):
                await get(client)
            assert client.idle == []
        async with HttpClient(url, body_max_bytes=5001) as client:
            assert len((await get(client)).body) == 5001


@on_both_loops
async def test_a_reply_in_tiny_pieces_takes_little_more_memory_than_in_one() -> None:
    """A piece of two bytes, kept as an object, would take thirty times its size."""
    pieces = 200_000
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with serving(replying(head + b"2\r\nok\r\n" * pieces + b"0\r\n\r\n")) as url, HttpClient(url) as client:
        tracemalloc.start()
        try:
            reply = await get(client)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    sent = 7 * pieces

    assert reply.body == b"ok" * pieces
    assert most < 3 * sent


@on_both_loops
async def test_an_idle_connection_keeps_nothing_of_its_last_reply() -> None:
    sent = b"HTTP/1.1 200 OK\r\nContent-Length: 8000000\r\n\r\n" + b"x" * 8_000_000
    async with serving(replying(sent)) as url, HttpClient(url) as client:
        tracemalloc.start()
        try:
            size = len((await get(client)).body)
            assert len(client.idle) == 1
            await asyncio.sleep(0)  # Until then the loop has the reply.
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

    assert size == 8_000_000
    assert held < 4_000_000


@on_both_loops
async def test_a_reply_that_trickles_for_ever_ends_with_the_requests_time() -> None:
    """Each byte comes before the connection would count as silent."""

    async def trickling(peer: Peer, head: bytes, drop: bytes) -> None:
        await peer.request()
        peer.send(head)
        while True:
            peer.send(drop)
            await peer.writer.drain()
            await asyncio.sleep(0.01)

    for head, drop in (
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"x"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (b"HTTP/1.1 200 OK\r\nX-Long: ", b"x"),
        (b"", b"HTTP/1.1 102 Processing\r\n\r\n"),
    ):
        async with serving(functools.partial(trickling, head=head, drop=drop)) as url, HttpClient(url) as client:
            with pytest.raises(TimeoutError, match=r"no reply within 0\.3 s"):
                await get(client, timeout_s=0.3)
            assert client.idle == []


@on_both_loops
async def test_a_reply_before_the_request_was_read_is_taken_and_the_connection_closed() -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        peer.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await peer.closed()

    async with serving(script, limit=1 << 10) as url, HttpClient(url) as client:
        assert (await client.request("POST", "/x", b"x" * (64 << 20), timeout_s=LONG_S)).status == 413
        assert client.idle == []


@on_both_loops
async def test_close_ends_what_is_in_flight() -> None:
    arrived = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        arrived.set()
        await peer.closed()

    async with serving(script) as url:
        client = HttpClient(url)
        task = asyncio.ensure_future(get(client))
        await arrived.wait()
        await client.close()
        with pytest.raises(ConnectionLost, match="the client was closed"):
            await task
        with pytest.raises(ConnectionLost, match="the client was closed"):
            await get(client)
        assert client.all == {}


@on_both_loops
async def test_a_request_that_is_cancelled_while_it_connects_keeps_no_client_from_closing() -> None:
    async def script(peer: Peer) -> None:
        await peer.closed()

    async with serving(script) as url:
        # Wherever in the making of the connection it is; asyncio needs some ten steps for it, uvloop three.
        for steps in range(30):
            client = HttpClient(url)
            task = asyncio.ensure_future(get(client))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with asyncio.timeout(LONG_S):
                await client.close()
            assert client.all == {}
