"""The HTTP client against servers that misbehave, one that does not (aiohttp), and TLS, on asyncio's loop and on uvloop's."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import functools
import gc
import inspect
import ipaddress
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from nightshift.driver.engine import Engine, Failed, Gone, Load, Outcome, Replied, WrongEngine
from nightshift.driver.http import ConnectionLost, HttpClient, ReplyTooLarge, Response

pytestmark = pytest.mark.integration

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
LONG_S = 60.0


def on_both_loops(test: Callable[..., Awaitable[None]]) -> Any:
    """Runs a test on both event loops; fails it also for what asyncio would only log, such as an error that nobody saw."""

    def run(loop_factory: Callable[[], asyncio.AbstractEventLoop], **arguments: Any) -> None:
        complaints: list[dict[str, Any]] = []

        async def watched() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
            await test(**arguments)
            gc.collect()

        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(watched())
        assert complaints == []

    functools.update_wrapper(run, test)
    loop = inspect.Parameter("loop_factory", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = inspect.Signature([*inspect.signature(test).parameters.values(), loop])  # type: ignore[attr-defined]
    return pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])(
        run
    )


class Peer:
    """The server's side of one connection; number: how many were accepted before it."""

    def __init__(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.number = number
        self.reader = reader
        self.writer = writer

    async def request(self) -> tuple[bytes, bytes]:
        """Head and body of the next request; raises asyncio.IncompleteReadError when the client closes first."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        return head, await self.reader.readexactly(length)

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def closed(self) -> None:
        """Returns when the client has closed, whatever it sends until then."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(1 << 16):
                pass

    def reset(self) -> None:
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


@contextlib.asynccontextmanager
async def serving(script: Callable[[Peer], Awaitable[None]], **options: Any) -> AsyncIterator[str]:
    """A TCP server that follows `script` on each connection, then closes it; its URL."""
    tasks: list[asyncio.Task[Any]] = []

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                await script(Peer(len(tasks) - 1, reader, writer))
        except asyncio.CancelledError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(accepted, options.pop("host", "127.0.0.1"), 0, **options)
    host, port = server.sockets[0].getsockname()[:2]
    scheme = "https" if "ssl" in options else "http"
    try:
        yield f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)


def replying(*replies: bytes) -> Callable[[Peer], Awaitable[None]]:
    """Answers the requests of each connection with `replies`, then closes it."""

    async def script(peer: Peer) -> None:
        for reply in replies:
            await peer.request()
            peer.send(reply)

    return script


async def get(client: HttpClient, timeout_s: float = LONG_S) -> Response:
    return await client.request("GET", "/x", timeout_s=timeout_s)


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
        with pytest.raises(ValueError, match="the client's own"):
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
    async def script(peer: Peer) -> None:
        await peer.request()
        peer.send(OK)
        await peer.writer.drain()
        await asyncio.sleep(0.05)
        peer.send(unasked)
        if unasked:
            await peer.closed()

    async with serving(script) as url, HttpClient(url) as client:
        await asyncio.gather(*(get(client) for _ in range(3)))
        assert len(client.idle) == 3
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
async def test_a_slow_reply_times_out_and_its_connection_is_not_used_again() -> None:
    closed = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        if peer.number == 0:
            peer.send(OK[:-1])
            await peer.closed()
            closed.set()
        peer.send(OK)

    async with serving(script) as url, HttpClient(url) as client:
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


@on_both_loops
async def test_large_bodies_both_ways() -> None:
    body = bytes(range(256)) * 40_000

    async def echo(request: web.Request) -> web.StreamResponse:
        data = await request.read()
        if request.path == "/plain":
            return web.Response(body=data)
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        for at in range(0, len(data), 100_001):
            await response.write(data[at : at + 100_001])
        return response

    async with well_behaved(echo) as url, HttpClient(url) as client:
        for path in ("/plain", "/chunked"):
            replies = await asyncio.gather(*(client.request("POST", path, body, timeout_s=LONG_S) for _ in range(3)))
            assert [reply.body == body for reply in replies] == [True] * 3
        assert len(client.all) == 3


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


@on_both_loops
async def test_ipv6() -> None:
    async with serving(replying(OK), host="::1") as url, HttpClient(url) as client:
        assert (await get(client)).body == b"ok"


@on_both_loops
async def test_many_requests_at_once_each_get_their_own_reply() -> None:
    async def echo(request: web.Request) -> web.Response:
        data = await request.read()
        await asyncio.sleep(len(data) % 7 / 1000)
        return web.Response(body=data)

    async with well_behaved(echo) as url, HttpClient(url) as client:

        async def worker(number: int) -> None:
            for turn in range(20):
                body = b"%d-%d" % (number, turn) * (turn + 1)
                assert (await client.request("POST", "/", body, timeout_s=LONG_S)).body == body

        await asyncio.gather(*(worker(number) for number in range(50)))
        assert len(client.all) == len(client.idle) == 50


@on_both_loops
async def test_tls(tmp_path: Path) -> None:
    server, trusting = certificates(tmp_path)
    async with serving(replying(OK, OK, b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1_000_000), ssl=server) as url:
        async with HttpClient(url, ssl_context=trusting) as client:
            assert [(await get(client)).body for _ in range(2)] == [b"ok", b"ok"]
            assert len((await get(client)).body) == 1_000_000
        async with HttpClient(url) as client:
            with pytest.raises(ConnectionLost, match="certificate verify failed"):
                await get(client)


@contextlib.asynccontextmanager
async def well_behaved(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    app = web.Application(client_max_size=1 << 28)
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def certificates(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context with a certificate signed by itself for 127.0.0.1, and a client's that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(
            name, name, key.public_key(), x509.random_serial_number(), now, now + datetime.timedelta(days=1)
        )
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    both = folder / "server.pem"
    both.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + certificate
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(both)
    return server, ssl.create_default_context(cadata=certificate.decode())


async def answer(reply: bytes, headers: dict[str, str] | None = None, request_timeout_s: float = LONG_S) -> Outcome:
    async with (
        serving(replying(reply)) as url,
        Engine(url, "m", headers=headers, request_timeout_s=request_timeout_s) as engine,
    ):
        return await engine.send("/v1/x", b"{}")


@on_both_loops
async def test_outcomes_of_an_engine() -> None:
    assert await answer(b'HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n{"a":1}') == Replied({"a": 1})
    assert isinstance(await answer(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n{"), Gone)
    assert await answer(b"HTTP/1.1 502 Bad Gateway\r\n\r\n") == Gone("502: ")


@on_both_loops
async def test_an_engine_that_hangs_or_has_gone() -> None:
    async def script(peer: Peer) -> None:
        await peer.closed()

    async with serving(script) as url:
        engine = Engine(url, "m", request_timeout_s=0.1)
        assert await engine.send("/x", b"{}") == Failed("no reply within 0.1 s", timeout=True)
    assert isinstance(await engine.send("/x", b"{}"), Gone)
    assert not await engine.healthy()
    assert not await engine.wait_healthy(0)
    assert await engine.load() is None
    with pytest.raises(ConnectionLost):
        await engine.version()
    await engine._client.close()


@on_both_loops
async def test_a_key_that_the_server_repeats_is_not_kept() -> None:
    text = b'{"error": "no such key: hunter22-hunter22, in Bearer hunter22-hunter22"}'
    reply = b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s"
    headers = {"Authorization": "Bearer hunter22-hunter22"}

    assert await answer(reply % (500, len(text), text), headers) == Failed("500: no such key: ***, in ***")
    with pytest.raises(WrongEngine, match=r"401: no such key: \*\*\*, in \*\*\*"):
        await answer(reply % (401, len(text), text), headers)


@on_both_loops
async def test_what_an_engine_says_about_itself() -> None:
    pages: dict[str, Any] = {"/v1/models": {"data": [{"id": "m"}]}, "/version": {"version": "1.2"}, "/health": {}}

    async def handler(request: web.Request) -> web.Response:
        if request.path == "/metrics":
            return web.Response(text="vllm:num_requests_running 2\n")
        return web.json_response(pages[request.path]) if request.path in pages else web.Response(status=404)

    async with well_behaved(handler) as url, Engine(url, "m") as engine, Engine(url, "other") as other:
        assert await engine.wait_healthy(LONG_S)
        assert await engine.load() == Load(2.0, 0.0, 0.0, 0.0)
        assert await engine.version() == "1.2"
        with pytest.raises(WrongEngine, match="the engine serves \\['m'\\], the job asks for 'other'"):
            await other.version()
        del pages["/version"]
        assert await engine.version() == "unknown"
        odd_answers: list[Any] = [{"data": None}, [], {}, {"data": [1]}]
        for odd in odd_answers:
            pages["/v1/models"] = odd
            with pytest.raises(WrongEngine):
                await engine.version()
        del pages["/v1/models"]
        with pytest.raises(WrongEngine, match="404"):
            await engine.version()
