"""An engine on a bad night: replies that are half right, for one row among many. Each costs its own row, and no other."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
from array import array
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from aiohttp import web

from nightshift import exits
from nightshift.run import seal
from nightshift.store import open_store
from tests.builders import a_spec
from tests.integration.driver.canned import CannedEngine, vector_of
from tests.integration.driver.runs import DriverProcess, prepare
from tests.integration.driver.serving import ThreadedServer
from tests.integration.driver.tables import dead, prepare_table

pytestmark = [pytest.mark.integration, pytest.mark.gate]


def reply(text: Any, reason: str | None = "stop", **others: Any) -> dict[str, Any]:
    return {
        "choices": [{"index": 0, "message": {"content": text}, "finish_reason": reason}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1},
        **others,
    }


def tokens(prompt: Any, output: Any) -> dict[str, Any]:
    return reply("fine", usage={"prompt_tokens": prompt, "completion_tokens": output})


ODD: Final = "nul \x00 bell \x07 \u2028\ufeff\uffff u\u0308 \N{GRINNING FACE}\u200d \U0010ffff " + "long " * 50_000

ANSWERED: Final[dict[str, tuple[bytes, str]]] = {
    "odd characters": (json.dumps(reply(ODD)).encode(), ODD),
    "odd characters, not escaped": (json.dumps(reply(ODD), ensure_ascii=False).encode(), ODD),
    "no text": (json.dumps(reply("")).encode(), ""),
    "no content": (json.dumps(reply(None)).encode(), ""),
    "tokens below zero": (json.dumps(tokens(-(10**6), -1)).encode(), "fine"),
    "tokens without end": (json.dumps(tokens(2**64 - 1, 10**40)).encode(), "fine"),
    "tokens of another type": (json.dumps(tokens(True, "7")).encode(), "fine"),
    "no usage": (json.dumps(reply("fine", usage=None)).encode(), "fine"),
    "a name twice": (b'{"choices": [], ' + json.dumps(reply("fine")).encode()[1:], "fine"),
}
"""Replies that hold an answer, and the answer."""

DEAD: Final[dict[str, tuple[bytes, str]]] = {
    "no reason": (json.dumps(reply("half of", None)).encode(), "invalid_output"),
    "an error": (b'{"error": {"message": "all is lost", "code": 500}}', "engine_error"),
    "two choices": (json.dumps({"choices": reply("a")["choices"] * 2}).encode(), "invalid_output"),
    "content of another type": (json.dumps(reply(["a"])).encode(), "invalid_output"),
    "half a character": (json.dumps(reply("x")).replace('"x"', '"\\ud83d"').encode(), "invalid_output"),
    "not UTF-8": (json.dumps(reply("x")).encode().replace(b'"x"', b'"\xff"'), "invalid_output"),
    "deep": (b"[" * 200_000 + b"]" * 200_000, "invalid_output"),
    "deep in an object": (b'{"choices":' + b"[" * 1000 + b"]" * 1000 + b"}", "invalid_output"),
    "a number too large": (json.dumps(reply("x", usage={"prompt_tokens": 7})).replace("7", "1e999").encode(), "invalid_output"),
    "not a number": (json.dumps(reply("x", usage={"prompt_tokens": 7})).replace("7", "NaN").encode(), "invalid_output"),
    "packed": (gzip.compress(json.dumps(reply("x")).encode()), "invalid_output"),
    "nothing": (b"", "invalid_output"),
    "cut": (json.dumps(reply("x")).encode()[:-1], "invalid_output"),
    "two objects": (json.dumps(reply("x")).encode() * 2, "invalid_output"),
    "a list": (json.dumps([reply("x")]).encode(), "invalid_output"),
}
"""Replies that hold none, and the reason of the dead letter."""


class QuirkyEngine(ThreadedServer):
    """Answers each text with what `ANSWERED` or `DEAD` has under it, and any other text with itself."""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/{path:health|version|v1/models}", self._introduce),
            web.post("/v1/chat/completions", self._answer),
        ]

    async def _introduce(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m", "root": "org/m"}], "version": "quirky"})

    async def _answer(self, request: web.Request) -> web.Response:
        text = (await request.json())["messages"][-1]["content"]
        await asyncio.sleep(0.005)
        body, _ = (ANSWERED | DEAD).get(text, (json.dumps(reply(text)).encode(), ""))
        return web.Response(body=body, content_type="application/json")


def test_a_reply_that_is_half_right_costs_its_own_row_and_no_other(tmp_path: Path) -> None:
    """And what is said of tokens is not added up if no request can have it."""
    plain = [f"plain {n}" for n in range(40)]
    texts = [text for pair in zip(plain, [*ANSWERED, *DEAD], strict=False) for text in pair] + plain[len(ANSWERED | DEAD) :]
    spec = a_spec(task="chat", request={"user": "{{ text }}"}, dead_letters__tolerate=len(DEAD))
    prepared = prepare_table(tmp_path, spec, {"text": pa.array(texts, pa.string())})
    with QuirkyEngine(0) as engine:
        driver = DriverProcess(prepared, f"http://127.0.0.1:{engine.port}", hurried=True)
        assert driver.finish() == exits.DONE, driver.log[-5:]
    rows = prepared.rows()

    assert dead(rows) == {n: DEAD[text][1] for n, text in enumerate(texts) if text in DEAD}
    assert {n: rows[n]["prediction"] for n, text in enumerate(texts) if text not in DEAD} == {
        n: ANSWERED[text][1] if text in ANSWERED else text for n, text in enumerate(texts) if text not in DEAD
    }
    manifest = seal.seal(open_store(prepared.url), prepared.run, spec, prepared.plan)
    silent = ("tokens", "no usage")
    said = sum(not text.startswith(silent) for text in texts if text not in DEAD)
    assert (manifest.prompt_tokens, manifest.output_tokens) == (said, said)


SPOILED: Final[dict[str, tuple[list[float] | None, str]]] = {
    "another width": ([1.0, 1.0, 1.0], "an embedding of 3 numbers, though one model made all, and most have 2"),
    "no number": ([1.0, float("nan")], "the embedding has a value that is not a finite number"),
    "null": (None, "not an embedding: "),
}


@pytest.mark.parametrize("kind", SPOILED)
@pytest.mark.parametrize("at", [0, 21])
def test_a_spoiled_vector_is_never_in_the_table_and_costs_no_other_row(tmp_path: Path, at: int, kind: str) -> None:
    """Whether it is in the first reply that the attempt sees or in a later one. The reply's other vectors are kept."""
    texts: list[str | None] = [f"text number {n}" for n in range(40)]
    spoiled, said = SPOILED[kind]
    requests: list[list[str]] = []

    async def spoils(asked: list[str]) -> web.Response | None:
        requests.append(asked)
        if texts[at] not in asked:
            return None
        vectors = [spoiled if text == texts[at] else vector_of(text) for text in asked]
        coded = [vector and base64.b64encode(array("f", vector).tobytes()).decode() for vector in vectors]
        return web.json_response({"data": [{"index": n, "embedding": each} for n, each in enumerate(coded)]})

    prepared = prepare(tmp_path, texts, dead_letters__tolerate=1)
    with CannedEngine(spoils) as engine:
        driver = DriverProcess(prepared, engine.url, hurried=True)
        assert driver.finish() == exits.DONE, driver.log[-5:]

    sizes = [len(asked) for asked in requests]
    assert set(sizes) == {1, max(sizes)}, f"no request is halved: {sizes}"
    assert all(asked == [texts[at]] for asked in requests if len(asked) == 1), "only the row at fault is sent alone"
    rows = prepared.rows()
    assert dead(rows) == {at: "invalid_output"}
    assert said in rows[at]["dead_message"]
    assert [row["prediction"] for n, row in sorted(rows.items()) if n != at] == [
        vector_of(text or "") for n, text in enumerate(texts) if n != at
    ]
