"""The command `nightshift batcher` as a process, in front of a server that can be made to fail."""

from __future__ import annotations

import asyncio
import gzip
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from tests.integration.driver.peers import certificates
from tests.integration.stream.servers import BatcherProcess, Behaviour, Callers, Gate, Seen, Upstream, answer_to, seen

pytestmark = pytest.mark.integration

LONG = ("--max-latency", 60)
"""Only a full request goes."""


def vector(text: Any) -> list[dict[str, Any]]:
    return [{"index": 0, "embedding": [answer_to(text)]}]


def always(status: int, body: bytes = b'{"error": {"message": "no"}}', **headers: str) -> Behaviour:
    async def behave(_: web.Request, __: list[Any]) -> web.StreamResponse:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(status=status, body=body, content_type="application/json", headers=given)

    return behave


def refusing(bad: str, status: int = 400) -> Behaviour:
    """Refuses every request with this item in it, as vLLM does."""

    async def behave(_: web.Request, items: list[Any]) -> web.StreamResponse | None:
        if bad not in items:
            return None
        return web.json_response({"error": {"message": f"{bad} is too long", "code": status}}, status=status)

    return behave


@pytest.mark.gate
class TestSharing:
    async def test_a_full_request_goes_at_once_and_each_gets_its_own(self) -> None:
        with Upstream() as upstream, BatcherProcess(upstream.url, "--max-batch-size", 16, *LONG) as batcher:
            async with Callers(batcher) as callers:
                texts = [f"text {n}" for n in range(32)]
                replies = await asyncio.gather(*map(callers.embed, texts))

                assert [(status, body["data"]) for status, body in replies] == [(200, vector(text)) for text in texts]
                assert [len(each.items) for each in upstream.seen] == [16, 16]
                assert len({body["id"] for _, body in replies}) == 16, "each of a request has another id"
                metrics = await callers.metrics()
        assert metrics["nightshift_batcher_batch_callers_sum"] == 32
        assert metrics['nightshift_batcher_callers_total{endpoint="embeddings",status="200"}'] == 32
        assert metrics["nightshift_batcher_wait_seconds_count"] == 32

    async def test_who_has_waited_long_enough_goes_with_those_that_came_since(self) -> None:
        with Upstream() as upstream, BatcherProcess(upstream.url, "--max-latency", 5) as batcher:
            async with Callers(batcher) as callers:
                replies = await asyncio.gather(*(callers.ask_all("/v1/embeddings", {"model": "m", "input": t}) for t in "abc"))

        assert [body["data"] for _, _, body in replies] == [vector(text) for text in "abc"]
        assert [sorted(each.items) for each in upstream.seen] == [["a", "b", "c"]]
        assert {headers["x-nightshift-batch-callers"] for _, headers, _ in replies} == {"3"}
        assert not any("usage" in body for _, _, body in replies), "the server reports only the sum"

    async def test_one_alone_is_sent_and_answered_as_it_is(self) -> None:
        with Upstream() as upstream, BatcherProcess(upstream.url) as batcher:
            async with Callers(batcher) as callers:
                status, headers, body = await callers.ask_all(
                    "/v1/embeddings?x=1", {"model": "m", "input": "a"}, X_Request_Id="7", User_Agent="me"
                )

        (only,) = upstream.seen
        assert (status, headers["x-nightshift-batch-callers"]) == (200, "1")
        assert body == {"id": "embd-1", "model": "m", "data": vector("a"), "usage": {"prompt_tokens": 10, "total_tokens": 10}}
        assert (only.path, only.body) == ("/v1/embeddings?x=1", {"model": "m", "input": "a"})
        assert (only.headers["x-request-id"], only.headers["user-agent"]) == ("7", "me")
        assert only.headers["content-type"] == "application/json"

    async def test_an_estimate_of_usage_if_asked_for(self) -> None:
        arguments = ("--max-batch-size", 2, "--usage", "estimate", *LONG)
        with Upstream() as upstream, BatcherProcess(upstream.url, *arguments) as batcher:
            async with Callers(batcher) as callers:
                replies = await asyncio.gather(*map(callers.embed, "ab"))

        assert [body["usage"] for _, body in replies] == [{"prompt_tokens": 10, "total_tokens": 10}] * 2

    async def test_tenants_never_share_a_request(self) -> None:
        with Upstream() as upstream, BatcherProcess(upstream.url, "--max-batch-size", 8, *LONG) as batcher:
            async with Callers(batcher) as callers:
                asked = [(f"{n}", {"Authorization": f"Bearer {n % 2}", "X_Trace": f"{n % 4 // 2}"}) for n in range(32)]
                replies = await asyncio.gather(*(callers.embed(text, **headers) for text, headers in asked))

        assert [body["data"] for _, body in replies] == [vector(text) for text, _ in asked]
        assert len(upstream.seen) == 4
        for each in upstream.seen:
            tenant = (each.headers["authorization"], each.headers["x-trace"])
            assert {(f"Bearer {int(n) % 2}", f"{int(n) % 4 // 2}") for n in each.items} == {tenant}

    async def test_a_user_may_say_which_headers_count(self) -> None:
        arguments = ("--max-batch-size", 2, "--key-header", "User-Agent", "--ignore-header", "X-Trace", *LONG)
        with Upstream() as upstream, BatcherProcess(upstream.url, *arguments) as batcher:
            async with Callers(batcher) as callers:
                await asyncio.gather(
                    *(callers.embed(f"{n}", User_Agent=f"agent {n % 2}", X_Trace=f"{n}") for n in range(4)),
                )

        assert sorted((sorted(each.items), each.headers["user-agent"]) for each in upstream.seen) == [
            (["0", "2"], "agent 0"),
            (["1", "3"], "agent 1"),
        ]
        assert not any("x-trace" in each.headers for each in upstream.seen)

    @pytest.mark.parametrize("seed", range(3))
    async def test_whatever_callers_ask_each_gets_its_own(self, seed: int) -> None:
        draw = random.Random(seed)
        bodies = []
        for caller in range(300):
            texts = [f"{caller}/{n}" for n in range(draw.choice([1, 1, 1, 2, 5, 40]))]
            bodies.append({"model": draw.choice("mno"), "input": texts[0] if draw.random() < 0.3 else texts})
        with Upstream() as upstream, BatcherProcess(upstream.url, "--max-batch-size", 16) as batcher:
            async with Callers(batcher) as callers:
                replies = await asyncio.gather(*(callers.ask("/v1/embeddings", body) for body in bodies))

        for asked, (status, body) in zip(bodies, replies, strict=True):
            texts = Upstream.seen_items(asked["input"])
            expected = [{"index": n, "embedding": [answer_to(text)]} for n, text in enumerate(texts)]
            assert (status, body["model"], body["data"]) == (200, asked["model"], expected)
        assert len(upstream.seen) < 300
        assert all(len(each.items) <= 16 or self._is_one_callers(each) for each in upstream.seen)

    @staticmethod
    def _is_one_callers(each: Seen) -> bool:
        return len({item.split("/")[0] for item in each.items}) == 1


class TestOtherEndpoints:
    async def test_completions(self) -> None:
        with Upstream() as upstream, BatcherProcess(upstream.url, "--max-batch-size", 3, *LONG) as batcher:
            async with Callers(batcher) as callers:
                bodies = [{"prompt": "a"}, {"prompt": ["b", "c"]}]
                replies = await asyncio.gather(*(callers.ask("/v1/completions", body) for body in bodies))

        assert [[choice["text"] for choice in body["choices"]] for _, body in replies] == [["a!"], ["b!", "c!"]]
        assert len(upstream.seen) == 1

    async def test_a_stream_does_not_wait_for_others(self) -> None:
        with Upstream() as upstream, BatcherProcess(upstream.url, *LONG) as batcher:
            async with Callers(batcher) as callers:
                status, body = await callers.ask("/v1/completions", {"prompt": "a", "stream": True})

        assert (status, body["choices"][0]["text"]) == (200, "a!")
        assert upstream.seen[0].body == {"prompt": "a", "stream": True}

    async def test_kserve_v1(self) -> None:
        with Upstream() as upstream, BatcherProcess(upstream.url, "--max-batch-size", 3, *LONG) as batcher:
            async with Callers(batcher) as callers:
                bodies: list[dict[str, Any]] = [{"instances": ["a"]}, {"instances": ["b", [1]]}]
                replies = await asyncio.gather(*(callers.ask("/v1/models/m:predict", body) for body in bodies))

        assert [body for _, body in replies] == [
            {"predictions": [answer_to("a")]},
            {"predictions": [answer_to("b"), answer_to([1])]},
        ]
        assert len(upstream.seen) == 1

    async def test_kserve_v2(self) -> None:
        def infer(data: list[float], **more: Any) -> dict[str, Any]:
            return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [len(data), 1], "data": data}], **more}

        with Upstream() as upstream, BatcherProcess(upstream.url, "--max-batch-size", 3, *LONG) as batcher:
            async with Callers(batcher) as callers:
                bodies = [infer([1.5], id="mine"), infer([2.0, 3.0])]
                replies = await asyncio.gather(*(callers.ask("/v2/models/m/infer", body) for body in bodies))

        assert [(body["outputs"][0]["shape"], body["outputs"][0]["data"]) for _, body in replies] == [
            ([1, 1], [3]),
            ([2, 1], [4, 6]),
        ]
        assert replies[0][1]["id"] == "mine"
        assert replies[1][1]["id"].startswith("made-up-")
        assert len(upstream.seen) == 1


@pytest.mark.gate
class TestBadRequests:
    @pytest.mark.parametrize("status", [400, 413, 422])
    async def test_one_bad_request_of_32_costs_only_itself(self, status: int) -> None:
        with (
            Upstream(refusing("text 19", status)) as upstream,
            BatcherProcess(upstream.url, "--max-batch-size", 32, *LONG) as batcher,
        ):
            async with Callers(batcher) as callers:
                texts = [f"text {n}" for n in range(32)]
                replies = await asyncio.gather(*map(callers.embed, texts))
                metrics = await callers.metrics()

        assert replies.pop(19) == (status, {"error": {"message": "text 19 is too long", "code": status}})
        texts.pop(19)
        assert [(got, body["data"]) for got, body in replies] == [(200, vector(text)) for text in texts]
        assert len(upstream.seen) == 11
        assert metrics['nightshift_batcher_refused_total{endpoint="embeddings"}'] == 1

    async def test_also_if_the_server_fails_on_it(self) -> None:
        with Upstream(refusing("b", 500)) as upstream, BatcherProcess(upstream.url, "--max-batch-size", 4, *LONG) as batcher:
            async with Callers(batcher) as callers:
                replies = await asyncio.gather(*map(callers.embed, "abcd"))

        assert [status for status, _ in replies] == [200, 502, 200, 200]
        assert replies[1][1]["error"]["message"] == "the server answered 500: b is too long"

    async def test_what_cannot_be_read_is_the_servers_to_judge(self) -> None:
        with Upstream(always(400)) as upstream, BatcherProcess(upstream.url, *LONG) as batcher:
            async with Callers(batcher) as callers:
                assert await callers.embed({"not": "a text"}) == (400, {"error": {"message": "no"}})
        assert upstream.seen[0].body == {"model": "m", "input": {"not": "a text"}}


class TestFailures:
    @staticmethod
    async def _two(behaviour: Behaviour, *arguments: object) -> list[tuple[int, dict[str, str], Any]]:
        """What two callers get who share one request."""
        with Upstream(behaviour) as upstream, BatcherProcess(upstream.url, "--max-batch-size", 2, *LONG, *arguments) as batcher:
            async with Callers(batcher) as callers:
                asking = (callers.ask_all("/v1/embeddings", {"model": "m", "input": text}) for text in "ab")
                replies = await asyncio.gather(*asking)
        assert [len(each.items) for each in upstream.seen] == [2]
        return replies

    @pytest.mark.parametrize("status", [429, 503])
    async def test_a_server_without_room(self, status: int) -> None:
        for got, headers, body in await self._two(always(status, Retry_After="17")):
            assert (got, headers["retry-after"]) == (429, "17")
            assert body["error"] == {
                "message": f"the server has no room now ({status}): no",
                "type": "TooManyRequestsError",
                "param": None,
                "code": 429,
            }

    async def test_one_that_does_not_say_when_to_come_again(self) -> None:
        assert {headers["retry-after"] for _, headers, _ in await self._two(always(429))} == {"1"}

    @pytest.mark.parametrize(("status", "told"), [(502, 502), (504, 504), (408, 504), (501, 502)])
    async def test_a_server_that_fails(self, status: int, told: int) -> None:
        for got, _, body in await self._two(always(status)):
            assert (got, body["error"]["code"], body["error"]["message"]) == (told, told, f"the server answered {status}: no")

    @pytest.mark.parametrize("status", [401, 403, 404])
    async def test_an_error_that_concerns_what_they_share_is_everybodys(self, status: int) -> None:
        assert [(got, body) for got, _, body in await self._two(always(status))] == [(status, {"error": {"message": "no"}})] * 2

    @pytest.mark.parametrize(
        ("body", "why"),
        [
            (b'{"data": [{"index": 0}]}', "1 results for 2 inputs"),
            (b'{"data": [{"index": 0}, {"index": 0}]}', "not numbered"),
            (b"<html>", "not a JSON object"),
        ],
    )
    async def test_a_reply_that_does_not_fit_is_nobodys(self, body: bytes, why: str) -> None:
        """Each is asked for again alone, and later ones at once. An answer does not depend on who else asks."""
        with Upstream(always(200, body)) as upstream, BatcherProcess(upstream.url, "--max-batch-size", 2, *LONG) as batcher:
            async with Callers(batcher) as callers:
                for _ in range(2):
                    for text in await asyncio.gather(*(callers.raw({"model": "m", "input": text}) for text in "ab")):
                        assert text == body

        assert [len(each.items) for each in upstream.seen] == [2, 1, 1, 1, 1]
        assert why in batcher.said

    async def test_a_server_that_does_not_answer_in_time(self) -> None:
        async def hang(_: web.Request, __: list[Any]) -> None:
            await asyncio.sleep(3600)

        for got, _, body in await self._two(hang, "--timeout", 5):
            assert (got, body["error"]["message"]) == (504, "the server did not answer: no reply within 5 s")

    async def test_a_connection_that_breaks(self) -> None:
        async def close(request: web.Request, __: list[Any]) -> None:
            assert request.transport is not None
            request.transport.close()

        for got, _, body in await self._two(close):
            assert (got, body["error"]["type"]) == (502, "BadGatewayError")

    async def test_a_server_that_is_not_there(self) -> None:
        with Upstream() as upstream:
            url = upstream.url
        with BatcherProcess(url) as batcher:
            async with Callers(batcher) as callers:
                status, body = await callers.embed("a")
                kserve = await callers.ask("/v1/models/m:predict", {"instances": [1]})
                passed = await callers.ask("/v1/chat/completions", {})

        assert (status, body["error"]["code"]) == (502, 502)
        assert kserve[0] == 502
        assert kserve[1]["error"].startswith("the server did not answer: no connection")
        assert passed[0] == 502
        assert passed[1]["error"]["message"].startswith("no connection to the server")


class TestBounds:
    async def test_a_full_queue_says_when_to_come_again(self) -> None:
        gate = Gate()
        with Upstream(gate) as upstream, BatcherProcess(upstream.url, "--max-queue", 2, "--max-latency", 0) as batcher:
            async with Callers(batcher) as callers:
                held = []
                for text in "ab":
                    held.append(asyncio.create_task(callers.embed(text)))
                    await seen(upstream, 1)
                status, headers, body = await callers.ask_all("/v1/embeddings", {"model": "m", "input": "c"})
                gate.open.set()
                replies = await asyncio.gather(*held)
                again, _ = await callers.embed("c")
                metrics = await callers.metrics()

        assert (status, headers["retry-after"], body["error"]["code"]) == (429, "1", 429)
        assert ([got for got, _ in replies], again) == ([200, 200], 200)
        assert metrics['nightshift_batcher_rejected_total{reason="queue"}'] == 1

    async def test_memory_is_bounded_too(self) -> None:
        gate = Gate()
        arguments = ("--max-body-mb", 1, "--max-memory-mb", 3, "--max-latency", 0)
        with Upstream(gate) as upstream, BatcherProcess(upstream.url, *arguments) as batcher:
            async with Callers(batcher) as callers:
                held = asyncio.create_task(callers.embed("a" * 700_000))
                await seen(upstream, 1)
                status, body = await callers.embed("b" * 700_000)
                gate.open.set()
                assert (await held)[0] == 200

        assert (status, body["error"]["message"]) == (429, "the batcher has no room now: its memory is full")

    @pytest.mark.parametrize("announced", [True, False])
    async def test_a_body_that_is_too_large(self, announced: bool) -> None:
        large = b'{"input": "' + b"a" * (1 << 20) + b'"}'

        async def pieces() -> AsyncIterator[bytes]:
            for start in range(0, len(large), 1 << 16):
                yield large[start : start + (1 << 16)]

        with Upstream() as upstream, BatcherProcess(upstream.url, "--max-body-mb", 1) as batcher:
            async with Callers(batcher) as callers:
                data = large if announced else pieces()
                headers = {"Content-Type": "application/json"}
                async with callers.session.post("/v1/embeddings", data=data, headers=headers) as reply:
                    body = await reply.json()

        assert (reply.status, body["error"]["code"]) == (413, 413)
        assert body["error"]["message"] == "the request has more than 1048576 bytes (--max-body-mb)"
        assert upstream.seen == []

    async def test_requests_at_once(self) -> None:
        gate = Gate()
        arguments = ("--max-upstream", 2, "--max-batch-size", 3, "--max-latency", 0)
        with Upstream(gate) as upstream, BatcherProcess(upstream.url, *arguments) as batcher:
            async with Callers(batcher) as callers:
                first = []
                for text in "ab":
                    first.append(asyncio.create_task(callers.embed(text)))
                    await seen(upstream, 1)
                rest = [asyncio.create_task(callers.embed(text)) for text in "cdefg"]
                await callers.until("waiting", 5)
                gate.open.set()
                replies = await asyncio.gather(*first, *rest)

        assert [body["data"] for _, body in replies] == [vector(text) for text in "abcdefg"]
        assert [len(each.items) for each in upstream.seen] == [1, 1, 3, 2], "what waited went together"


@pytest.mark.gate
class TestCallersThatLeave:
    async def test_before_the_request_is_sent_it_is_not_in_it(self) -> None:
        with Upstream() as upstream, BatcherProcess(upstream.url, "--max-batch-size", 3, *LONG) as batcher:
            async with Callers(batcher) as callers:
                leaving = asyncio.create_task(callers.embed("gone"))
                await callers.until("waiting", 1)
                leaving.cancel()
                await callers.until("waiting", 0)
                replies = await asyncio.gather(*map(callers.embed, "abc"))
                metrics = await callers.metrics()

        assert [body["data"] for _, body in replies] == [vector(text) for text in "abc"]
        assert [sorted(each.items) for each in upstream.seen] == [["a", "b", "c"]]
        assert metrics['nightshift_batcher_disconnected_total{when="waiting"}'] == 1

    async def test_a_request_that_nobody_waits_for_is_broken_off(self) -> None:
        class Watching:
            async def __call__(self, request: web.Request, _: list[Any]) -> None:
                while request.transport is not None and not request.transport.is_closing():  # noqa: ASYNC110 - has no event
                    await asyncio.sleep(0.01)
                upstream.left.set()

        with Upstream(Watching()) as upstream, BatcherProcess(upstream.url, "--max-batch-size", 2, *LONG) as batcher:
            async with Callers(batcher) as callers:
                leaving = [asyncio.create_task(callers.embed(text)) for text in "ab"]
                await seen(upstream, 1)
                for task in leaving:
                    task.cancel()
                assert await asyncio.to_thread(upstream.left.wait, 60)
                await callers.until("upstream_in_flight", 0)
                await callers.until("in_hand", 0)


class TestPassingThrough:
    async def test_method_path_query_headers_status_and_body(self) -> None:
        with Upstream() as upstream, BatcherProcess(upstream.url) as batcher:
            async with Callers(batcher) as callers:
                url = f"{callers.url}/echo/a%2Fb?q=%20x&q=2"
                given = {
                    "X-Given": "héé".encode().decode("latin-1"),
                    "X-Status": "418",
                    "Connection": "keep-alive, X-Hop",
                    "X-Hop": "1",
                }
                async with callers.session.request("PATCH", URL(url, encoded=True), data=b"\x00\xff", headers=given) as reply:
                    body = await reply.read()

        assert (reply.status, body) == (418, b"\x00\xff")
        assert (reply.headers["X-Path"], reply.headers["X-Method"]) == ("/echo/a%2Fb?q=%20x&q=2", "PATCH")
        assert reply.headers["X-Seen"]

    async def test_a_body_of_unknown_length_and_a_large_one(self) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            for number in range(200):
                yield bytes([number]) * 100_000

        with Upstream() as upstream, BatcherProcess(upstream.url, "--max-body-mb", 1) as batcher:
            async with Callers(batcher) as callers, callers.session.post("/echo/", data=pieces()) as reply:
                body = await reply.read()

        assert body == b"".join([bytes([number]) * 100_000 for number in range(200)])

    async def test_head_and_empty_replies(self) -> None:
        with Upstream() as upstream, BatcherProcess(upstream.url) as batcher:
            async with Callers(batcher) as callers:
                async with callers.session.head("/echo/x") as head:
                    assert (head.status, head.headers["X-Method"]) == (200, "HEAD")
                async with callers.session.get("/echo/x", headers={"X-Status": "204"}) as empty:
                    assert (empty.status, await empty.read()) == (204, b"")
                async with callers.session.get("/nothing") as missing:
                    assert missing.status == 404

    async def test_pieces_arrive_as_they_come(self) -> None:
        with Upstream() as upstream, BatcherProcess(upstream.url) as batcher:
            async with Callers(batcher) as callers, callers.session.post("/v1/chat/completions", json={}) as reply:
                assert await reply.content.readline() == b"data: one\n"
                upstream.piece.set()
                assert await reply.content.read() == b"\ndata: two\n\n"
                assert reply.headers["Content-Type"] == "text/event-stream"

    async def test_the_server_sees_that_a_caller_has_left(self) -> None:
        with Upstream() as upstream, BatcherProcess(upstream.url) as batcher:
            async with Callers(batcher) as callers:
                async with callers.session.post("/v1/chat/completions", json={}) as reply:
                    await reply.content.readline()
                    reply.close()
                assert await asyncio.to_thread(upstream.left.wait, 60)

    async def test_a_reply_without_a_body_that_states_a_length(self) -> None:
        with Upstream() as upstream, BatcherProcess(upstream.url) as batcher:
            async with Callers(batcher) as callers:
                for _ in range(2):
                    async with callers.session.get("/unchanged") as reply:
                        assert (reply.status, await reply.read()) == (304, b"")
                assert (await callers.embed("a"))[0] == 200
                await callers.until("in_hand", 0)

        assert "Traceback" not in batcher.said

    async def test_half_a_reply_is_never_a_whole_one(self) -> None:
        with Upstream() as upstream, BatcherProcess(upstream.url) as batcher:
            async with Callers(batcher) as callers, callers.session.get("/broken") as reply:
                with pytest.raises(aiohttp.ClientPayloadError):
                    await reply.read()

    async def test_an_encoded_body_is_not_touched(self) -> None:
        packed = gzip.compress(b'{"model": "m", "input": "a"}')
        with Upstream() as upstream, BatcherProcess(upstream.url, *LONG) as batcher:
            async with Callers(batcher) as callers:
                headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
                async with callers.session.post("/v1/embeddings", data=packed, headers=headers) as reply:
                    body = await reply.json()

        assert body["data"] == vector("a")
        assert upstream.seen[0].headers["content-encoding"] == "gzip"

    @pytest.mark.parametrize("trusting", [True, False])
    async def test_a_server_behind_tls(self, tmp_path: Path, trusting: bool) -> None:
        """Collected and passed through, by different clients: neither talks to a server that it does not trust."""
        context, _ = certificates(tmp_path)
        upstream = Upstream()
        app = web.Application()
        app.add_routes(upstream.routes())
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        url = f"https://127.0.0.1:{runner.addresses[0][1]}"
        trusted = tmp_path / "server.pem" if trusting else None
        batcher = await asyncio.to_thread(BatcherProcess, url, trusted=trusted)
        with batcher:
            async with Callers(batcher) as callers:
                collected, _ = await callers.embed("a")
                async with callers.session.get("/echo/a") as reply:
                    passed = reply.status
        await runner.cleanup()

        assert (collected, passed) == ((200, 200) if trusting else (502, 502))

    async def test_only_the_endpoints_that_were_chosen_wait(self) -> None:
        with Upstream() as upstream, BatcherProcess(upstream.url, "--endpoints", "score", *LONG) as batcher:
            async with Callers(batcher) as callers:
                status, body = await callers.embed("a")

        assert (status, body["data"]) == (200, vector("a"))


@pytest.mark.gate
class TestDraining:
    async def test_callers_in_hand_and_those_that_still_come_are_answered(self) -> None:
        gate = Gate()
        with Upstream(gate) as upstream, BatcherProcess(upstream.url, "--max-batch-size", 2, *LONG) as batcher:
            async with Callers(batcher) as callers:
                sent = [asyncio.create_task(callers.embed(text)) for text in "ab"]
                await seen(upstream, 1)
                waiting = asyncio.create_task(callers.embed("c"))
                await callers.until("waiting", 1)
                assert await self._ready(callers) == 200
                batcher.terminate()
                while await self._ready(callers) != 503:  # noqa: ASYNC110 - in another process
                    await asyncio.sleep(0.01)
                await seen(upstream, 1)
                late = asyncio.create_task(callers.embed("d"))
                await seen(upstream, 1)
                gate.open.set()
                replies = await asyncio.gather(*sent, waiting, late)
                code = await batcher.finish()

        assert [body["data"] for _, body in replies] == [vector(text) for text in "abcd"]
        assert code == 0
        assert "draining: 3 callers in hand" in batcher.said

    async def test_what_has_been_passed_through_holds_no_drain_up(self) -> None:
        with Upstream() as upstream, BatcherProcess(upstream.url, "--max-latency", 0) as batcher:
            async with Callers(batcher) as callers:
                async with callers.session.get("/echo/a") as reply:
                    assert reply.status == 200
                await callers.embed("a")
                await callers.until("in_hand", 0)
                loop = asyncio.get_running_loop()
                began = loop.time()
                batcher.terminate()
                code = await batcher.finish()

        assert code == 0
        assert loop.time() - began < 11, "it waits for nobody but those who may still come"

    async def test_who_has_no_answer_at_the_end_is_told_so(self) -> None:
        gate = Gate()
        with Upstream(gate) as upstream, BatcherProcess(upstream.url, "--max-latency", 0, hurried=True) as batcher:
            async with Callers(batcher) as callers:
                asked = asyncio.create_task(callers.embed("a"))
                await seen(upstream, 1)
                batcher.terminate()
                status, body = await asked
                code = await batcher.finish()
                gate.open.set()

        assert (status, body["error"]["message"], code) == (503, "the batcher is shutting down", 1)

    async def test_a_stream_that_does_not_end_is_cut_off(self) -> None:
        with Upstream() as upstream, BatcherProcess(upstream.url, hurried=True) as batcher:
            async with Callers(batcher) as callers, callers.session.post("/v1/chat/completions", json={}) as reply:
                await reply.content.readline()
                batcher.terminate()
                assert await batcher.finish() == 1
                with pytest.raises(aiohttp.ClientError):
                    await reply.content.read()

    async def test_a_second_signal_ends_it_without_waiting(self) -> None:
        gate = Gate()
        with Upstream(gate) as upstream, BatcherProcess(upstream.url, "--max-latency", 0) as batcher:
            async with Callers(batcher) as callers:
                asked = asyncio.create_task(callers.embed("a"))
                await seen(upstream, 1)
                batcher.terminate()
                while "draining" not in batcher.said:  # noqa: ASYNC110 - in another process
                    await asyncio.sleep(0.01)
                batcher.terminate()
                status, body = await asked
                code = await batcher.finish()
                gate.open.set()

        assert (status, body["error"]["message"], code) == (503, "the batcher is shutting down", 1)

    @staticmethod
    async def _ready(callers: Callers) -> int:
        async with callers.session.get("/nightshift/readyz") as reply:
            return reply.status
