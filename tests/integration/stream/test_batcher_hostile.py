"""Callers of `nightshift batcher` that try to be taken for others, or to keep others out. Most write their bytes themselves."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.integration.fronts import Front, envoy, haproxy, nginx
from tests.integration.stream.servers import BatcherProcess, Callers, Upstream, answer_to, seen

pytestmark = pytest.mark.integration

LONG = ("--max-latency", 60)
JSON = {"Content-Type": "application/json"}
BODY = b'{"model": "m", "input": "raw"}'
CLOSE = b"Connection: close\r\n"
POST = b"POST /v1/embeddings HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n"


def whole(*headers: bytes, body: bytes = BODY) -> bytes:
    return POST + b"".join(headers) + b"Content-Length: %d\r\n\r\n" % len(body) + body


NAMING = (
    "X-Forwarded-User",
    "X-Forwarded-Email",
    "X-Forwarded-Groups",
    "X-Forwarded-Access-Token",
    "X-Forwarded-Client-Cert",
    "X-Forwarded-Host",
    "X-Auth-Request-User",
    "X-Envoy-Downstream-Service-Cluster",
    "Baggage",
    "Origin",
    "Authorization",
    "Cookie",
    "X-Tenant",
)


@asynccontextmanager
async def connected(batcher: BatcherProcess) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", batcher.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def sent(batcher: BatcherProcess, *pieces: bytes) -> bytes:
    """All that comes back until the connection ends."""
    async with connected(batcher) as (reader, writer):
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            return await asyncio.wait_for(reader.read(), 60)
        except ConnectionError:
            return b""


def texts_of(upstream: Upstream) -> list[Any]:
    return [item for each in upstream.seen for item in each.items]


@pytest.mark.gate
class TestWhoIsWho:
    async def test_no_two_who_are_named_differently_share_a_request(self) -> None:
        """Nor does one who is named share with one who is not; and each name gets to the server."""
        callers_of = [(name, who) for name in NAMING for who in ("alice", "bob", None)]
        with Upstream() as upstream, BatcherProcess(upstream.url, "--max-latency", 0.3, "--max-batch-size", 64) as batcher:
            async with Callers(batcher) as callers:
                asked = {f"{name}/{who}/{n}": {name: who} if who else {} for name, who in callers_of for n in range(2)}
                replies = await asyncio.gather(
                    *(callers.ask("/v1/embeddings", {"model": "m", "input": text}, **given) for text, given in asked.items())
                )

        assert [body["data"][0]["embedding"] for _, body in replies] == [[answer_to(text)] for text in asked]
        for each in upstream.seen:
            (given,) = {tuple(asked[item].items()) for item in each.items}
            assert {name.lower(): who for name, who in given}.items() <= each.headers.items()
            assert not any(name.lower() in each.headers for name in NAMING if name not in dict(given))
        assert len(upstream.seen) < len(asked)

    @pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/chat/completions"])
    async def test_nobody_hides_a_name_behind_the_connection_header(self, path: str) -> None:
        with Upstream() as upstream, BatcherProcess(upstream.url) as batcher:
            async with Callers(batcher) as callers:
                given = {"Connection": "keep-alive, X-Forwarded-User", "X_Forwarded_User": "alice"}
                status, body = await callers.ask(path, {"model": "m", "input": "a"}, **given)

        assert (status, body["error"]["code"], upstream.seen) == (400, 400, [])
        assert "the header Connection must not name 'x-forwarded-user'" in body["error"]["message"]

    async def test_what_the_connection_header_drops_is_not_forgotten_beside_others(self) -> None:
        with Upstream() as upstream, BatcherProcess(upstream.url, "--max-batch-size", 2, "--max-latency", 1) as batcher:
            async with Callers(batcher) as callers:
                given = {"Connection": "keep-alive, X-Tenant", "X_Tenant": "t"}
                await asyncio.gather(callers.embed("hidden", **given), callers.embed("plain"))

        assert sorted(map(len, (each.items for each in upstream.seen))) == [1, 1]

    async def test_trailers_are_no_headers(self) -> None:
        """Neither names nor lengths: they come when the headers have been looked at."""
        trailers = b"Authorization: Bearer stolen\r\nX-Tenant: other\r\nConnection: x-own\r\nHost: evil\r\n"
        body = b"%x\r\n%b\r\n0\r\n" % (len(BODY), BODY)
        request = CHUNKED + b"X-Own: 1\r\nConnection: close\r\n\r\n" + body + trailers + b"\r\n"
        chat = request.replace(b"/v1/embeddings", b"/echo/chat")
        with Upstream() as upstream, BatcherProcess(upstream.url, "--max-latency", 0) as batcher:
            replies = [await sent(batcher, each) for each in (request, chat)]

        assert all(reply.startswith(b"HTTP/1.1 200 ") for reply in replies)
        (only,) = upstream.seen
        assert only.headers["x-own"] == "1"
        assert not {"authorization", "x-tenant"} & only.headers.keys()

    async def test_credentials_of_a_connection_are_not_left_on_one_that_others_use(self) -> None:
        ports: dict[str, int] = {}

        async def noting(request: web.Request, items: list[Any]) -> None:
            assert request.transport is not None
            ports[items[0]] = request.transport.get_extra_info("peername")[1]

        with Upstream(noting) as upstream, BatcherProcess(upstream.url, "--max-latency", 0) as batcher:
            async with Callers(batcher) as callers:
                await callers.embed("before")
                await callers.embed("signed in", Authorization="NTLM TlRMTVNTUAAB")
                await callers.embed("after")

        assert ports["before"] == ports["after"] != ports["signed in"]


class TestAnswersDoNotDependOnOthers:
    async def test_a_model_that_answers_with_no_list(self) -> None:
        """As KServe's V1 allows it: {"predictions": {...}}."""

        async def scores(_: web.Request, items: list[Any]) -> web.StreamResponse:
            return web.json_response({"predictions": {"scores": items}})

        with Upstream(scores) as upstream, BatcherProcess(upstream.url, "--max-batch-size", 3, *LONG) as batcher:
            async with Callers(batcher) as callers:
                for _ in range(2):
                    asking = (callers.ask("/v1/models/m:predict", {"instances": [n]}) for n in range(3))
                    replies = await asyncio.gather(*asking)
                    assert replies == [(200, {"predictions": {"scores": [n]}}) for n in range(3)]
                large = await callers.ask("/v1/models/m:predict", {"instances": [1, 2, 3, 4]})

        assert [len(each.items) for each in upstream.seen] == [3, 1, 1, 1, 1, 1, 1, 4], "it is remembered"
        assert large == (200, {"predictions": {"scores": [1, 2, 3, 4]}})

    async def test_a_large_request_to_such_a_model(self) -> None:
        async def scores(_: web.Request, items: list[Any]) -> web.StreamResponse:
            return web.json_response({"predictions": {"scores": items}})

        with Upstream(scores) as upstream, BatcherProcess(upstream.url, "--max-batch-size", 2, *LONG) as batcher:
            async with Callers(batcher) as callers:
                large = await callers.ask("/v1/models/m:predict", {"instances": [1, 2, 3, 4]})

        assert large == (200, {"predictions": {"scores": [1, 2, 3, 4]}})
        assert [len(each.items) for each in upstream.seen] == [2, 2, 4]

    @pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/models/m:predict", "/v2/models/m/infer"])
    async def test_no_request_to_the_server_is_above_the_limit(self, path: str) -> None:
        with Upstream() as upstream, BatcherProcess(upstream.url, "--max-batch-size", 4, "--max-latency", 0.1) as batcher:
            async with Callers(batcher) as callers:
                numbers = list(range(33))
                bodies: dict[str, dict[str, Any]] = {
                    "/v1/embeddings": {"model": "m", "input": [str(n) for n in numbers]},
                    "/v1/models/m:predict": {"instances": numbers},
                    "/v2/models/m/infer": {
                        "id": "mine",
                        "inputs": [{"name": "x", "datatype": "INT64", "shape": [33, 1], "data": numbers}],
                    },
                }
                status, body = await callers.ask(path, bodies[path])

        match path:
            case "/v1/embeddings":
                assert [each["embedding"] for each in body["data"]] == [[answer_to(n)] for n in numbers]
                assert [each["index"] for each in body["data"]] == numbers
                assert body["usage"] == {"prompt_tokens": 330, "total_tokens": 330}
            case "/v1/models/m:predict":
                assert body == {"predictions": [answer_to(n) for n in numbers]}
            case _:
                assert (body["id"], body["outputs"][0]["shape"]) == ("mine", [33, 1])
                assert body["outputs"][0]["data"] == [2 * n for n in numbers]
        assert status == 200
        assert max(len(each.items) for each in upstream.seen) == 4
        assert sorted(map(int, texts_of(upstream))) == numbers

    async def test_one_bad_item_of_a_large_request_fails_it_in_the_servers_words(self) -> None:
        async def refusing(_: web.Request, items: list[Any]) -> web.StreamResponse | None:
            return web.json_response({"error": {"message": "too long"}}, status=400) if "7" in items else None

        with Upstream(refusing) as upstream, BatcherProcess(upstream.url, "--max-batch-size", 2, *LONG) as batcher:
            async with Callers(batcher) as callers:
                found = await callers.ask("/v1/embeddings", {"model": "m", "input": [str(n) for n in range(20)]})
                await callers.until("upstream_in_flight", 0)

        assert found == (400, {"error": {"message": "too long"}})
        assert "18" not in texts_of(upstream), "the rest is not computed"


class TestReadiness:
    async def test_it_tells_whether_work_can_be_done(self) -> None:
        with Upstream() as upstream, BatcherProcess(upstream.url) as batcher:
            async with Callers(batcher) as callers:
                for health, ready in ((404, 200), (503, 503), (200, 200), (500, 503), (401, 200), (429, 503)):
                    upstream.health = health
                    while True:
                        async with callers.session.get("/nightshift/readyz") as reply:
                            text = await reply.text()
                        if reply.status == ready:
                            break
                        await asyncio.sleep(0.1)
                    assert text == ("ready\n" if ready == 200 else f"the server answers /health with {health}\n")

    async def test_not_while_there_is_no_server(self) -> None:
        with Upstream() as upstream:
            url = upstream.url
        with BatcherProcess(url) as batcher:
            async with Callers(batcher) as callers, callers.session.get("/nightshift/readyz") as reply:
                assert (reply.status, (await reply.text())[:40]) == (503, "the server does not answer /health: no c")
            async with Callers(batcher) as callers, callers.session.get("/nightshift/livez") as reply:
                assert reply.status == 200


@pytest.mark.gate
class TestHeads:
    @pytest.mark.parametrize(
        "head",
        [
            POST + b"X-Long: " + b"a" * (64 << 10) + b"\r\n\r\n",
            POST + b"X-Many: 1\r\n" * 300 + b"\r\n",
            POST + b"a:b\r\n" * 20_000 + b"\r\n",
            b"GET /" + b"a" * (64 << 10) + b" HTTP/1.1\r\n\r\n",
        ],
        ids=["long", "many", "many and long", "address"],
    )
    async def test_too_large(self, head: bytes) -> None:
        with Upstream() as upstream, BatcherProcess(upstream.url) as batcher:
            replies = [await sent(batcher, head), await sent(batcher, head[: len(head) // 2], head[len(head) // 2 :])]
            async with Callers(batcher) as callers:
                assert (await callers.embed("honest"))[0] == 200
                metrics = await callers.metrics()

        assert all(re.match(rb"HTTP/1\.[01] 431 ", reply) for reply in replies)
        assert json.loads(replies[0].partition(b"\r\n\r\n")[2])["error"]["code"] == 431
        assert metrics['nightshift_batcher_rejected_total{reason="head"}'] == 2
        assert texts_of(upstream) == ["honest"]

    async def test_many_of_them_take_no_memory(self) -> None:
        """What is refused is not kept until Python looks for cycles, nor what follows it."""
        with Upstream() as upstream, BatcherProcess(upstream.url) as batcher:
            before = batcher.rss_most_mib
            for _ in range(10):
                replies = await asyncio.gather(
                    *(sent(batcher, POST + b"X-Long: ", *[b"a" * (256 << 10)] * 8) for _ in range(20))
                )
                assert all(re.match(rb"HTTP/1\.[01] 431 ", reply) for reply in replies), "who still sends gets it, too"
            grown = batcher.rss_most_mib - before

        assert grown < 20

    async def test_what_a_proxy_of_today_sends_is_not(self) -> None:
        """60 headers, and a cookie and a token of 4 KiB each."""
        more = b"".join(b"X-Header-%d: %b\r\n" % (n, b"v" * 200) for n in range(60))
        more += b"Cookie: " + b"c" * (4 << 10) + b"\r\nAuthorization: Bearer " + b"t" * (4 << 10) + b"\r\n"
        with Upstream() as upstream, BatcherProcess(upstream.url, "--max-latency", 0) as batcher:
            reply = await sent(batcher, whole(more, CLOSE))

        assert reply.startswith(b"HTTP/1.1 200 ")
        assert upstream.seen[0].headers["x-header-59"] == "v" * 200

    @pytest.mark.parametrize(
        ("begin", "more"),
        [
            (POST + b"X-Endless: ", b"a" * (1 << 20)),
            (POST, b"X-Many: 1\r\n" * 100_000),
            (b"GET /", b"a" * (1 << 20)),
            (CHUNKED + b"\r\n1\r\n{\r\n0\r\nX-Endless: ", b"a" * (1 << 20)),
            (CHUNKED + b"\r\n1\r\n{\r\n0\r\n", b"X-Many: 1\r\n" * 100_000),
            (CHUNKED + b"\r\n1;x=", b"a" * (1 << 20)),
        ],
        ids=["header", "headers", "address", "trailer", "trailers", "chunk extension"],
    )
    async def test_what_never_ends_takes_no_memory(self, begin: bytes, more: bytes) -> None:
        with Upstream() as upstream, BatcherProcess(upstream.url) as batcher:
            before = batcher.rss_most_mib
            reply = await sent(batcher, begin, *[more] * 100)
            grown = batcher.rss_most_mib - before
            async with Callers(batcher) as callers:
                assert (await callers.embed("honest"))[0] == 200

        assert "Traceback" not in batcher.said
        assert reply == b"" or re.match(rb"HTTP/1\.[01] 431 ", reply)
        assert grown < 20


@pytest.mark.gate
class TestBodies:
    @pytest.mark.parametrize("path", [b"/v1/embeddings", b"/v1/chat/completions", b"/echo/x"])
    @pytest.mark.parametrize("apart", [True, False])
    async def test_a_chunk_that_breaks_is_told(self, path: bytes, apart: bool) -> None:
        head = CHUNKED.replace(b"/v1/embeddings", path) + b"\r\n"
        with Upstream() as upstream, BatcherProcess(upstream.url, "--max-latency", 0) as batcher:
            async with connected(batcher) as (reader, writer):
                writer.write(head + b"5\r\n{    \r\n")
                if apart:
                    await writer.drain()
                    await asyncio.sleep(0.1)
                writer.write(b"zz\r\n")
                reply = await asyncio.wait_for(reader.read(), 60)
            async with Callers(batcher) as callers:
                await callers.until("in_hand", 0)

        # Where the server has begun to answer, there is no other way to tell than to end it early.
        begun = path == b"/v1/chat/completions" and reply.startswith(b"HTTP/1.1 200 ")
        assert begun or re.match(rb"HTTP/1\.[01] 400 ", reply)
        assert reply.lower().count(b"\r\ndate: ") == 1
        assert not reply.endswith(b"0\r\n\r\n")
        assert [each for each in upstream.seen if each.items] == []
        assert "Traceback" not in batcher.said

    @pytest.mark.parametrize("path", [b"/v1/embeddings", b"/echo/x"])
    async def test_a_name_that_is_not_utf_8_never_becomes_another(self, path: bytes) -> None:
        with Upstream() as upstream, BatcherProcess(upstream.url, "--max-latency", 0) as batcher:
            for name in (b"\xff", b"alice\xff", b"\xe9"):
                reply = await sent(batcher, whole(b"X-User: " + name + b"\r\n", CLOSE).replace(b"/v1/embeddings", path))
                assert reply.startswith(b"HTTP/1.1 400 ")
            reply = await sent(batcher, whole("X-User: h\u00e9\r\n".encode(), CLOSE))

        assert reply.startswith(b"HTTP/1.1 200 ")
        assert [each.headers["x-user"] for each in upstream.seen] == ["h\u00e9"]

    async def test_a_caller_that_asks_first_is_told_to_go_on(self) -> None:
        for path in (b"/v1/embeddings", b"/echo/x"):
            with Upstream() as upstream, BatcherProcess(upstream.url, "--max-latency", 0) as batcher:
                async with connected(batcher) as (reader, writer):
                    head, _, body = (
                        whole(b"Expect: 100-continue\r\n", CLOSE).replace(b"/v1/embeddings", path).partition(b"\r\n\r\n")
                    )
                    writer.write(head + b"\r\n\r\n")
                    assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60) == b"HTTP/1.1 100 Continue\r\n\r\n"
                    writer.write(body)
                    assert (await asyncio.wait_for(reader.read(), 60)).startswith(b"HTTP/1.1 200 ")


@pytest.mark.gate
class TestPipelining:
    async def test_requests_ahead_of_their_answers_are_answered_in_their_order(self) -> None:
        requests = b"".join(
            b"GET /echo/%d HTTP/1.1\r\nHost: h\r\n%b\r\n" % (n, b"Connection: close\r\n" if n == 9 else b"") for n in range(10)
        )
        with Upstream() as upstream, BatcherProcess(upstream.url) as batcher:
            reply = await sent(batcher, requests)

        found = [line for line in reply.lower().split(b"\r\n") if line.startswith(b"x-path: ")]
        assert found == [b"x-path: /echo/%d" % n for n in range(10)]

    async def test_not_without_end(self) -> None:
        """14,000 fit into one piece of bytes."""
        with Upstream() as upstream, BatcherProcess(upstream.url) as batcher:
            before = batcher.rss_most_mib
            for _ in range(10):
                await sent(batcher, b"GET /echo/x HTTP/1.1\r\n\r\n" * 14_000)
            grown = batcher.rss_most_mib - before
            async with Callers(batcher) as callers:
                assert (await callers.embed("honest"))[0] == 200

        assert grown < 20

    async def test_rubbish_behind_a_request_is_not_taken_for_its_answer(self) -> None:
        with Upstream() as upstream, BatcherProcess(upstream.url, "--max-latency", 0) as batcher:
            reply = await sent(batcher, whole() + b"NOT HTTP\r\n\r\n")
            async with Callers(batcher) as callers:
                await callers.until("in_hand", 0)

        assert re.fullmatch(rb"HTTP/1\.0 400 [^{]*{[^{]*{[^{]*}}", reply)
        assert upstream.seen == [], "who sends both is not to be trusted with either"


class TestRoom:
    async def test_what_is_announced_and_never_sent_takes_none(self) -> None:
        """Nothing but a head each: neither memory nor places."""
        size = 8 << 20
        sized, chunked = POST + b"Content-Length: %d\r\n\r\n" % size, CHUNKED + b"\r\n"
        with Upstream() as upstream, BatcherProcess(upstream.url, "--max-queue", 20, "--max-memory-mb", 24) as batcher:
            async with Callers(batcher) as callers:
                silent = [await asyncio.open_connection("127.0.0.1", batcher.port) for _ in range(60)]
                for number, (_, writer) in enumerate(silent):
                    writer.write(sized if number % 2 else chunked)
                await callers.until("in_hand", 60)
                replies = await asyncio.gather(*(callers.embed(f"honest {n}") for n in range(20)))
                for _, writer in silent:
                    writer.close()
                await callers.until("in_hand", 0)

        assert [status for status, _ in replies] == [200] * 20

    async def test_memory_that_slow_senders_fill_is_given_to_others(self) -> None:
        """They send all but the last byte, at once; without that nobody else would have room for as long as they like."""
        piece = b"{" + b" " * ((1 << 20) - 2)
        with Upstream() as upstream, BatcherProcess(upstream.url, "--max-body-mb", 1, "--max-memory-mb", 6) as batcher:
            async with Callers(batcher) as callers:
                slow = [await asyncio.open_connection("127.0.0.1", batcher.port) for _ in range(6)]
                for number, (_, writer) in enumerate(slow):
                    writer.write(POST + b"Content-Length: %d\r\n\r\n" % (1 << 20) + piece)
                    await writer.drain()
                    await callers.until("in_hand", number + 1)
                early, _ = await callers.embed("a" * 700_000)
                await asyncio.sleep(2.5)
                status, _ = await callers.embed("a" * 700_000)
                told = await asyncio.wait_for(slow[0][0].readuntil(b"\r\n"), 60)
                metrics = await callers.metrics()
                for _, writer in slow:
                    writer.transport.abort()
                await callers.until("in_hand", 0)
                while (await callers.metrics())["nightshift_batcher_held_bytes"] > 1000:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)

        assert (early, status, told) == (429, 200, b"HTTP/1.1 429 Too Many Requests\r\n")
        assert 2 <= metrics['nightshift_batcher_rejected_total{reason="memory"}'] <= 4

    @pytest.mark.parametrize("begun", [b"", POST, CHUNKED + b"\r\n", b"POST /echo/x HTTP/1.1\r\nContent-Length: 9\r\n\r\n"])
    async def test_connections_that_owe_a_request_give_way(self, begun: bytes) -> None:
        arguments = ("--max-connections", 10, "--max-latency", 0)
        with Upstream() as upstream, BatcherProcess(upstream.url, *arguments, hurried=False) as batcher:
            taken = [await asyncio.open_connection("127.0.0.1", batcher.port) for _ in range(10)]
            for _, writer in taken:
                writer.write(begun)
            await asyncio.sleep(2.5)
            for number in range(5):
                reply = await sent(batcher, whole(CLOSE))
                assert reply.startswith(b"HTTP/1.1 200 "), (number, reply)
            for _, writer in taken:
                writer.transport.abort()

        assert len(upstream.seen) == 5

    async def test_idle_ones_too_but_not_those_that_wait_for_an_answer(self) -> None:
        gate = asyncio.Event()

        async def hold(request: web.Request, items: list[Any]) -> None:
            while "held" in items and not gate.is_set():  # noqa: ASYNC110 - set in another thread
                await asyncio.sleep(0.01)

        arguments = ("--max-connections", 4, "--max-latency", 0)
        with Upstream(hold) as upstream, BatcherProcess(upstream.url, *arguments) as batcher:
            async with connected(batcher) as (idle, writer), connected(batcher) as (waiting, held):
                writer.write(whole())
                await idle.readuntil(b"\r\n\r\n")
                held.write(whole(body=BODY.replace(b"raw", b"held")))
                await seen(upstream, 2)
                for _ in range(5):
                    reply = await sent(batcher, whole(CLOSE))
                    assert reply.startswith(b"HTTP/1.1 200 ")
                others = [await asyncio.open_connection("127.0.0.1", batcher.port) for _ in range(3)]
                gate.set()
                assert await waiting.readuntil(b"\r\n") == b"HTTP/1.1 200 OK\r\n"
                for _, each in others:
                    each.transport.abort()


class TestAnswers:
    """What a caller does not take is in the account of memory, too: over its bound, the slowest reader is closed."""

    async def test_callers_who_read_nothing_make_room_for_others(self) -> None:
        """60 of them, with 15 MiB each, beside a bound of 64 MiB."""

        async def huge(_: web.Request, items: list[Any]) -> web.StreamResponse:
            return web.Response(body=b"{" + b" " * (15 << 20) + b"}")

        arguments = ("--max-latency", 0, "--max-memory-mb", 64, "--max-upstream", 2)
        with Upstream(huge) as upstream, BatcherProcess(upstream.url, *arguments) as batcher:
            async with Callers(batcher) as callers:
                before = batcher.rss_most_mib
                deaf = [await asyncio.open_connection("127.0.0.1", batcher.port, limit=1) for _ in range(60)]
                for number, (_, writer) in enumerate(deaf):
                    writer.write(whole(body=BODY.replace(b"raw", b"deaf %d" % number)))
                await seen(upstream, 60)
                await callers.until("upstream_in_flight", 0)
                assert len(await callers.raw({"model": "m", "input": "honest"})) > 15 << 20
                metrics = await callers.metrics()
                grown = batcher.rss_most_mib - before
                for _, writer in deaf:
                    writer.transport.abort()
                await callers.until("in_hand", 0)
                assert (await callers.metrics())["nightshift_batcher_held_bytes"] < 1000

        assert metrics['nightshift_batcher_rejected_total{reason="unread"}'] > 50
        assert metrics["nightshift_batcher_held_bytes"] < 65 << 20
        # The bound, and replies that arrive.
        assert grown < 64 + 2 * 64

    async def test_what_is_passed_through_too(self) -> None:
        async def endless(_: web.Request, items: list[Any]) -> web.StreamResponse:
            return web.Response(body=b" " * (32 << 20))

        arguments = ("--max-latency", 0, "--max-body-mb", 1, "--max-memory-mb", 3)
        with Upstream(endless) as upstream, BatcherProcess(upstream.url, *arguments) as batcher:
            async with Callers(batcher) as callers:
                deaf = [await asyncio.open_connection("127.0.0.1", batcher.port, limit=1) for _ in range(30)]
                for _, writer in deaf:
                    writer.write(whole(b"Content-Encoding: identity\r\n"))
                await seen(upstream, 30)
                while not (await callers.metrics())['nightshift_batcher_rejected_total{reason="unread"}']:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                metrics = await callers.metrics()
                for _, writer in deaf:
                    writer.transport.abort()
                await callers.until("in_hand", 0)

        assert metrics["nightshift_batcher_held_bytes"] < 4 << 20

    async def test_a_caller_that_reads_is_not_taken_for_one_that_does_not(self) -> None:
        """However much it reads in small memory."""
        arguments = ("--max-body-mb", 1, "--max-memory-mb", 3)
        with Upstream() as upstream, BatcherProcess(upstream.url, *arguments) as batcher:
            async with Callers(batcher) as callers:
                async with callers.session.post("/echo/x", data=b"a" * (24 << 20)) as reply:
                    assert len(await reply.read()) == 24 << 20
                await callers.until("in_hand", 0)
                async with callers.session.post("/v1/chat/completions", json={}) as events:
                    await events.content.readline()
                    # Between two events, nothing is held for it but its request.
                    while (await callers.metrics())["nightshift_batcher_held_bytes"] > 10_000:  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
                    upstream.piece.set()
                    await events.read()
                metrics = await callers.metrics()

        assert metrics['nightshift_batcher_rejected_total{reason="unread"}'] == 0
        assert metrics["nightshift_batcher_held_bytes"] < 1000


@pytest.mark.gate
class TestReading:
    """What takes long to be read is not read."""

    @pytest.mark.parametrize("nested", [b"[]," * 100_000 + b"[]", b"1," * 300_000 + b"1", b"{}," * 20_000 + b"{}"])
    async def test_one_instance_of_very_many_elements_goes_unread(self, nested: bytes) -> None:
        body = b'{"instances": [[' + nested + b"]]}"
        with Upstream() as upstream, BatcherProcess(upstream.url, *LONG) as batcher:
            async with Callers(batcher) as callers:
                async with callers.session.post("/v1/models/m:predict", data=body, headers=JSON) as reply:
                    assert reply.status == 200
                metrics = await callers.metrics()

        assert metrics['nightshift_batcher_passed_through_total{why="body"}'] == 1
        assert metrics["nightshift_batcher_batch_callers_count"] == 0

    @pytest.mark.parametrize("size", [(1 << 20) + 1, 7 << 20])
    async def test_a_body_larger_than_a_merge_can_use_goes_as_it_came(self, size: int) -> None:
        body = b'{"model": "m", "input": "' + b"a" * size + b'"}'

        async def pieces() -> AsyncIterator[bytes]:
            for start in range(0, len(body), 1 << 16):
                yield body[start : start + (1 << 16)]

        with Upstream() as upstream, BatcherProcess(upstream.url, *LONG) as batcher:
            async with Callers(batcher) as callers:
                for data in (body, pieces()):
                    async with callers.session.post("/v1/embeddings", data=data, headers=JSON) as reply:
                        assert reply.status == 200

        assert [each.items for each in upstream.seen] == [["a" * size]] * 2

    async def test_a_list_of_millions_is_one_request(self) -> None:
        count = 330_000
        body = b'{"model": "m", "input": [' + b'"",' * (count - 1) + b'""]}'
        small = b'{"model": "m", "input": [' + b'"",' * (32 * 64) + b'""]}'
        with Upstream() as upstream, BatcherProcess(upstream.url, "--max-latency", 0) as batcher:
            async with Callers(batcher) as callers:
                for data in (body, small):
                    async with callers.session.post("/v1/embeddings", data=data, headers=JSON) as reply:
                        assert len((await reply.json())["data"]) in (count, 32 * 64 + 1)

        assert [len(each.items) for each in upstream.seen] == [count, 32 * 64 + 1]


class TestAxes:
    """V2 models whose first axis is no batch."""

    @pytest.mark.parametrize("shape", [[2], [-1], [2, 2], [], [-1, 5], [-1, -1, 2]])
    async def test_they_are_asked_alone(self, shape: list[int]) -> None:
        def infer(number: int) -> dict[str, Any]:
            return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [number] * 4}]}

        with Upstream() as upstream, BatcherProcess(upstream.url, "--max-batch-size", 4, "--max-latency", 0.2) as batcher:
            upstream.shape = shape
            async with Callers(batcher) as callers:
                replies = await asyncio.gather(*(callers.ask("/v2/models/m/infer", infer(n)) for n in range(2)))

        assert [status for status, _ in replies] == [200, 200]
        assert [len(each.items) for each in upstream.seen] == [4, 4]


@pytest.mark.gate
class TestOwnKey:
    async def test_the_servers_key_is_sent_for_those_who_bring_none(self) -> None:
        with Upstream() as upstream, BatcherProcess(upstream.url, "--max-latency", 0, key="secret") as batcher:
            async with Callers(batcher) as callers:
                for given in ({}, {"Authorization": "Bearer own"}, {"Content_Encoding": "identity"}):
                    assert (await callers.embed("a", **given))[0] == 200

        assert [each.headers["authorization"] for each in upstream.seen] == ["Bearer secret", "Bearer own", "Bearer secret"]
        assert "secret" not in batcher.said


class TestBehindAProxy:
    """The configurations of docs/examples/proxies.txt, with shorter times: what is slow stays with the proxy."""

    @staticmethod
    def config(language: str, batcher: BatcherProcess, *changes: tuple[str, str]) -> str:
        page = (Path(__file__).parents[3] / "docs/examples/proxies.txt").read_text()
        found = page.partition(f"```{language}\n")[2].partition("```")[0]
        for said, here in changes:
            assert found.count(said) == 1
            found = found.replace(said, here)
        return found.replace("8081", str(batcher.port))

    @pytest.mark.parametrize(
        ("run", "language", "changes"),
        [
            (
                nginx,
                "nginx",
                [
                    ("listen 8080;", "listen 127.0.0.1:{port};"),
                    ("client_header_timeout 10s", "client_header_timeout 1s"),
                    ("client_body_timeout 30s", "client_body_timeout 1s"),
                    ("send_timeout 60s", "send_timeout 1s"),
                ],
            ),
            (
                haproxy,
                "haproxy",
                [
                    ("bind :8080", "bind 127.0.0.1:{port}"),
                    ("http-request 10s", "http-request 1s"),
                    ("client 60s", "client 1s"),
                ],
            ),
            (
                envoy,
                "yaml",
                [
                    ("address: 0.0.0.0, port_value: 8080", "address: 127.0.0.1, port_value: {port}"),
                    ("request_headers_timeout: 10s", "request_headers_timeout: 1s"),
                    ("request_timeout: 60s", "request_timeout: 1s"),
                    ("stream_idle_timeout: 600s", "stream_idle_timeout: 5s"),
                ],
            ),
        ],
        ids=["nginx", "HAProxy", "Envoy"],
    )
    async def test_slow_callers_are_its_business(
        self, tmp_path: Path, run: Front, language: str, changes: list[tuple[str, str]]
    ) -> None:
        async def huge(_: web.Request, items: list[Any]) -> web.StreamResponse | None:
            return web.Response(body=b"{" + b" " * (32 << 20) + b"}") if "huge" in items else None

        with Upstream(huge) as upstream, BatcherProcess(upstream.url, "--max-latency", 0) as batcher:  # noqa: SIM117
            with run(tmp_path, self.config(language, batcher, *changes)) as port:
                begun = [POST, POST + b"Content-Length: 50\r\n\r\n{", CHUNKED + b"\r\n1\r\n{\r\n"]
                for begin in begun:
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.write(begin)
                    reply = await asyncio.wait_for(reader.read(), 30)
                    writer.close()
                    assert reply == b"" or reply.startswith(b"HTTP/1.1 408 ")
                async with Callers(batcher) as callers:
                    assert (await callers.metrics())['nightshift_batcher_disconnected_total{when="sending"}'] == 0
                    _, deaf = await asyncio.open_connection("127.0.0.1", port, limit=1)
                    deaf.write(whole(body=BODY.replace(b"raw", b"huge")))
                    await seen(upstream, 1)
                    await callers.until("in_hand", 0)
                    deaf.transport.abort()
                    callers.url = f"http://127.0.0.1:{port}"
                async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
                    async with session.post("/v1/chat/completions", json={}) as events:
                        assert await events.content.readline() == b"data: one\n"
                        upstream.piece.set()
                        assert await events.content.read() == b"\ndata: two\n\n"
                    async with session.post("/v1/embeddings", json={"model": "m", "input": "a"}) as answer:
                        assert (await answer.json())["data"][0]["embedding"] == [answer_to("a")]
