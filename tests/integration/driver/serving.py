"""An aiohttp server in a thread of its own, for as long as a ``with`` lasts."""

from __future__ import annotations

import asyncio
import ssl
import threading
from types import TracebackType
from typing import Final, Self

from aiohttp import web

BACKLOG: Final = 2048
"""A client that opens many connections at once waits seconds for those that find no room."""


class ThreadedServer:
    """Serves `routes` on `port` of this machine, at its address `host`; 0 takes a free one, which `port` then tells."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.port = port
        self.host = host
        self.tls: ssl.SSLContext | None = None

    def routes(self) -> list[web.RouteDef]:
        raise AssertionError("every server says what it serves")

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(started,), daemon=True)
        self._thread.start()
        while not started.wait(0.1):
            assert self._thread.is_alive(), "the server did not start; its thread says why"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _serve(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        app = web.Application(client_max_size=1 << 26)
        app.add_routes(self.routes())
        runner = web.AppRunner(app, shutdown_timeout=0, access_log=None)
        self._loop.run_until_complete(runner.setup())
        self._loop.run_until_complete(web.TCPSite(runner, self.host, self.port, backlog=BACKLOG, ssl_context=self.tls).start())
        self.port = runner.addresses[0][1]
        started.set()
        self._loop.run_forever()
        # Requests that a behaviour made hang would hold the clean-up for as long as they hang.
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(runner.cleanup())
