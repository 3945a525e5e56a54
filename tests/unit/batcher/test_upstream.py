"""What a failure of the batcher's own means for its callers. Those of the server: tests/integration/stream/test_batcher.py."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Any, cast

import orjson
import pytest

from nightshift.batcher.dispatch import Answer, Caller
from nightshift.batcher.metrics import Metrics
from nightshift.batcher.readiness import Separate
from nightshift.batcher.routes import Routes
from nightshift.batcher.upstream import Upstream
from nightshift.driver.http import HttpClient, NoDescriptors, Response

pytestmark = pytest.mark.unit


class Client:
    """Answers each request with the next of these; raises those that are errors."""

    def __init__(self, *outcomes: Response | Exception) -> None:
        self._outcomes = list(outcomes)
        self.bodies: list[Any] = []

    async def request(
        self, _method: str, _path: str, body: bytes, _headers: object, *, timeout_s: float, **_: object
    ) -> Response:
        self.bodies.append(orjson.loads(body)["input"])
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def a_caller(text: str) -> Caller:
    endpoint = Routes().find("POST", "/v1/embeddings")
    assert endpoint is not None
    body = orjson.dumps({"input": text})
    asked = endpoint.read(body)
    assert asked is not None
    answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    return Caller(endpoint, "/v1/embeddings", (), {}, body, asked, 0.0, answer)


async def answers(client: Client | Server, *callers: Caller) -> list[tuple[int, dict[str, str], Any]]:
    await Upstream(cast(HttpClient, client), Metrics(), Separate(), 1.0).send(list(callers), contextlib.nullcontext)
    found = [caller.answer.result() for caller in callers if not caller.answer.cancelled()]
    return [(answer.status, answer.headers, orjson.loads(answer.body)) for answer in found]


def reply(*texts: str, status: int = 200) -> Response:
    data = [{"index": n, "embedding": text} for n, text in enumerate(texts)]
    headers = {
        "content-type": "application/json",
        "content-length": "9",
        "connection": "close",
        "set-cookie": "a=b",
        "x-own": "1",
    }
    return Response(status, headers, orjson.dumps({"data": data}))


async def test_without_descriptors_callers_are_to_come_again() -> None:
    client = Client(NoDescriptors("too many open files"))

    for status, headers, body in await answers(client, a_caller("a"), a_caller("b")):
        assert (status, headers["retry-after"]) == (429, "1")
        assert body["error"]["message"] == "the batcher has no room for another connection: too many open files"


async def test_a_fault_of_the_batcher_leaves_nobody_without_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    found = await answers(Client(RuntimeError("a bug")), a_caller("a"), a_caller("b"))

    assert [(status, body["error"]["message"]) for status, _, body in found] == [
        (500, "the batcher failed; its log says how")
    ] * 2
    assert "a bug" in caplog.text


async def test_of_the_replys_headers_those_that_are_everybodys() -> None:
    found = await answers(Client(reply("A", "B")), a_caller("a"), a_caller("b"))

    assert [headers for _, headers, _ in found] == [
        {"content-type": "application/json", "x-own": "1", "x-nightshift-batch-callers": "2"}
    ] * 2


class Server:
    """Answers each request as `respond` does for its texts. rounds: those sent at once. most: how many they were."""

    def __init__(self, respond: Callable[[list[str]], Response]) -> None:
        self._respond = respond
        self.rounds: list[list[list[str]]] = []
        self._open = self.most = 0

    async def request(
        self, _method: str, _path: str, body: bytes, _headers: object, *, timeout_s: float, **_: object
    ) -> Response:
        asked = orjson.loads(body)["input"]
        texts = asked if isinstance(asked, list) else [asked]
        if not self._open:
            self.rounds.append([])
        self.rounds[-1].append(texts)
        self._open += 1
        self.most = max(self.most, self._open)
        await asyncio.sleep(0.01)
        self._open -= 1
        return self._respond(texts)


def refusing(*bad: str, status: int = 400) -> Callable[[list[str]], Response]:
    def respond(texts: list[str]) -> Response:
        if set(bad) & set(texts):
            return Response(status, {}, b'{"error": {"message": "too long"}}')
        return reply(*(text.upper() for text in texts))

    return respond


def embedding(answer: tuple[int, dict[str, str], Any]) -> Any:
    return answer[2]["data"][0]["embedding"]


@pytest.mark.parametrize("bad", [0, 7, 31])
async def test_one_bad_caller_delays_the_others_by_one_request(bad: int) -> None:
    texts = [f"t{number}" for number in range(32)]
    server = Server(refusing(texts[bad]))
    found = await answers(server, *map(a_caller, texts))

    assert found.pop(bad)[0] == 400
    refused = texts.pop(bad)
    assert [embedding(each) for each in found] == [text.upper() for text in texts]
    assert [len(parts) for parts in server.rounds] == [1, 9, 1]
    assert server.rounds[2] == [[refused]]


@pytest.mark.parametrize("seed", range(10))
async def test_whatever_is_bad_costs_only_itself(seed: int) -> None:
    draw = random.Random(seed)
    texts = [f"t{number}" for number in range(draw.randint(2, 40))]
    bad = draw.sample(texts, draw.randint(0, len(texts)))
    server = Server(refusing(*bad, status=draw.choice([400, 413, 422, 500])))
    found = await answers(server, *map(a_caller, texts))

    assert [status == 200 for status, _, _ in found] == [text not in bad for text in texts]
    assert all(embedding(each) == text.upper() for text, each in zip(texts, found, strict=True) if text not in bad)
    assert sum(map(len, server.rounds)) <= 2 * len(texts)


async def test_a_part_that_the_server_has_no_room_for_fails_only_those_whom_no_other_part_answers() -> None:
    texts = [f"t{number}" for number in range(6)]

    def respond(asked: list[str]) -> Response:
        if len(asked) == 6:
            return Response(400, {}, b"{}")
        return Response(429, {"retry-after": "3"}, b"{}") if "t0" in asked else reply(*(text.upper() for text in asked))

    found = await answers(Server(respond), *map(a_caller, texts))
    assert [status for status, _, _ in found] == [429, 200, 200, 200, 200, 200]
    assert found[0][1]["retry-after"] == "3"


async def test_a_reply_that_cannot_be_divided_is_asked_for_again_by_each_alone() -> None:
    """So that an answer does not depend on who else asks."""

    def respond(asked: list[str]) -> Response:
        return Response(200, {}, orjson.dumps({"data": {"all": asked}}))

    server = Server(respond)
    found = await answers(server, *map(a_caller, "abc"))

    assert [(status, body) for status, _, body in found] == [(200, {"data": {"all": [text]}}) for text in "abc"]
    assert server.rounds == [[["a", "b", "c"]], [["a"], ["b"], ["c"]]]
    assert {headers["x-nightshift-batch-callers"] for _, headers, _ in found} == {"1"}


async def test_who_leaves_meanwhile_is_not_sent_again() -> None:
    first, second, third, fourth = (a_caller(text) for text in "abcd")

    def respond(asked: list[str]) -> Response:
        third.answer.cancel()
        return Response(400, {}, b"{}") if len(asked) > 1 else reply(asked[0].upper())

    server = Server(respond)
    found = await answers(server, first, second, third, fourth)

    assert server.rounds == [[["a", "b", "c", "d"]], [["a"], ["b"], ["d"]]]
    assert [embedding(each) for each in found] == ["A", "B", "D"]


async def test_further_requests_at_once_take_a_seat_each() -> None:
    """As many as there are; the rest follow one after the other in the place that the bundle has."""
    seats = asyncio.Semaphore(2)
    server = Server(refusing("t0"))
    callers = [a_caller(f"t{number}") for number in range(32)]
    await Upstream(cast(HttpClient, server), Metrics(), Separate(), 1.0).send(callers, lambda: seats)

    assert server.most == 3
    assert [caller.answer.result().status for caller in callers] == [400] + [200] * 31
    assert not seats.locked()
