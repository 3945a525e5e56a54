"""The HTTP client against servers that behave: large bodies, many requests at once, IPv6, TLS; on both loops."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest
from aiohttp import web

from nightshift.driver.http import ConnectionLost, HttpClient
from tests.integration.driver.peers import LONG_S, OK, certificates, get, on_both_loops, replying, serving, well_behaved

pytestmark = [pytest.mark.integration, pytest.mark.gate]


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
async def test_whatever_is_cancelled_or_too_late_nobody_gets_anothers_reply() -> None:
    """Requests end at any moment of their exchange, on connections that others use next."""
    chance, ends = random.Random(5), Counter[str]()

    async def echo(request: web.Request) -> web.StreamResponse:
        data = await request.read()
        reply = web.StreamResponse(headers={"Content-Length": str(len(data))})
        for part in (data[: len(data) // 2], data[len(data) // 2 :]):
            await asyncio.sleep(chance.choice((0, 0, 0.001, 0.004)))
            if not reply.prepared:
                await reply.prepare(request)
            await reply.write(part)
        return reply

    async with well_behaved(echo) as url, HttpClient(url) as client:

        async def ask(body: bytes) -> None:
            reply = await client.request("POST", "/", body, timeout_s=chance.choice((0.002, LONG_S)))
            assert reply.body == body

        async def worker(number: int) -> None:
            for turn in range(60):
                task = asyncio.ensure_future(ask(b"%d-%d;" % (number, turn) * 5))
                if chance.random() < 0.3:
                    await asyncio.sleep(chance.choice((0, 0.001, 0.003)))
                    task.cancel()
                try:
                    await task
                    ends["answered"] += 1
                except TimeoutError:
                    ends["late"] += 1
                except asyncio.CancelledError:
                    ends["cancelled"] += 1

        await asyncio.gather(*(worker(number) for number in range(20)))

    assert set(ends) == {"answered", "late", "cancelled"}


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
