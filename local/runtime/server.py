"""Serves the API in the agent's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Final

import uvicorn
from starlette.types import ASGIApp

KEEP_ALIVE_S: Final = 600
"""Clients pool connections. If one is closed just as it is used again, a request fails that may not be repeatable."""


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The agent has its own handlers."""
        yield


class Server:
    """host: an address of this machine. port: 0 for any free one."""

    def __init__(self, app: ASGIApp, host: str, port: int) -> None:
        self._socket = socket.create_server((host, port))
        self.url = f"http://{host}:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(
            app,
            http="h11",
            loop="asyncio",
            lifespan="off",
            access_log=False,
            log_config=None,
            log_level="warning",
            timeout_keep_alive=KEEP_ALIVE_S,
            # Watches and logs do not end by themselves.
            timeout_graceful_shutdown=1,
        )
        self._server = _Uvicorn(config)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """The socket listens already: a request that comes earlier waits."""
        self._task = asyncio.create_task(self._server.serve([self._socket]))

    async def stop(self) -> None:
        self._server.should_exit = True
        if self._task is not None:
            await self._task
