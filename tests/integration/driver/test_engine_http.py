"""What the driver makes of an engine's replies, and of an engine that gives none."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from nightshift.driver.bootstrap import version_of
from nightshift.driver.engine import EngineClient, Failed, Gone, Load, Replied, SendResult, Stranger
from nightshift.driver.http import ConnectionLost
from nightshift.driver.served import Serving, WrongEngine
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
        await version_of([engine], "m")
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
        assert await version_of([engine], "m") == "1.2"
        with pytest.raises(WrongEngine, match="the engine serves \\['m'\\], but the job asks for 'other'"):
            await version_of([other], "other")
        del pages["/version"]
        assert await version_of([engine], "m") == "unknown"
        odd_answers: list[Any] = [{"data": None}, [], {}, {"data": [1]}]
        for odd in odd_answers:
            pages["/v1/models"] = odd
            with pytest.raises(WrongEngine):
                await version_of([engine], "m")
        del pages["/v1/models"]
        with pytest.raises(WrongEngine, match="404"):
            await version_of([engine], "m")


class Changing:
    """A server with kept-alive connections, which may become another one on those that open later, or on all."""

    def __init__(self, *, closes: bool = False) -> None:
        self.name, self.root, self.version = "m", "org/m", "1.0"
        self.closes = closes
        self.asked: list[tuple[int, str]] = []

    async def __call__(self, peer: Peer) -> None:
        name, root, version = self.name, self.root, self.version
        while True:
            head, _ = await peer.request()
            path = head.split()[1].decode()
            self.asked.append((peer.number, path))
            models = {"data": [{"id": name, "root": root, "max_model_len": 64}]}
            body = json.dumps({"/v1/models": models, "/version": {"version": version}}.get(path, {"answer": root})).encode()
            peer.send(b"HTTP/1.1 200 OK\r\n%sContent-Length: %d\r\n\r\n" % (b"Connection: close\r\n" * self.closes, len(body)))
            peer.send(body)
            if self.closes:
                return

    @property
    def rows(self) -> int:
        return sum(path == "/x" for _, path in self.asked)


@on_both_loops
async def test_a_connection_is_asked_once_before_its_first_row() -> None:
    server = Changing()
    async with serving(server) as url, EngineClient(url, "m", request_timeout_s=LONG_S) as engine:
        await version_of([engine], "m")
        for _ in range(3):
            assert await engine.send("/x", b"{}") == Replied({"answer": "org/m"})
        # Two at once: one needs a connection of its own.
        await asyncio.gather(engine.send("/x", b"{}"), engine.send("/x", b"{}"))

    first = [path for number, path in server.asked if number == 0]
    assert first[:5] == ["/v1/models", "/version", "/v1/models", "/version", "/x"]
    assert first[5:] == ["/x"] * 3
    assert [path for number, path in server.asked if number == 1] == ["/v1/models", "/version", "/x"]


@pytest.mark.parametrize("what", ["root", "version"])
@on_both_loops
async def test_another_engine_behind_the_address_gets_no_row(what: str) -> None:
    server = Changing()
    async with serving(server) as url, EngineClient(url, "m", request_timeout_s=LONG_S, connection_life_s=0.0) as engine:
        await version_of([engine], "m")
        assert await engine.send("/x", b"{}") == Replied({"answer": "org/m"})
        setattr(server, what, "other")
        with pytest.raises(WrongEngine, match=r"version 1.0, max_model_len 64. Found: 'm', from .*other"):
            await engine.send("/x", b"{}")
    assert server.rows == 1


@pytest.mark.parametrize("path", ["/v1/models", "/version"])
@pytest.mark.parametrize(
    "status", [b"503 Busy", b"502 Bad Gateway", b"500 Internal Server Error", b"429 Too Many", b"504 Late"]
)
@on_both_loops
async def test_a_page_that_fails_for_a_moment_is_not_another_engine(path: str, status: bytes) -> None:
    """A storm, or an engine that ends behind a proxy, may begin between the two questions."""
    server, failing = Changing(closes=True), [True]

    async def at_times(peer: Peer) -> None:
        if not failing:
            return await server(peer)
        while True:
            head, _ = await peer.request()
            asked = head.split()[1].decode()
            body = json.dumps({"data": [{"id": "m", "root": "org/m", "max_model_len": 64}]}).encode()
            peer.send(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n" % (status if asked == path else b"200 OK", len(body)))
            peer.send(body)

    async with serving(server) as url, EngineClient(url, "m", request_timeout_s=LONG_S) as engine:
        await version_of([engine], "m")
        serving_still = engine._serving
    assert serving_still is not None
    async with serving(at_times) as url, EngineClient(url, "m", request_timeout_s=LONG_S) as engine:
        engine.keep(serving_still)
        assert not isinstance(await engine.send("/x", b"{}"), Replied)
        failing.clear()
        assert await engine.send("/x", b"{}") == Replied({"answer": "org/m"})


@on_both_loops
async def test_a_streams_engine_may_change_all_but_its_models_name() -> None:
    server = Changing()
    async with serving(server) as url, EngineClient(url, "m", request_timeout_s=LONG_S, connection_life_s=0.0) as engine:
        await version_of([engine], "m", name_alone=True)
        server.version, server.root = "2.0", "org/canary"
        assert await engine.send("/x", b"{}") == Replied({"answer": "org/canary"})
        server.name = "other"
        with pytest.raises(WrongEngine, match=r"Found: the engine serves \['other'\], but the job asks for 'm'"):
            await engine.send("/x", b"{}")
    assert server.rows == 1


@pytest.mark.parametrize("closes", [False, True])
@on_both_loops
async def test_one_of_two_that_changes_is_left_out_until_it_is_as_before(closes: bool) -> None:
    server, other = Changing(closes=closes), Changing()
    async with (
        serving(server) as url,
        serving(other) as second,
        EngineClient(url, "m", request_timeout_s=LONG_S, connection_life_s=0.0) as engine,
        EngineClient(second, "m", request_timeout_s=LONG_S) as beside,
    ):
        await version_of([engine, beside], "m")
        server.root = "org/other"
        found = await engine.send("/x", b"{}")
        assert isinstance(found, Stranger)
        assert not found.reached
        assert url in found.message
        assert not await engine.healthy()
        assert await beside.send("/x", b"{}") == Replied({"answer": "org/m"})
        assert server.rows == 0

        server.root = "org/m"
        assert await engine.healthy()
        assert await engine.send("/x", b"{}") == Replied({"answer": "org/m"})

        server.root = other.root = "org/other"
        beside._client.check_again()
        assert isinstance(await engine.send("/x", b"{}"), Stranger)
        for each in other, server:
            each.root = "org/m"
        assert await engine.healthy()


@on_both_loops
async def test_the_last_of_two_that_changes_ends_the_work() -> None:
    first, second = Changing(), Changing()
    async with (
        serving(first) as url,
        serving(second) as other,
        EngineClient(url, "m", request_timeout_s=LONG_S, connection_life_s=0.0) as engine,
        EngineClient(other, "m", request_timeout_s=LONG_S, connection_life_s=0.0) as beside,
    ):
        await version_of([engine, beside], "m")
        first.root = second.root = "org/other"
        assert isinstance(await engine.send("/x", b"{}"), Stranger)
        with pytest.raises(WrongEngine, match="org/other"):
            await beside.send("/x", b"{}")
    assert first.rows == second.rows == 0


@on_both_loops
async def test_after_a_gap_open_connections_are_asked_again() -> None:
    """A proxy keeps them while the engine behind it is started again."""
    root = "org/m"
    status = 200
    rows = 0

    async def handler(request: web.Request) -> web.Response:
        nonlocal rows
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "m", "root": root}]})
        rows += request.path == "/x" and status == 200
        return web.json_response({"version": "1"}, status=status)

    async with well_behaved(handler) as url, EngineClient(url, "m", request_timeout_s=LONG_S) as engine:
        await version_of([engine], "m")
        assert isinstance(await engine.send("/x", b"{}"), Replied)
        status = 502
        assert isinstance(await engine.send("/x", b"{}"), Gone)
        root, status = "org/other", 200
        with pytest.raises(WrongEngine, match="org/other"):
            await engine.send("/x", b"{}")
    assert rows == 1


@on_both_loops
async def test_an_engine_that_does_not_say_what_it_serves_gets_no_row_and_is_not_called_another() -> None:
    """A proxy says 404 while what is behind it is replaced."""
    status = 200
    rows = 0

    async def handler(request: web.Request) -> web.Response:
        nonlocal rows
        rows += request.path == "/x"
        return web.json_response({"data": [{"id": "m"}]}, status=status if request.path == "/v1/models" else 200)

    async with well_behaved(handler) as url, EngineClient(url, "m", request_timeout_s=LONG_S) as engine:
        await version_of([engine], "m")
        for status in (404, 500, 503):
            found = await engine.send("/x", b"{}")
            assert type(found) is Gone, found
            assert not found.reached
            assert str(status) in found.message
        status = 200
        assert isinstance(await engine.send("/x", b"{}"), Replied)
    assert rows == 1


@on_both_loops
async def test_a_reply_that_names_another_model_is_no_answer() -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}, {"id": "n"}], "model": request.query.get("by", "m")})

    async with well_behaved(handler) as url, EngineClient(url, "m", request_timeout_s=LONG_S) as engine:
        await version_of([engine], "m")
        assert isinstance(await engine.send("/x", b"{}"), Replied)
        with pytest.raises(WrongEngine, match="Found: an answer by 'n'"):
            await engine.send("/x?by=n", b"{}")


@on_both_loops
async def test_where_requests_name_their_model_a_new_name_in_a_reply_has_the_engine_asked_again() -> None:
    """A gateway that changes what is behind it keeps its connections."""
    served, asked = "m", 0

    async def handler(request: web.Request) -> web.Response:
        nonlocal asked
        asked += request.path == "/v1/models"
        return web.json_response({"data": [{"id": served}], "model": request.query.get("by", served)})

    async with well_behaved(handler) as url, EngineClient(url, "", request_timeout_s=LONG_S) as engine:
        engine.keep(Serving(lambda models, _: models["data"][0]["id"], first="m"))
        for name in ("m", "m-2026-11-29", "adapter", "m"):
            assert isinstance(await engine.send(f"/x?by={name}", b"{}"), Replied)
        found, served = asked, "n"
        assert isinstance(await engine.send("/x?by=adapter", b"{}"), Replied)
        assert asked == found
        with pytest.raises(WrongEngine, match=r"Expected: m. Found: n"):
            await engine.send("/x", b"{}")


@on_both_loops
async def test_a_connection_that_was_closed_while_it_was_idle_is_replaced_before_it_is_asked() -> None:
    """It was opened for a GET, so it was never asked; the server closes what is idle."""
    server = Changing()

    async def script(peer: Peer) -> None:
        if peer.number:
            await server(peer)
        await peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    async with serving(script) as url, EngineClient(url, "m", request_timeout_s=LONG_S) as engine:
        engine.keep(Serving(lambda models, _: models["data"][0]["root"], first="org/m"))
        assert await engine.healthy()
        assert await engine.send("/x", b"{}") == Replied({"answer": "org/m"})
