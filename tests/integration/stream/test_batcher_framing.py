"""Where a request ends: whatever a caller sends, nothing within it is ever a request of its own to the server behind."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from tests.integration.fronts import Front, envoy, haproxy, nginx
from tests.integration.stream.attacks import ATTACKS, HIDDEN, LINES, PLAIN, UPGRADES, Attack, chunked, length_of
from tests.integration.stream.servers import BatcherProcess, Callers, Seen, Upstream

pytestmark = pytest.mark.integration

PATHS = (b"/v1/embeddings", b"/v1/completions", b"/echo/first")
VERSIONS = (b"1.1", b"1.0")
NGINX = """server { listen 127.0.0.1:{port}; location / {
proxy_pass http://127.0.0.1:BATCHER; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_request_buffering off; } }"""
HAPROXY = """
defaults
    mode http
    timeout connect 10s
    timeout client 10s
    timeout server 10s
listen batcher
    bind 127.0.0.1:{port}
    server batcher 127.0.0.1:BATCHER"""
MANAGER = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
ENVOY = """
static_resources:
  listeners:
  - address: {socket_address: {address: 127.0.0.1, port_value: {port}}}
    filter_chains:
    - filters:
      - name: http
        typed_config:
          "@type": MANAGER
          stat_prefix: batcher
          http_protocol_options: {accept_http_10: true}
          route_config:
            virtual_hosts: [{name: batcher, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: batcher}}]}]
          http_filters:
          - name: router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
  clusters:
  - name: batcher
    load_assignment:
      cluster_name: batcher
      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: BATCHER}}}}]}]
""".replace("MANAGER", MANAGER)
FIRST_S = 5.0
FRONTS: dict[str, tuple[Front, str]] = {"nginx": (nginx, NGINX), "HAProxy": (haproxy, HAPROXY), "Envoy": (envoy, ENVOY)}


class Watching(Upstream):
    """Notes every request, whatever its path: its body as it came."""

    def routes(self) -> list[web.RouteDef]:
        return [web.route("*", "/{rest:.*}", self._any)]

    async def _any(self, request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        body = await request.read()
        if request.path != "/health":
            self.seen.append(Seen(request.path_qs, headers, [body], {}))
        return web.json_response({"data": [{"index": 0}], "choices": [{"index": 0}]})


async def sent(port: int, *packets: bytes) -> bytes:
    """What comes back until nothing more does for a while; a machine that is busy may take seconds for the first byte."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    reply = bytearray()
    try:
        for packet in packets:
            writer.write(packet)
            await asyncio.sleep(0.03)
        while piece := await asyncio.wait_for(reader.read(1 << 16), 0.5 if reply else FIRST_S):
            reply += piece
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.transport.abort()
    return bytes(reply)


async def attack(port: int, each: Attack, upstream: Watching, *, proxied: bool = False) -> list[str]:
    """What is wrong with it, a line for each way to send it."""
    ways = [(path, version, packets) for path in PATHS for version in VERSIONS for packets in (1, 2)]
    upstream.seen.clear()

    async def send(number: int, path: bytes, version: bytes, packets: int) -> bytes:
        head, body = each.sent(path, version, number)
        return await sent(port, *((head + body,) if packets == 1 else (head, body)))

    replies = await asyncio.gather(*(send(number, *way) for number, way in enumerate(ways)))
    # What a proxy itself takes for a second request of the same caller, it answers as one, too.
    two = sum(reply.count(b" 200 OK\r\n") > 1 for reply in replies) if proxied else 0
    hidden = sum("x-user" in seen.headers for seen in upstream.seen)
    wrong = ["a request with another's name got through"] if hidden > two else []
    for number, (way, reply) in enumerate(zip(ways, replies, strict=True)):
        bodies = [seen.items[0] for seen in upstream.seen if seen.headers.get("x-attack") == str(number)]
        wrong += [f"{way}: {reply[:120]!r}: {problem}" for problem in problems(each, bodies, reply, old=way[1] == b"1.0")]
    if len(upstream.seen) > len(ways) + two:
        wrong.append(f"{len(upstream.seen)} requests of {len(ways)}")
    return [f"{each.name}: {problem}" for problem in wrong]


def problems(each: Attack, bodies: list[bytes], reply: bytes, *, old: bool) -> Iterator[str]:
    """bodies: of the requests that the server saw. old: sent as HTTP/1.0."""
    if len(bodies) > 1:
        yield f"the server saw {len(bodies)} requests"
    if any(body != each.whole and HIDDEN in body for body in bodies):
        yield "what is hidden got through in another request's body"
    if each.whole is not None and any(body != each.whole for body in bodies):
        yield f"the server saw {bodies[0]!r}"
    answers = re.findall(rb"HTTP/1\.[01] (\d\d\d)", reply)
    if len([status for status in answers if status == b"200"]) > 1:
        yield f"{len(answers)} answers"
    # A body in chunks is not HTTP/1.0.
    expected = ([b"400"], 0) if b"chunked" in each.head and old else ([b"200"], 1)
    if each.name.startswith("upgrade") and (answers, len(bodies)) != expected:
        yield "an offer that is declined is not answered"


@asynccontextmanager
async def served(folder: Path, front: str = "") -> AsyncIterator[tuple[Watching, int, BatcherProcess]]:
    with Watching() as upstream, BatcherProcess(upstream.url, "--max-batch-size", 1) as batcher:
        if not front:
            yield upstream, batcher.port, batcher
            return
        run, config = FRONTS[front]
        with run(folder, config.replace("BATCHER", str(batcher.port))) as port:
            yield upstream, port, batcher


@pytest.mark.parametrize("front", ["", *FRONTS])
async def test_nothing_is_hidden_in_a_request(tmp_path: Path, front: str) -> None:
    wrong = []
    async with served(tmp_path, front) as (upstream, port, batcher):
        for each in ATTACKS:
            wrong += await attack(port, each, upstream, proxied=bool(front))
        async with Callers(batcher) as callers:
            assert (await callers.embed("honest"))[0] == 200
            await callers.until("in_hand", 0)
    assert "Traceback" not in batcher.said
    if front:
        # What a proxy itself makes of an offer to upgrade, or of HTTP/1.0, is its own.
        wrong = [each for each in wrong if "got through" in each or "requests" in each]
    assert wrong == [], "\n".join(wrong)


@pytest.mark.gate
async def test_an_offer_to_upgrade_is_declined_and_its_body_read(tmp_path: Path) -> None:
    wrong = []
    async with served(tmp_path) as (upstream, port, _):
        for each in ATTACKS:
            if each.name.startswith(("upgrade", "both", "no encoding", "values")):
                wrong += await attack(port, each, upstream)
    assert wrong == [], "\n".join(wrong)


@pytest.mark.gate
async def test_nothing_behind_an_offer_to_upgrade_is_taken_for_a_request(tmp_path: Path) -> None:
    """The rest of what follows in the same packet is read together with it: a body would begin the next packet."""
    firsts = [
        b"%b HTTP/%b\r\nHost: h\r\nContent-Type: application/json\r\n%b\r\n%b" % (line, version, offer, rest)
        for offer in UPGRADES
        for version in VERSIONS
        for line in (b"GET /echo/a", b"GET /nightshift/livez", b"HEAD /echo/a", b"POST /v1/embeddings", b"POST /echo/a")
        for rest in (
            (b"\r\n",)
            if line.startswith((b"GET", b"HEAD"))
            else (length_of(30) + b"\r\n\r\n" + PLAIN, b"Transfer-Encoding: chunked\r\n\r\n" + chunked(PLAIN))
        )
    ]
    behind = b"POST /echo/a HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n" + length_of(len(HIDDEN)) + b"\r\n\r\n"
    async with served(tmp_path) as (upstream, port, batcher):
        for first in firsts:
            start = len(upstream.seen)
            reply = await sent(port, first + behind, HIDDEN)
            assert not any("x-user" in each.headers for each in upstream.seen[start:]), first
            answered = len(upstream.seen) - start + (b"livez" in first)
            assert len(re.findall(rb"HTTP/1\.[01] \d\d\d", reply)) == max(1, answered), (first, reply)
    assert "Traceback" not in batcher.said


@pytest.mark.gate
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_tunnel_is_refused(tmp_path: Path, version: bytes) -> None:
    async with served(tmp_path) as (upstream, port, _):
        for target in (b"/v1/embeddings", b"/echo/a", b"/nightshift/livez", b"h:80"):
            for rest in (b"\r\n", b"Content-Length: 0\r\n\r\n", b"Content-Length: 10\r\n\r\n0123456789"):
                reply = await sent(port, b"CONNECT %b HTTP/%b\r\nHost: h\r\n%b" % (target, version, rest), HIDDEN)
                assert re.findall(rb"HTTP/1\.[01] (\d\d\d)", reply) == [b"400"], (target, rest, reply)
        assert upstream.seen == []


@pytest.mark.gate
@pytest.mark.parametrize("size", [100_000, 300_000, 2_000_000])
async def test_a_body_that_is_sent_ahead_is_no_head(tmp_path: Path, size: int) -> None:
    body = b" " * size
    async with served(tmp_path) as (upstream, port, _):
        second = b"POST /echo/b HTTP/1.1\r\nHost: h\r\n" + length_of(size) + b"\r\n\r\n" + body
        reply = await sent(port, b"GET /echo/a HTTP/1.1\r\nHost: h\r\n\r\n" + second)
        assert reply.count(b"HTTP/1.1 200 OK") == 2
        assert [each.items[0] for each in upstream.seen] == [b"", body]


@pytest.mark.gate
async def test_a_line_that_is_odd_is_refused_or_ends_where_it_ends(tmp_path: Path) -> None:
    """Then what is behind it is a request for everybody: it has an answer of its own."""
    async with served(tmp_path) as (upstream, port, batcher):
        for line in LINES:
            for packets in ((line + HIDDEN,), (line, HIDDEN)):
                reply = await sent(port, *packets)
                answers = re.findall(rb"HTTP/[\d.]+ (\d\d\d) ", reply)
                passed = [each for each in answers if not each.startswith(b"4")]
                assert len(passed) == len(upstream.seen), (line, reply, upstream.seen)
                assert not upstream.seen or upstream.seen[0].path.startswith("/echo/a"), (line, reply, upstream.seen)
                assert answers, (line, reply)
                assert not re.search(rb"HTTP/(?!1\.[01] )[\d.]+ 2", reply), "another version is not served"
                upstream.seen.clear()
    assert "Traceback" not in batcher.said
