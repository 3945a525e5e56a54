"""The engine of a worker in the tests' pods: the canned one, in the standard library alone, since it is handed to the container
as its text.

It stands where vLLM would, which takes a minute of both cores for each start. It asks the witness, if there is one, before it
answers, and so works no faster than a test lets it: what is to be broken in the middle of a run is held there, however slow the
machine is. With ENGINE_SEATS it computes so many rows at once, each in ENGINE_ROW_S, and says at /metrics what runs and waits.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
import threading
import time
import urllib.request
from array import array
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PATIENCE_S = 600
METRICS = 'vllm:num_requests_running{{engine="0"}} {}\nvllm:num_requests_waiting{{engine="0"}} {}\n'


def tell(what: str, texts: list[str]) -> None:
    """Returns when the witness has heard it; of "sent", when it lets the request pass."""
    if "WITNESS" not in os.environ:
        return
    body = json.dumps({"what": what, "pod": os.environ["POD_NAME"], "texts": texts}).encode()
    urllib.request.urlopen(urllib.request.Request(os.environ["WITNESS"], body), timeout=PATIENCE_S).close()


def vector_of(text: str) -> list[float]:
    return [float(len(text)), float(sum(map(ord, text)) % 1000)]


class Seats:
    """Rows wait until one of `count` seats is free, and hold it for `row_s` seconds. vLLM counts each row as a request."""

    def __init__(self, count: int, row_s: float) -> None:
        self._count = count
        self._row_s = row_s
        self._changed = threading.Condition()
        self.running = self.waiting = 0

    def compute(self, rows: int) -> None:
        with self._changed:
            self.waiting += rows
        while rows:
            with self._changed:
                self._changed.wait_for(lambda: self.running < self._count)
                taken = min(rows, self._count - self.running)
                self.running += taken
                self.waiting -= taken
            time.sleep(self._row_s)
            with self._changed:
                self.running -= taken
                self._changed.notify_all()
            rows -= taken


SEATS = Seats(int(os.environ["ENGINE_SEATS"]), float(os.environ["ENGINE_ROW_S"])) if "ENGINE_SEATS" in os.environ else None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            # What a driver asks once, before it looks at the ledger.
            tell("met", [])
        if self.path == "/metrics" and SEATS is not None:
            self.send(METRICS.format(SEATS.running, SEATS.waiting).encode(), "text/plain")
            return
        self.reply({"data": [{"id": "m", "root": "org/m"}], "version": "canned"})

    def do_POST(self) -> None:
        texts: list[str] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input"]
        tell("sent", texts)
        if SEATS is not None:
            SEATS.compute(len(texts))
        data = [
            {"index": number, "embedding": base64.b64encode(array("f", vector_of(text)).tobytes()).decode()}
            for number, text in enumerate(texts)
        ]
        self.reply({"data": data, "usage": {"prompt_tokens": sum(map(len, texts))}})
        tell("delivered", texts)

    def reply(self, document: Any) -> None:
        self.send(json.dumps(document).encode(), "application/json")

    def send(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, *args: Any, **named: Any) -> None:
        """Says nothing of each request: the witness knows them."""


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A driver that has gone does not wait for its answer."""


if __name__ == "__main__":
    # The first process of a container is not ended by a signal that it does not handle.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    print("serving", flush=True)
    # One of several engines is told its port as vLLM is.
    told = [word.removeprefix("--port=") for word in sys.argv[1:] if word.startswith("--port=")]
    Server(("", int(told[-1] if told else os.environ["ENGINE_PORT"])), Handler).serve_forever()
