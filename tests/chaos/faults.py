"""The faults: which there are, how often each is drawn, and how it is done to real processes.

All draws come from the seed and the number of the fault, so that a seed names the same faults in the same order; the instant
at which each strikes is the machine's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.chaos.fleet import Driver, Fleet
from tests.chaos.processes import Child, Kept
from tests.chaos.proxy import FaultProxy, Storm

DECK: Final = {
    "driver killed": 4,
    "driver drained": 3,
    "driver drained, engine stopped": 1,
    "driver drained, store stalled": 1,
    "driver frozen, replaced, woken": 3,
    # A restart of the engine takes as long as all the rest.
    "engine restarted": 1,
    "engine stopped and continued": 2,
    "engine connections reset": 2,
    "engine answers 503": 2,
    # While its health check is well: none of this may count against a row.
    "engine answers 429": 2,
    "engine answers 500": 2,
    "store killed": 2,
    "store connections reset": 2,
    "store answers 503": 2,
    "store replies lost after the write": 3,
    "store stalled": 1,
}
RESTARTS: Final = ("engine killed", "engine terminated", "engine core killed")
ASLEEP_MOST_S: Final = 30.0
POLL_S: Final = 0.05


def deal(seed: int, count: int) -> list[str]:
    """The kinds of the first `count` faults: a whole shuffled deck, then the next one."""
    rng = random.Random(f"deck {seed}")
    kinds: list[str] = []
    while len(kinds) < count:
        deck = [kind for kind, copies in DECK.items() for _ in range(copies)]
        rng.shuffle(deck)
        kinds += deck
    return kinds[:count]


@dataclass
class Mischief:
    """Does faults to one run. Each returns what it did, or None where the run ended before it could."""

    fleet: Fleet
    engine: Kept
    storage: Kept
    engine_proxy: FaultProxy
    store_proxy: FaultProxy
    _later: set[asyncio.Task[None]] = field(default_factory=set)

    async def do(self, kind: str, rng: random.Random) -> str | None:
        faults: dict[str, Callable[[random.Random], Awaitable[str | None]]] = {
            "driver killed": self._kill_driver,
            "driver drained": self._drain_driver,
            "driver drained, engine stopped": self._drain_while_engine_stopped,
            "driver drained, store stalled": self._drain_while_store_stalled,
            "driver frozen, replaced, woken": self._freeze_driver,
            "engine restarted": self._restart_engine,
            "engine stopped and continued": self._stop_engine,
            "engine connections reset": self._reset_engine,
            "engine answers 503": self._storm_engine,
            "engine answers 429": self._refuse_everybody,
            "engine answers 500": self._fail_everybody,
            "store killed": self._kill_store,
            "store connections reset": self._reset_store,
            "store answers 503": self._storm_store,
            "store replies lost after the write": self._swallow,
            "store stalled": self._stall_store,
        }
        return await faults[kind](rng)

    async def undo(self) -> None:
        """Waits until everything that is to pass by itself has passed."""
        while self._later:
            await asyncio.wait(self._later)

    def cancel(self) -> None:
        for task in self._later:
            task.cancel()

    async def _kill_driver(self, rng: random.Random) -> str | None:
        if driver := await self._victim(rng):
            driver.kill()
        return "driver killed" if driver else None

    async def _drain_driver(self, rng: random.Random) -> str | None:
        if driver := await self._victim(rng):
            driver.ask(rng.choice((signal.SIGTERM, signal.SIGTERM, signal.SIGINT)))
            if rng.random() < 0.3:
                await asyncio.sleep(rng.uniform(0.0, 1.0))
                driver.ask(rng.choice((signal.SIGTERM, signal.SIGINT)))
        return "driver drained" if driver else None

    async def _drain_while_engine_stopped(self, rng: random.Random) -> str | None:
        driver = await self._victim(rng)
        if driver is None:
            return None
        self.engine.send_group(signal.SIGSTOP)
        try:
            await asyncio.sleep(rng.uniform(0.0, 2.0))
            driver.ask(signal.SIGTERM)
            await driver.child.wait()
        finally:
            self.engine.send_group(signal.SIGCONT)
        return "driver drained, engine stopped"

    async def _drain_while_store_stalled(self, rng: random.Random) -> str | None:
        driver = await self._victim(rng)
        if driver is None:
            return None
        with self._outage(), self.store_proxy.stall():
            await asyncio.sleep(rng.uniform(0.0, 2.0))
            driver.ask(signal.SIGTERM)
            await driver.child.wait()
        return "driver drained, store stalled"

    async def _freeze_driver(self, rng: random.Random) -> str | None:
        driver = await self._victim(rng)
        if driver is None:
            return None
        driver.stop()
        driver.superseded = True
        replacement = await self.fleet.launch(driver.slot)
        self._then(self._wake(driver, replacement, rng))
        return "driver frozen, replaced, woken"

    async def _wake(self, driver: Driver, replacement: Driver, rng: random.Random) -> None:
        """Wakes it when its replacement has committed, and leaves it be or ends it some time later."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ASLEEP_MOST_S
        wanted = rng.randint(1, 3)
        writers = self.fleet.book.commits
        while sum(commit.life == replacement.life.name for commit in writers.values()) < wanted and loop.time() < deadline:
            if self.fleet.settled:
                break
            await asyncio.sleep(POLL_S)
        await asyncio.sleep(rng.uniform(0.0, 2.0))
        driver.wake()
        end = rng.choice((None, None, Driver.kill, lambda sleeper: sleeper.ask(signal.SIGTERM)))
        await asyncio.sleep(rng.uniform(0.0, 5.0))
        if end is not None and driver.awake:
            end(driver)

    async def _restart_engine(self, rng: random.Random) -> str | None:
        kind = rng.choice(RESTARTS)
        child = self.engine.child
        assert child is not None
        core = next((pid for pid in _children(child.pid) if "EngineCore" in _name(pid)), None)
        if kind == "engine terminated":
            self.engine.send(signal.SIGTERM)
            self._then(self._end_engine(child, rng.uniform(1.0, 10.0)))
        elif kind == "engine core killed" and core is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(core, signal.SIGKILL)
        else:
            kind = "engine killed"
            self.engine.send_group(signal.SIGKILL)
        return kind

    async def _end_engine(self, child: Child, grace_s: float) -> None:
        """As the kubelet does after its grace period. vLLM needs it: its server waits for requests that its core, gone by
        then, will never answer."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(child.wait(), grace_s)
        child.send_group(signal.SIGKILL)

    async def _stop_engine(self, rng: random.Random) -> str | None:
        self.engine.send_group(signal.SIGSTOP)
        self._then(self._continue_engine(rng.uniform(0.3, 5.0)))
        return "engine stopped and continued"

    async def _continue_engine(self, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        finally:
            self.engine.send_group(signal.SIGCONT)

    async def _reset_engine(self, rng: random.Random) -> str | None:
        return await self._reset(self.engine_proxy) and "engine connections reset"

    async def _reset_store(self, rng: random.Random) -> str | None:
        with self._outage():
            return await self._reset(self.store_proxy) and "store connections reset"

    async def _reset(self, proxy: FaultProxy) -> str | None:
        """Resets when there is something to reset."""
        while not self.fleet.settled:
            if proxy.reset():
                return "reset"
            await asyncio.sleep(POLL_S)
        return None

    async def _storm_engine(self, rng: random.Random) -> str | None:
        storm = Storm(retry_after=rng.choice(("", "0", "1", "2")))
        self._then(self._during(self.engine_proxy.storm(storm), rng.uniform(0.3, 3.0)))
        return "engine answers 503"

    async def _refuse_everybody(self, rng: random.Random) -> str | None:
        storm = Storm(429, rng.choice(("", "0", "1", "2")), questions=False)
        self._then(self._during(self.engine_proxy.storm(storm), rng.uniform(1.0, 10.0)))
        return "engine answers 429"

    async def _fail_everybody(self, rng: random.Random) -> str | None:
        self._then(self._during(self.engine_proxy.storm(Storm(500, questions=False)), rng.uniform(1.0, 15.0)))
        return "engine answers 500"

    async def _storm_store(self, rng: random.Random) -> str | None:
        storm = self.store_proxy.storm(Storm(retry_after=rng.choice(("", "0", "1", "2"))))
        self._then(self._during(storm, rng.uniform(0.3, 4.0), store=True))
        return "store answers 503"

    async def _stall_store(self, rng: random.Random) -> str | None:
        self._then(self._during(self.store_proxy.stall(), rng.uniform(0.5, 5.0), store=True))
        return "store stalled"

    async def _kill_store(self, rng: random.Random) -> str | None:
        with self._outage():
            child = self.storage.child
            assert child is not None
            child.send(signal.SIGKILL)
            await child.wait()
            await self.storage.healthy()
        return "store killed"

    async def _swallow(self, rng: random.Random) -> str | None:
        before = self.store_proxy.swallowed
        self.store_proxy.swallow(rng.randint(1, 3))
        while not self.fleet.settled:
            if self.store_proxy.swallowed > before:
                return "store replies lost after the write"
            await asyncio.sleep(POLL_S)
        return None

    async def _during(self, weather: AbstractContextManager[None], seconds: float, store: bool = False) -> None:
        with self._outage() if store else contextlib.nullcontext(), weather:
            await asyncio.sleep(seconds)

    @contextlib.contextmanager
    def _outage(self) -> Iterator[None]:
        """Notes when the store was out of order; its clients come back as long after as they had waited."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            yield
        finally:
            self.fleet.book.outages.append((began, loop.time() + (loop.time() - began) + 1.0))

    def _then(self, part: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(part)
        self._later.add(task)
        task.add_done_callback(self._passed)

    def _passed(self, task: asyncio.Task[None]) -> None:
        self._later.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self.fleet.failures.append(f"a fault failed: {error!r}")

    async def _victim(self, rng: random.Random) -> Driver | None:
        """A driver that is awake; mostly one that has sent rows, else one that still starts. None when the run ended."""
        draw, choice = rng.random(), rng.random()
        while not self.fleet.settled:
            able = [driver for driver in self.fleet.drivers if driver.awake and driver.child.takes(signal.SIGTERM)]
            senders = {request.life for request in self.fleet.book.sent}
            busy = [driver for driver in able if driver.life.name in senders]
            pool = able if draw < 0.15 else busy
            if pool:
                return pool[int(choice * len(pool))]
            await asyncio.sleep(POLL_S)
        return None


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text() + Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""
