"""Hears from the engines of all pods what they are asked, keeps it in each run's book, and holds a run in its middle."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Collection
from typing import Final

from aiohttp import web

from tests.chaos.book import Book, Life, Seen
from tests.integration.driver.serving import ThreadedServer

LOOK_S: Final = 0.05


class Gate:
    """Lets rows pass to the engine. It is shut when it is made, but for the rows `early`. late: those that `ajar` adds."""

    def __init__(self, early: Collection[int], late: Collection[int]) -> None:
        self._passing = frozenset(early)
        self._late = frozenset(late)
        self._open = False

    def ajar(self) -> None:
        self._passing |= self._late

    def open(self) -> None:
        """Everything may pass from now on."""
        self._open = True

    def lets(self, ordinals: Collection[int]) -> bool:
        return self._open or self._passing.issuperset(ordinals)


class Run:
    """What is heard of one run. The lives of its book are its pods: a pod has one driver process."""

    def __init__(self, book: Book, gate: Gate) -> None:
        self.book = book
        self.gate = gate

    def met(self, pod: str) -> None:
        """A driver has found its engine, and looks at the ledger next."""
        self.book.lives.setdefault(pod, Life(pod, time.time()))

    async def sent(self, pod: str, ordinals: tuple[int, ...]) -> None:
        """Returns when the gate lets the request pass."""
        self.book.sent.append(Seen(time.time(), pod, ordinals))
        while not self.gate.lets(ordinals):  # noqa: ASYNC110 - the test's own thread opens it
            await asyncio.sleep(LOOK_S)

    def delivered(self, pod: str, ordinals: tuple[int, ...]) -> None:
        self.book.delivered.append(Seen(time.time(), pod, ordinals))

    def answered(self) -> set[int]:
        return {ordinal for reply in self.book.delivered for ordinal in reply.ordinals}


class Witness(ThreadedServer):
    """One for all runs; pods tell it at `url`/RUN."""

    def __init__(self, host: str) -> None:
        super().__init__(0, host)
        self.runs: dict[str, Run] = {}

    def url(self, run: str) -> str:
        return f"http://{self.host}:{self.port}/{run}"

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/{run}", self._hear)]

    async def _hear(self, request: web.Request) -> web.Response:
        told = json.loads(await request.read())
        run = self.runs[request.match_info["run"]]
        ordinals = tuple(run.book.ordinal_of[text] for text in told["texts"])
        if told["what"] == "sent":
            await run.sent(told["pod"], ordinals)
        elif told["what"] == "delivered":
            run.delivered(told["pod"], ordinals)
        else:
            run.met(told["pod"])
        return web.Response()
