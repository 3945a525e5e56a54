"""The HTTP client against servers that behave: large bodies, many requests at once, IPv6, TLS; on both loops."""

from __future__ import annotations

import asyncio
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
async def test_tls(tmp_path: Path) -> None:
    server, trusting = certificates(tmp_path)
    async with serving(replying(OK, OK, b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1_000_000), ssl=server) as url:
        async with HttpClient(url, ssl_context=trusting) as client:
            assert [(await get(client)).body for _ in range(2)] == [b"ok", b"ok"]
            assert len((await get(client)).body) == 1_000_000
        async with HttpClient(url) as client:
            with pytest.raises(ConnectionLost, match="certificate verify failed"):
                await get(client)
