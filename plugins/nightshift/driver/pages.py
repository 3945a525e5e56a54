"""A few small pages over HTTP, from a thread that ends with the process: one thread, whoever calls and however many.

For Prometheus and for probes. Others that reach the port can keep it busy, and cost no more than `CONNECTIONS_MOST`
connections: each has `ANSWER_S` in all, and the oldest makes way for a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Final

CONNECTIONS_MOST: Final = 32
ANSWER_S: Final = 5.0
"""From the connection to the end of the reply."""
HEAD_BYTES_MOST: Final = 16 << 10

Page = Callable[[Mapping[str, str]], tuple[int, str, bytes]]
"""The request's headers, their names in small letters -> status, content type, body."""

_WORDS: Final = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}
_TEXT: Final = "text/plain; charset=utf-8"


class Pages:
    """pages: by path. port 0 takes a free one. Raises OSError, OverflowError if it cannot be had."""

    def __init__(self, address: str, port: int, pages: Mapping[str, Page]) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.create_server((address, port), family=family)
        self.port: int = self._socket.getsockname()[1]
        self._pages = pages
        self._open: dict[asyncio.Task[None], None] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="pages", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(asyncio.start_server(self._answer, sock=self._socket, limit=HEAD_BYTES_MOST))
            self._loop.run_forever()
        finally:
            self._socket.close()
            for task in (left := asyncio.all_tasks(self._loop)):
                task.cancel()
            if left:
                self._loop.run_until_complete(asyncio.wait(left))
            self._loop.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._open) >= CONNECTIONS_MOST:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.cancel()
        self._open[task] = None
        try:
            with contextlib.suppress(TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                async with asyncio.timeout(ANSWER_S):
                    writer.write(self._reply(await reader.readuntil(b"\r\n\r\n")))
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
        except asyncio.CancelledError:
            # It made way for another one; nothing waits for it.
            pass
        finally:
            self._open.pop(task, None)
            writer.transport.abort()

    def _reply(self, head: bytes) -> bytes:
        first, *rest = head.decode("latin-1").split("\r\n")
        method, _, target = first.partition(" ")
        page = self._pages.get(target.partition(" ")[0].partition("?")[0])
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
        if method not in ("GET", "HEAD"):
            status, form, body = 405, _TEXT, b"GET only\n"
        elif page is None:
            status, form, body = 404, _TEXT, f"Pages are {', '.join(self._pages)}\n".encode()
        else:
            status, form, body = page(headers)
        first = f"HTTP/1.1 {status} {_WORDS[status]}"
        said = "\r\n".join([first, f"Content-Type: {form}", f"Content-Length: {len(body)}", "Connection: close", "", ""])
        return said.encode() + (b"" if method == "HEAD" else body)
