"""What Airflow mounts: the pages, made when the first of them is asked for.

Every component of Airflow imports the plugin, each process of a task too, and only the API server shows pages. FastAPI and
Airflow's own API, which the pages need, take most of a second to import.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]


AT_ONCE: Final = 8
"""Requests that are worked on. All of Airflow's API server shares 40 threads, and a bucket that does not answer would keep one
busy for each request; those that wait for their turn need none."""


class Mounted:
    """An ASGI application. Airflow starts no lifespan for one that is not FastAPI's, and the pages have none."""

    def __init__(self) -> None:
        self._app: Any = None
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is None:
            self._app = await asyncio.to_thread(_made)
        async with self._turns:
            await self._app(scope, receive, send)


def _made() -> Any:
    """On a thread of the event loop, which stays. FastAPI's threads end when they are idle, and with pyarrow 25, which Cloud
    Composer has, the process dies of SIGSEGV once the thread that has imported it first is gone (apache/arrow#50471)."""
    import pyarrow  # noqa: F401

    from nightshift.plugin.pages.app import make

    return make()
