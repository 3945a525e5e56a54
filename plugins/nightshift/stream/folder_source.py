"""A folder on Cloud Storage as a source: each row of each object is a message, and an object is done when all its rows are.

The folder is listed again and again. Notifications of new objects (Pub/Sub's OBJECT_FINALIZE) would be cheaper for a folder of
millions, but they say nothing of objects that were there before, are not ordered, and need a topic and rights that a listing
does not. A done object has a marker beside it, in a folder that is not watched. A subscriber that dies leaves no marker: the
next one reads the object again, and the sink knows which of its rows have their outcomes.

Several processes on one folder are safe and wasteful: each reads every object that is not done. They begin at different ones.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from typing import Final, Protocol

from nightshift.store import ObjectChanged, StoreUnavailable
from nightshift.stream.messages import PROBLEM, Delivery, Message
from nightshift.stream.ports import Unavailable, Unsettled

log = logging.getLogger(__name__)

WAIT_S: Final = 1.0
"""How long a pull waits at most when there is nothing."""
LEASE_S: Final = 60.0
"""Of a row, from its delivery; the subscriber extends it."""
PULL_BYTES_MOST: Final = 10 << 20
"""Of the rows of one pull, but for the last row."""
LOOK_S: Final = 1.0
"""Between two checks for leases that are over."""


class BrokenObject(Exception):
    """The object is not of its format, or not from here on."""


@dataclass(frozen=True, slots=True)
class Found:
    """An object as a listing shows it. version: tells what was at this path one time from what is there another time."""

    path: str
    version: str
    size: int
    e_tag: str | None
    created: datetime

    @property
    def name(self) -> str:
        """Of the object and its version."""
        return f"{self.path}#{self.version}"

    @property
    def marker(self) -> str:
        return hashlib.sha256(self.name.encode()).hexdigest()[:32]


class Folder(Protocol):
    """What is needed of the folder; `nightshift.stream.folder_objects.WatchedFolder` is the real one."""

    async def found(self) -> list[Found]:
        """The objects that are there. Raises StoreUnavailable."""
        ...

    async def done(self) -> set[str]:
        """The markers. Raises StoreUnavailable."""
        ...

    async def finish(self, marker: str, body: bytes) -> None:
        """Makes a marker; it may be there already. Raises StoreUnavailable."""
        ...

    def read(self, found: Found) -> Iterator[bytes]:
        """The rows' data, read as they are asked for, by a thread. Raises ObjectChanged, StoreUnavailable, BrokenObject."""
        ...


@dataclass(slots=True)
class _Open:
    """An object that is being read. number: of the next row. left: rows that were delivered and not acknowledged.

    error: what came after the rows that were delivered.
    """

    found: Found
    rows: Iterator[bytes]
    number: int = 0
    exhausted: bool = False
    left: set[int] = field(default_factory=set)
    error: Exception | None = None


@dataclass(slots=True)
class _Lease:
    message: Message
    of: _Open
    number: int
    ends: float


@dataclass(eq=False)
class Watched:
    """`nightshift.stream.ports.Source`. every_s: between two listings. steady(): seconds of a steady clock."""

    folder: Folder
    _: KW_ONLY
    every_s: float
    rng: random.Random
    steady: Callable[[], float] = time.monotonic
    _one: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)
    """An object is read by one pull after the other."""
    _waiting: deque[Found] = field(init=False, default_factory=deque)
    _open: _Open | None = field(init=False, default=None)
    _seen: set[str] = field(init=False, default_factory=set)
    """The names of objects that are done, or that this process has begun."""
    _leases: dict[str, _Lease] = field(init=False, default_factory=dict)
    _deliveries: int = field(init=False, default=0)
    _listed: float = field(init=False, default=float("-inf"))
    _looked: float = field(init=False, default=float("-inf"))

    async def pull(self, most: int) -> list[Delivery]:
        async with self._one:
            if again := self._returned(most):
                return again
            try:
                return await self._next(most)
            except StoreUnavailable as error:
                raise Unavailable(str(error)) from error

    async def acknowledge(self, ack_ids: Sequence[str]) -> Unsettled:
        touched: dict[int, _Open] = {}
        for ack_id in ack_ids:
            # Of each delivery of a row: the first acknowledgement is the row's.
            lease = self._leases.get(ack_id)
            if lease is not None:
                lease.of.left.discard(lease.number)
                touched[id(lease.of)] = lease.of
        for each in touched.values():
            await self._finish(each)
        for ack_id in ack_ids:
            self._leases.pop(ack_id, None)
        return Unsettled()

    async def extend(self, ack_ids: Sequence[str], seconds: int) -> Unsettled:
        ends = self.steady() + seconds
        for ack_id in ack_ids:
            if (lease := self._leases.get(ack_id)) is not None:
                lease.ends = ends
        return Unsettled()

    def _returned(self, most: int) -> list[Delivery]:
        """Rows whose leases are over: they were given back."""
        now = self.steady()
        if now < self._looked + LOOK_S:
            return []
        self._looked = now
        over = [(ack_id, lease) for ack_id, lease in self._leases.items() if lease.ends <= now][:most]
        for ack_id, _ in over:
            del self._leases[ack_id]
        return [self._deliver(lease.message, lease.of, lease.number) for _, lease in over if lease.number in lease.of.left]

    async def _next(self, most: int) -> list[Delivery]:
        while True:
            if self._open is None and not await self._begin():
                return []
            of = self._open
            assert of is not None
            if of.error is None:
                data, of.error = await asyncio.to_thread(_take, of.rows, most)
                if deliveries := [self._row(of, each) for each in data]:
                    return deliveries
            if of.error is None:
                of.exhausted = True
                await self._finish(of)
                self._open = None
                continue
            self._open = None
            if isinstance(of.error, BrokenObject):
                of.exhausted = True
                return [self._broken(of, str(of.error))]
            if not isinstance(of.error, ObjectChanged):
                # Its iterator is over: it is read again from the first row. The sink knows those that have their outcomes.
                self._seen.discard(of.found.name)
                self._waiting.appendleft(of.found)
                raise of.error
            log.warning("object changed", extra={"fields": {"object": of.found.path, "error": str(of.error)}})

    async def _begin(self) -> bool:
        """Opens the next object; False if nothing is left, after a while."""
        if not self._waiting:
            pause = self._listed + self.every_s - self.steady()
            if pause > 0:
                await asyncio.sleep(min(pause, WAIT_S))
                return False
            self._waiting.extend(await self._fresh())
            if not self._waiting:
                return False
        found = self._waiting.popleft()
        self._seen.add(found.name)
        self._open = _Open(found, self.folder.read(found))
        return True

    async def _fresh(self) -> list[Found]:
        """What is not done, in an order of this process's own."""
        found = await self.folder.found()
        self._seen &= {each.name for each in found}
        fresh = [each for each in found if each.name not in self._seen]
        if fresh:
            done = await self.folder.done()
            self._seen |= {each.name for each in fresh if each.marker in done}
            fresh = [each for each in fresh if each.marker not in done]
        self._listed = self.steady()
        self.rng.shuffle(fresh)
        return fresh

    def _row(self, of: _Open, data: bytes) -> Delivery:
        number, of.number = of.number, of.number + 1
        of.left.add(number)
        message = Message(f"{of.found.name}/{number}", data, {"object": of.found.path}, "", of.found.created)
        return self._deliver(message, of, number)

    def _broken(self, of: _Open, problem: str) -> Delivery:
        number = of.number
        of.left.add(number)
        after = f" after its row {number - 1}" if number else ""
        said = f"the object {of.found.path} cannot be read{after}: {problem}"
        message = Message(f"{of.found.name}/{number}", b"", {"object": of.found.path, PROBLEM: said}, "", of.found.created)
        return self._deliver(message, of, number)

    def _deliver(self, message: Message, of: _Open, number: int) -> Delivery:
        self._deliveries += 1
        ack_id = f"{self._deliveries}"
        self._leases[ack_id] = _Lease(message, of, number, self.steady() + LEASE_S)
        return Delivery(ack_id, message)

    async def _finish(self, of: _Open) -> None:
        """Marks the object as done if every row is. Raises Unavailable; it is safe to try again."""
        if not of.exhausted or of.left:
            return
        now = datetime.now(UTC).isoformat(timespec="seconds")
        said = {"object": of.found.path, "version": of.found.version, "rows": of.number, "done": now}
        try:
            await self.folder.finish(of.found.marker, json.dumps(said).encode())
        except StoreUnavailable as error:
            raise Unavailable(str(error)) from error


def _take(rows: Iterator[bytes], most: int) -> tuple[list[bytes], Exception | None]:
    """Up to `most` rows, and the error that came after them; no rows and no error at the end."""
    taken: list[bytes] = []
    size = 0
    try:
        for data in rows:
            taken.append(data)
            size += len(data)
            if len(taken) == most or size >= PULL_BYTES_MOST:
                break
    except Exception as error:
        return taken, error
    return taken, None
