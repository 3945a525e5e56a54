"""`nightshift batch` and servers that are not vLLM: health that is slow or red, TLS, and none at all."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from aiohttp import web

from local.ports import new_port
from nightshift import exits
from tests.integration.driver.batches import (
    BatchProcess,
    ChatServer,
    a_request,
    answer_to,
    content_of,
    read_lines,
    write_requests,
)
from tests.integration.driver.peers import certificates

pytestmark = [pytest.mark.integration, pytest.mark.gate]


class OtherServer(ChatServer):
    """Lists a model. health: how its ``/health`` answers, after so many seconds; asked: how often it was."""

    def __init__(self, status: int, delay_s: float = 0.0, behaviour: object = None) -> None:
        super().__init__(behaviour, delay_s=0.02)  # type: ignore[arg-type]
        self._status = status
        self._health_s = delay_s
        self.asked = 0

    def routes(self) -> list[web.RouteDef]:
        return [*super().routes(), web.get("/health", self._health), web.get("/v1/models", self._models)]

    async def _health(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        await asyncio.sleep(self._health_s)
        return web.Response(status=self._status)

    async def _models(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"data": [{"id": "m"}]})


def a_file(folder: Path, texts: list[str]) -> Path:
    return write_requests(folder / "in.jsonl", [a_request(text, text) for text in texts])


@pytest.mark.parametrize(("status", "delay_s"), [(503, 0.0), (200, 60.0)])
def test_a_health_path_that_is_red_or_slow_holds_up_no_line(tmp_path: Path, status: int, delay_s: float) -> None:
    async def behave(text: str) -> web.StreamResponse | None:
        return web.json_response({"error": "no"}, status=500) if text == "bad" else None

    texts = [f"text {n}" for n in range(60)] + ["bad"]
    source, out = a_file(tmp_path, texts), tmp_path / "out.jsonl"

    with OtherServer(status, delay_s, behave) as server:
        batch = BatchProcess("-i", source, "-o", out, "--base-url", server.url, "--wait", 0.1, hurried=True)
        assert batch.finish() == 0, batch.said

    lines = read_lines(out)
    assert [content_of(line) for line in lines[:-1]] == [answer_to(text) for text in texts[:-1]]
    assert lines[-1]["response"]["status_code"] == 500
    assert "/health" in batch.said
    assert "but /v1/models answers: that decides from now on" in batch.said
    assert server.asked == 1
    assert "engine lost" not in batch.said


def test_a_server_that_cannot_be_reached_is_named_with_the_reason(tmp_path: Path) -> None:
    source, out = a_file(tmp_path, ["a"]), tmp_path / "out.jsonl"
    arguments = ("-i", source, "-o", out, "--wait", 0.2)
    proxied = {"HTTPS_PROXY": "http://127.0.0.1:9"}
    server, _ = certificates(tmp_path)
    plain, secret = ChatServer(), ChatServer()
    secret.tls = server

    with plain, secret:
        tls = secret.url.replace("http:", "https:")
        ends = {
            "refused": BatchProcess(*arguments, "--base-url", f"http://127.0.0.1:{new_port()}"),
            "unknown": BatchProcess(*arguments, "--base-url", "https://nowhere.invalid/v1", environment=proxied),
            "http to a TLS port": BatchProcess(*arguments, "--base-url", secret.url),
            "https to a plain port": BatchProcess(*arguments, "--base-url", plain.url.replace("http:", "https:")),
            "not trusted": BatchProcess(*arguments, "--base-url", tls),
        }
        codes = {name: batch.finish() for name, batch in ends.items()}
        trusted = {"SSL_CERT_FILE": str(tmp_path / "server.pem")}
        assert BatchProcess(*arguments, "--base-url", tls, environment=trusted).finish() == 0

    assert codes == {
        "refused": exits.RESUME,
        "unknown": exits.RESUME,
        "http to a TLS port": exits.RESUME,
        "https to a plain port": 2,
        "not trusted": 2,
    }
    said = {name: batch.said for name, batch in ends.items()}
    assert "does not answer: no connection: [Errno 111]" in said["refused"]
    assert "does not answer: no connection: [Errno -" in said["unknown"]
    assert "HTTPS_PROXY is set, but nightshift connects directly" in said["unknown"]
    assert "does not answer: /health: " in said["http to a TLS port"]
    assert "it does not speak TLS. Write http://" in said["https to a plain port"]
    assert "its certificate is not trusted: self-signed certificate" in said["not trusted"]
    assert content_of(read_lines(out)[0]) == answer_to("a")


class NamedServer(ChatServer):
    """Lists one model, and answers whatever model a line asks for, as some servers do."""

    model = "m"

    def routes(self) -> list[web.RouteDef]:
        return [*super().routes(), web.get("/v1/models", self._models)]

    async def _models(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"data": [{"id": self.model, "root": f"org/{self.model}"}, {"id": "a", "parent": "m"}]})


def test_a_server_that_comes_back_with_another_model_gets_no_line(tmp_path: Path) -> None:
    texts = [f"text {n}" for n in range(200)]
    source, port = a_file(tmp_path, texts), new_port()
    given = ("-i", source, "-o", tmp_path / "out.jsonl", "--base-url", f"http://127.0.0.1:{port}/v1", "--wait", 30)

    with NamedServer(delay_s=0.2, port=port) as server:
        batch = BatchProcess(*given, "--max-inflight", 8, hurried=True)
        while len(server.seen) < 40:
            time.sleep(0.01)
    with NamedServer(port=port) as other:
        other.model = "n"
        assert batch.finish() == exits.BAD_INPUT
        assert other.seen == []
    for part in ("serves something else", "Expected: m (org/m)", "Found: n (org/n)", "--fresh to start over"):
        assert part in batch.said

    with NamedServer(port=port) as server:
        again = BatchProcess(*given, hurried=True)
        assert again.finish() == exits.DONE, again.said
    assert [content_of(line) for line in read_lines(tmp_path / "out.jsonl")] == [answer_to(text) for text in texts]
