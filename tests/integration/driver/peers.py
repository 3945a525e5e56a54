"""Servers for the tests of the HTTP client: one that follows a script byte by byte, one that behaves, and TLS."""

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

from nightshift.driver.http import HttpClient, Response

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
    # OpenSSL asks a clock that is a few milliseconds behind this one: just after a full second, it is still the second before.
    begin = now - datetime.timedelta(hours=1)
    certificate = (
        x509.CertificateBuilder(
            name, name, key.public_key(), x509.random_serial_number(), begin, now + datetime.timedelta(days=1)
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


async def get(client: HttpClient, timeout_s: float = LONG_S) -> Response:
    return await client.request("GET", "/x", timeout_s=timeout_s)
