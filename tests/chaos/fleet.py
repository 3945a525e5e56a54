"""The drivers of one run: two with a home and a helper, each replaced as soon as it ends, as a JobSet replaces pods."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nightshift import exits
from tests.chaos.book import Book, Life
from tests.chaos.processes import Child, Guard
from tests.chaos.proxy import FaultProxy
from tests.integration.driver.runs import PLUGINS

LIVES_MAX: Final = 600
"""More than this many processes in a run is no recovery any more."""


@dataclass(eq=False)
class Slot:
    """A place in the JobSet; index None for the helper. done: a driver of it has returned 0."""

    index: int | None
    done: bool = False


@dataclass(eq=False)
class Driver:
    """One process. killed: it was sent SIGKILL. superseded: its replacement works already, so that it gets no other."""

    slot: Slot
    life: Life
    child: Child
    killed: bool = False
    superseded: bool = False
    stopped_at: float | None = None

    @property
    def awake(self) -> bool:
        return self.child.running and not self.killed and self.stopped_at is None and self.life.asked is None

    def ask(self, number: signal.Signals) -> None:
        """Tells it to drain."""
        if self.life.asked is None:
            self.life.asked = asyncio.get_running_loop().time()
        self.child.send(number)

    def kill(self) -> None:
        self.killed = True
        self.child.send(signal.SIGKILL)

    def stop(self) -> None:
        self.stopped_at = asyncio.get_running_loop().time()
        self.child.send(signal.SIGSTOP)

    def wake(self) -> None:
        assert self.stopped_at is not None
        self.life.frozen.append((self.stopped_at, asyncio.get_running_loop().time()))
        self.stopped_at = None
        self.child.send(signal.SIGCONT)


@dataclass
class Fleet:
    """revision: of the model, with which the engine was started. home_committed: asks the store itself whether a slot's chunks
    are there. failures: what should not have happened.

    drains: how long each took, in seconds. That they end within Spot's notice is for the simulation to say, which has the time
    to itself; what a drain that ends too late would lose is in the book.
    """

    run_url: str
    revision: str
    book: Book
    engine: FaultProxy
    store: FaultProxy
    folder: Path
    guard: Guard
    home_committed: Callable[[int | None], Awaitable[bool]]
    slots: list[Slot] = field(default_factory=lambda: [Slot(0), Slot(1), Slot(None)])
    drivers: list[Driver] = field(default_factory=list)
    drains: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    _watchers: set[asyncio.Task[None]] = field(default_factory=set)
    _closing: bool = False

    async def __aenter__(self) -> Fleet:
        self.folder.mkdir(parents=True)
        for slot in self.slots:
            await self.launch(slot)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing = True
        for driver in self.drivers:
            driver.child.send_group(signal.SIGKILL)
        while self._watchers:
            await asyncio.wait(self._watchers)

    @property
    def finished(self) -> bool:
        """All slots have done their work, and nobody lives any more."""
        return self.settled and not any(driver.child.running for driver in self.drivers)

    @property
    def settled(self) -> bool:
        return all(slot.done for slot in self.slots)

    async def launch(self, slot: Slot) -> Driver:
        """Starts a driver, with ports of its own at the proxies."""
        if len(self.drivers) >= LIVES_MAX:
            raise AssertionError(f"{LIVES_MAX} drivers did not finish the run")
        name = f"life-{len(self.drivers)}"
        doors = contextlib.AsyncExitStack()
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(PLUGINS),
            "NIGHTSHIFT_RUN_URL": self.run_url,
            "ENGINE_URL": await doors.enter_async_context(self.engine.door(name)),
            "STORAGE_EMULATOR_HOST": await doors.enter_async_context(self.store.door(name)),
            "POD_NAME": name,
            "NODE_NAME": "node",
            **(
                {"NIGHTSHIFT_ROLE": "helper", "NIGHTSHIFT_MODEL_REVISION": self.revision}
                if slot.index is None
                else {"JOB_COMPLETION_INDEX": str(slot.index)}
            ),
        }
        child = await self.guard.start([sys.executable, "-m", "nightshift.driver"], environment, self.folder / f"{name}.log")
        driver = Driver(slot, Life(name, child.began), child)
        self.book.lives[name] = driver.life
        self.drivers.append(driver)
        watcher = asyncio.create_task(self._watch(driver, doors))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)
        return driver

    async def _watch(self, driver: Driver, doors: contextlib.AsyncExitStack) -> None:
        code = await driver.child.wait()
        driver.life.ended, driver.life.code = asyncio.get_running_loop().time(), code
        await doors.aclose()
        if self._closing:
            return
        try:
            self._judge(driver, code)
            if code == exits.DONE:
                if not await self.home_committed(driver.slot.index):
                    self.failures.append(f"{driver.life.name} returned 0 with work of its home left")
                driver.slot.done = True
            elif not driver.superseded and not driver.slot.done:
                await self.launch(driver.slot)
        except Exception as error:
            self.failures.append(f"after {driver.life.name}: {error!r}")

    def _judge(self, driver: Driver, code: int) -> None:
        """The exit code is one of the two that may be here."""
        life = driver.life
        if code not in (exits.DONE, exits.RESUME) and not (driver.killed and code == -signal.SIGKILL):
            self.failures.append(f"{life.name} returned {code}:\n{driver.child.tail()}")
        if life.asked is not None and life.ended is not None and not driver.killed:
            self.drains.append(life.ended - life.asked)
