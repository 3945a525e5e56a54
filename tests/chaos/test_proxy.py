"""The proxy's faults, seen by a client. (By POST: aiohttp's client sends a PUT again by itself.)"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from tests.chaos.proxy import FaultProxy, Storm

pytestmark = [pytest.mark.integration, pytest.mark.gate]


class Upstream:
    """Keeps what was written to it."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    async def post(self, request: web.Request) -> web.Response:
        self.written.append(await request.read())
        return web.Response(status=201, headers={"ETag": '"1"'}, body=b"made " + request.raw_path.encode())

    async def head(self, request: web.Request) -> web.Response:
        return web.Response(headers={"Content-Length": "12345"})


@contextlib.asynccontextmanager
async def proxied() -> AsyncIterator[tuple[Upstream, FaultProxy, str, aiohttp.ClientSession]]:
    upstream = Upstream()
    app = web.Application()
    app.router.add_post("/{path:.*}", upstream.post)
    app.router.add_route("HEAD", "/{path:.*}", upstream.head)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with (
        FaultProxy(f"http://127.0.0.1:{runner.addresses[0][1]}") as proxy,
        proxy.door("client") as url,
        aiohttp.ClientSession() as session,
    ):
        yield upstream, proxy, url, session
    await runner.cleanup()


async def test_requests_and_replies_pass_whole() -> None:
    async with proxied() as (upstream, _, url, session):
        async with session.post(f"{url}/a%2Fb?c=d%20e", data=b"body") as reply:
            assert (reply.status, reply.headers["ETag"]) == (201, '"1"')
            assert await reply.read() == b"made /a%2Fb?c=d%20e"
        async with session.head(f"{url}/a") as reply:
            assert reply.headers["Content-Length"] == "12345"
        assert upstream.written == [b"body"]


async def test_a_swallowed_reply_is_of_a_write_that_took_effect() -> None:
    async with proxied() as (upstream, proxy, url, session):
        proxy.swallow(1)
        with pytest.raises((aiohttp.ClientConnectionError, ConnectionResetError)):
            await session.post(f"{url}/a", data=b"first")
        async with session.post(f"{url}/a", data=b"second") as reply:
            assert reply.status == 201
        assert (upstream.written, proxy.swallowed) == ([b"first", b"second"], 1)


@pytest.mark.parametrize("retry_after", ["", "2"])
async def test_a_storm_answers_503_and_nothing_takes_effect(retry_after: str) -> None:
    async with proxied() as (upstream, proxy, url, session):
        with proxy.storm(Storm(retry_after=retry_after)):
            async with session.post(f"{url}/a", data=b"body") as reply:
                assert (reply.status, reply.headers.get("Retry-After", "")) == (503, retry_after)
        assert upstream.written == []
        async with session.post(f"{url}/a", data=b"body") as reply:
            assert reply.status == 201


async def test_a_storm_may_leave_questions_alone() -> None:
    """An engine that fails every request while its health check is well."""
    async with proxied() as (upstream, proxy, url, session):
        with proxy.storm(Storm(500, questions=False)):
            async with session.post(f"{url}/a", data=b"body") as reply:
                assert reply.status == 500
            async with session.get(f"{url}/a") as reply:
                assert reply.status != 500
        assert upstream.written == []


async def test_a_stall_holds_and_a_reset_breaks_what_is_held() -> None:
    async with proxied() as (upstream, proxy, url, session):
        with proxy.stall():
            held = asyncio.create_task(session.post(f"{url}/a", data=b"held"))
            while not proxy.reset():  # noqa: ASYNC110 - it is the reset that is waited for
                await asyncio.sleep(0.01)
            with pytest.raises((aiohttp.ClientConnectionError, ConnectionResetError)):
                await held
            waiting = asyncio.create_task(session.post(f"{url}/a", data=b"waiting"))
            await asyncio.sleep(0.05)
            assert upstream.written == []
        async with await waiting as reply:
            assert reply.status == 201
        assert upstream.written == [b"waiting"]
