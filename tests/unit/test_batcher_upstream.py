"""What a failure of the batcher's own means for its callers. Those of the server: tests/integration/stream/test_batcher.py."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import orjson
import pytest

from nightshift.driver.http import HttpClient, NoDescriptors, Response
from nightshift.stream.batcher.dispatch import Answer, Caller
from nightshift.stream.batcher.metrics import Metrics
from nightshift.stream.batcher.routes import Routes
from nightshift.stream.batcher.upstream import Upstream

pytestmark = pytest.mark.unit


class Client:
    """Answers each request with the next of these; raises those that are errors."""

    def __init__(self, *outcomes: Response | Exception) -> None:
        self._outcomes = list(outcomes)
        self.bodies: list[Any] = []

    async def request(self, _method: str, _path: str, body: bytes, _headers: object, *, timeout_s: float) -> Response:
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


async def answers(client: Client, *callers: Caller) -> list[tuple[int, dict[str, str], Any]]:
    await Upstream(cast(HttpClient, client), Metrics(), 1.0).send(list(callers))
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


async def test_who_leaves_while_a_request_is_halved_is_not_sent_again() -> None:
    first, second, third, fourth = (a_caller(text) for text in "abcd")

    class Leaving(Client):
        async def request(self, *arguments: Any, timeout_s: float) -> Response:
            third.answer.cancel()
            return await super().request(*arguments, timeout_s=timeout_s)

    client = Leaving(reply(status=400), reply("A", "B"), reply("D"))
    found = await answers(client, first, second, third, fourth)

    assert client.bodies == [["a", "b", "c", "d"], ["a", "b"], "d"]
    assert [body["data"][0]["embedding"] for _, _, body in found] == ["A", "B", "D"]
