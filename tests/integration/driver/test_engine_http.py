"""What the driver makes of an engine's replies, and of an engine that gives none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from nightshift.driver.engine import EngineClient, Failed, Gone, Load, Replied, SendResult, WrongEngine
from nightshift.driver.http import ConnectionLost
from nightshift.tasks.base import Reason
from tests.integration.driver.peers import LONG_S, Peer, on_both_loops, replying, serving, well_behaved

pytestmark = [pytest.mark.integration, pytest.mark.gate]


async def answer(reply: bytes, headers: dict[str, str] | None = None, request_timeout_s: float = LONG_S) -> SendResult:
    async with (
        serving(replying(reply)) as url,
        EngineClient(url, "m", headers=headers, request_timeout_s=request_timeout_s) as engine,
    ):
        return await engine.send("/v1/x", b"{}")


@on_both_loops
async def test_outcomes_of_an_engine() -> None:
    assert await answer(b'HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n{"a":1}') == Replied({"a": 1})
    assert isinstance(await answer(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n{"), Gone)
    assert await answer(b"HTTP/1.1 502 Bad Gateway\r\n\r\n") == Gone("", 502)


@on_both_loops
async def test_an_engine_that_hangs_or_has_gone() -> None:
    async def script(peer: Peer) -> None:
        await peer.closed()

    async with serving(script) as url, EngineClient(url, "m", request_timeout_s=0.1) as hasty:
        assert await hasty.send("/x", b"{}") == Failed("no reply within 0.1 s", Reason.TIMEOUT)
    engine = EngineClient(url, "m", request_timeout_s=LONG_S)
    refused = await engine.send("/x", b"{}")
    assert isinstance(refused, Gone)
    assert not refused.reached
    assert not await engine.healthy()
    assert not await engine.wait_healthy(0)
    assert await engine.load() is None
    with pytest.raises(ConnectionLost):
        await engine.version()
    await engine._client.close()


@on_both_loops
async def test_an_engine_that_goes_with_a_request_on_a_reused_connection_has_had_it() -> None:
    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(0, reader, writer)
        await peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await peer.request()
        server.close()
        writer.close()

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with EngineClient(f"http://{host}:{port}", "m", request_timeout_s=LONG_S) as engine:
        assert await engine.send("/x", b"{}") == Replied({})
        lost = await engine.send("/x", b"{}")
    assert isinstance(lost, Gone)
    assert "no connection" in lost.message
    assert lost.reached


@on_both_loops
async def test_a_key_that_the_server_repeats_is_not_kept() -> None:
    text = b'{"error": "no such key: hunter22-hunter22, in Bearer hunter22-hunter22"}'
    reply = b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s"
    headers = {"Authorization": "Bearer hunter22-hunter22"}

    assert await answer(reply % (500, len(text), text), headers) == Failed("no such key: ***, in ***", status=500)
    refused = Failed("no such key: ***, in ***", Reason.REJECTED, 401, lasting=True)
    assert await answer(reply % (401, len(text), text), headers) == refused
    assert await answer(reply % (200, len(text), text), headers) == Failed("no such key: ***, in ***")


@on_both_loops
async def test_what_an_engine_says_about_itself() -> None:
    pages: dict[str, Any] = {"/v1/models": {"data": [{"id": "m"}]}, "/version": {"version": "1.2"}, "/health": {}}

    async def handler(request: web.Request) -> web.Response:
        if request.path == "/metrics":
            return web.Response(text="vllm:num_requests_running 2\n")
        return web.json_response(pages[request.path]) if request.path in pages else web.Response(status=404)

    async with well_behaved(handler) as url, EngineClient(url, "m") as engine, EngineClient(url, "other") as other:
        assert await engine.wait_healthy(LONG_S)
        assert await engine.load() == Load(2.0, 0.0, 0.0, 0.0)
        assert await engine.version() == "1.2"
        with pytest.raises(WrongEngine, match="the engine serves \\['m'\\], but the job asks for 'other'"):
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
