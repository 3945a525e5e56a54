"""Small HTTP servers: a Kubernetes API, a model hub, and a front before an emulator that alters its replies."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.canned_cluster import Cluster

HOST = "127.0.0.1"
HOP_BY_HOP = frozenset({"connection", "content-length", "host", "keep-alive", "transfer-encoding", "date", "server"})


@dataclass
class Answer:
    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


Respond = Callable[[str, str, dict[str, str], bytes], Answer]
"""(method, path with query, headers, body) to the answer."""


@contextmanager
def serving(respond: Respond) -> Iterator[str]:
    """The server's base URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            answer = respond(self.command, self.path, dict(self.headers.items()), body)
            self.send_response_only(answer.status)
            self.send_header("Date", self.date_time_string())
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _any  # noqa: N815 - the standard library's names

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer((HOST, 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@dataclass
class Front:
    """Passes everything to `upstream`. By method and path: refuse, what it answers instead; alter, what an answer becomes."""

    upstream: str
    refuse: Callable[[str, str], Answer | None] = lambda _method, _path: None
    alter: Callable[[str, str, Answer], Answer] = lambda _method, _path, answer: answer

    def respond(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        if refused := self.refuse(method, path):
            return refused
        sent = {name: value for name, value in headers.items() if name.lower() not in HOP_BY_HOP}
        request = urllib.request.Request(f"{self.upstream}{path}", data=body or None, headers=sent, method=method)
        try:
            with urllib.request.urlopen(request, timeout=600) as reply:
                answer = Answer(reply.status, reply.read(), _kept(reply.headers))
        except urllib.error.HTTPError as error:
            answer = Answer(error.code, error.read(), _kept(error.headers))
        return self.alter(method, path, answer)


def _kept(headers: Any) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in HOP_BY_HOP}


def cluster_api(cluster: Cluster) -> Respond:
    def respond(method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        status, document = cluster.answer(path.partition("?")[0], json.loads(body) if body else None)
        return Answer(status, json.dumps(document).encode(), {"Content-Type": "application/json"})

    return respond


@dataclass
class Hub:
    """revisions: that it has, of any model."""

    revisions: tuple[str, ...] = ("main",)

    def respond(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        revision = path.partition("?")[0].rpartition("/")[2]
        if revision not in self.revisions:
            return Answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        return Answer(200, json.dumps({"sha": "a" * 40, "siblings": []}).encode())
