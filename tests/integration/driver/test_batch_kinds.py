"""A file of 10,000 lines in which every kind of bad line and of bad reply occurs ten times: which lines are answered."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import web

from tests.integration.driver.batches import (
    BatchProcess,
    ChatServer,
    a_request,
    answer_to,
    content_of,
    read_lines,
    write_requests,
)

pytestmark = pytest.mark.integration

LINES: Final = 10_000
EACH: Final = 10
TIMEOUT_S: Final = 5
CHOICE: Final = {"index": 0, "message": {"role": "assistant", "content": None}, "finish_reason": "length"}
BIG: Final = 123456789012345678901234567890


def error(message: str = "no", **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, **more}}


REPLIES: Final[Mapping[str, tuple[int, Any, int]]] = {
    # kind: status and body (an object is sent as JSON) of the reply, status of the line.
    "400": (400, error(), 400),
    "too long": (400, error("maximum context length is 64 tokens"), 400),
    "401": (401, error("this input needs another key"), 401),
    "402": (402, error("this request needs more credits"), 402),
    "403 of a firewall": (403, b"<html><h1>403 Forbidden</h1></html>", 403),
    "404": (404, error("no such model"), 404),
    "405": (405, {"detail": "Method Not Allowed"}, 405),
    "409": (409, error(), 409),
    "413": (413, b"", 400),
    "418": (418, b"", 418),
    "422": (422, {"detail": [{"loc": ["body", "n"], "msg": "too many"}]}, 400),
    "429": (429, error("Request too large: Limit 30000, Requested 48211"), 429),
    "451": (451, error(), 451),
    "301": (301, b"", 400),
    "500": (500, error("oops"), 500),
    "501": (501, error("not implemented"), 501),
    "503": (503, error("overloaded by this one"), 503),
    "504": (504, b"gateway time-out", 504),
    "not JSON": (200, b"<html>", 502),
    "a list": (200, b"[1]", 502),
    "NaN": (200, b'{"x": NaN}', 502),
    "error in a 200": (200, error(code=502), 502),
    "refused in a 200": (200, {"object": "error", "message": "bad request", "code": 400}, 400),
    "finished by an error": (200, {"choices": [{**CHOICE, "finish_reason": "error"}]}, 500),
    "cut in the reasoning": (200, {"choices": [CHOICE]}, 200),
    "a long integer": (200, {"choices": [{**CHOICE, "id": BIG}]}, 200),
    "indented": (200, json.dumps({"choices": [CHOICE]}, indent=2).encode(), 200),
}
LATE: Final = "late"
LINES_OWN: Final[Mapping[str, dict[str, Any] | str]] = {
    "not an object": "[1]",
    "half a line": '{"custom_id": "half',
    "no url": {"custom_id": "no url", "method": "POST", "body": {}},
    "shutdown": a_request("shutdown", "x", url="/shutdown"),
    "stream": a_request("stream", "x", body={"stream": True}),
    "GET": a_request("GET", "x", method="GET"),
}


async def behave(text: str) -> web.StreamResponse | None:
    kind = text.partition("/")[0]
    if kind == LATE:
        await asyncio.sleep(20 * TIMEOUT_S)
    if kind not in REPLIES:
        return None
    status, body, _ = REPLIES[kind]
    if isinstance(body, bytes):
        return web.Response(status=status, body=body, headers={"Location": "/elsewhere"} if status == 301 else None)
    return web.json_response(body, status=status)


def test_every_kind_costs_its_own_lines_alone(tmp_path: Path) -> None:
    bad: list[tuple[str, dict[str, Any] | str]] = []
    for number in range(EACH):
        bad += [(kind, a_request(kind, f"{kind}/{number}")) for kind in (*REPLIES, LATE)]
        bad += LINES_OWN.items()
    lines = [*bad, *(("good", a_request("good", f"good/{number}")) for number in range(LINES - len(bad)))]
    random.Random(43).shuffle(lines)
    source, out = write_requests(tmp_path / "in.jsonl", [line for _, line in lines]), tmp_path / "out.jsonl"

    with ChatServer(behave) as server:
        batch = BatchProcess("-i", source, "-o", out, "--base-url", server.url, "--timeout", TIMEOUT_S, hurried=True)
        code = batch.finish()

    print(batch.said)
    assert code == 0, batch.said
    got: dict[str, Counter[int]] = {}
    for (kind, line), written in zip(lines, read_lines(out), strict=True):
        got.setdefault(kind, Counter())[written["response"]["status_code"]] += 1
        if kind == "good":
            assert isinstance(line, dict)
            assert content_of(written) == answer_to(line["body"]["messages"][0]["content"])
        elif kind == "a long integer":
            assert written["response"]["body"]["choices"][0]["id"] == BIG
    for kind, statuses in sorted(got.items()):
        print(f"{kind}: {dict(statuses)}")
    assert got == {
        "good": Counter({200: LINES - len(bad)}),
        **{kind: Counter({expected: EACH}) for kind, (_, _, expected) in REPLIES.items()},
        LATE: Counter({504: EACH}),
        **{kind: Counter({400: EACH}) for kind in LINES_OWN},
    }
