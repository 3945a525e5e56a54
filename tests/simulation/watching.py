"""A watched folder under seeded schedules of faults: nightshift's own source and subscriber over a simulated store and sink.

Objects come at any time, some are replaced, some are broken from some row on; the store fails, the database fails, processes
are killed and drained. A violation names its invariant: answered once (each row has the right outcome, and each broken object
one dead letter), done early (a marker before all rows have their outcomes), liveness, crash.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar

from nightshift.driver.stats import Stats
from nightshift.store import ObjectChanged, StoreUnavailable
from nightshift.stream.folder_source import BrokenObject, Found, Watched
from nightshift.stream.messages import PROBLEM, Message
from nightshift.stream.ports import Unavailable
from nightshift.stream.stats import StreamStats
from nightshift.stream.subscriber import Subscriber, SubscriberLimits
from nightshift.tasks.base import BadInput
from tests.simulation.check import Violated
from tests.simulation.engines import Climate, EngineEvents, SimulatedEngine
from tests.simulation.rows import Kept, Kind, Rows
from tests.simulation.stream_parts import Database, Network, Sink, Topic, Weather
from tests.simulation.streams import BEGAN
from tests.simulation.virtual import Deadlock, Livelock, Process, TimeIsUp, VirtualLoop

T = TypeVar("T")

CALM_AT: Final = 200.0
OVER_S: Final = 4000.0
EVERY_S: Final = 5.0


@dataclass(frozen=True)
class Made:
    """A version of an object. rows: the ordinals of its rows. broken: reading fails after them."""

    path: str
    at: float
    rows: range
    broken: bool

    @property
    def found(self) -> Found:
        return Found(self.path, f"{self.at:.6f}", len(self.rows), f"{self.at}", BEGAN + timedelta(seconds=self.at))


@dataclass(frozen=True)
class Scenario:
    """All that is drawn. weather: of the store and of the database. kills: when, and whether it is a drain."""

    seed: int
    made: tuple[Made, ...]
    weather: Weather
    read_error: float
    processes: int
    kills: tuple[tuple[float, bool], ...]


def draw(seed: int) -> Scenario:
    """The schedule of a seed."""
    rng = random.Random(f"watched {seed}")
    made, first = [], 0
    for number in range(rng.choice((1, 3, 10))):
        count = rng.choice((0, 1, 7, 40))
        # Some objects are replaced: they have the name of an earlier one.
        path = f"o{rng.randrange(number + 1) if rng.random() < 0.2 else number}"
        made.append(Made(path, rng.uniform(0, CALM_AT), range(first, first + count), rng.random() < 0.15))
        first += count
    faults: dict[str, Any] = {name: rng.uniform(0, 0.3) for name in ("lost_reply", "never", "late") if rng.random() < 0.4}
    kills = tuple((rng.uniform(0, CALM_AT), rng.random() < 0.4) for _ in range(rng.choice((0, 1, 4))))
    return Scenario(
        seed,
        tuple(sorted(made, key=lambda each: each.at)),
        Weather(latency_s=rng.choice((0.01, 0.3)), **faults),
        rng.choice((0.0, 0.02)),
        rng.choice((1, 1, 2)),
        kills,
    )


class Place:
    """`nightshift.stream.folder_source.Folder` of one process."""

    def __init__(self, world: World, network: Network, rng: random.Random) -> None:
        self._world = world
        self._network = network
        self._rng = rng

    async def found(self) -> list[Found]:
        return await self._ask(lambda: [each.found for each in self._world.there.values()])

    async def done(self) -> set[str]:
        return await self._ask(lambda: set(self._world.markers))

    async def finish(self, marker: str, body: bytes) -> None:
        await self._ask(lambda: self._world.finished(marker))

    def read(self, found: Found) -> Iterator[bytes]:
        made = self._world.versions[found.name]
        for ordinal in made.rows:
            if self._rng.random() < self._world.read_error:
                raise StoreUnavailable("no answer")
            if self._world.there.get(found.path) is not made:
                raise ObjectChanged(f"{found.path} was overwritten")
            yield f"{ordinal}".encode()
        if made.broken:
            raise BrokenObject("it is not what it should be")

    async def _ask(self, effect: Callable[[], T]) -> T:
        try:
            return await self._network.call(effect)
        except Unavailable as error:
            raise StoreUnavailable(str(error)) from error


class Decoder:
    """Rows by their ordinals."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def row(self, message: Message) -> Mapping[str, Any]:
        if PROBLEM in message.attributes:
            raise BadInput(message.attributes[PROBLEM])
        return {"text": self._rows.text(int(message.data))}

    def key(self, message: Message, row: Mapping[str, Any]) -> tuple[str, ...]:
        return (message.id,)


class OrdinalKind(Kind):
    """Its payloads are not named by ordinals here, but by messages."""

    def render(self, row: Mapping[str, Any], name: object) -> str:
        return str(row["text"])


class World:
    """Runs one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.loop = VirtualLoop(deadline=OVER_S)
        self.violations: list[str] = []
        self.seen: Counter[str] = Counter()
        self.there: dict[str, Made] = {}
        self.versions = {made.found.name: made for made in scenario.made}
        self.markers: dict[str, float] = {}
        self.weather, self.read_error = scenario.weather, scenario.read_error
        self.database = Database(frozenset(), self.loop.time)
        self.rows = Rows(sum(len(made.rows) for made in scenario.made), {})
        self._alive: list[tuple[Process, Subscriber]] = []
        self._lives = 0
        self._closing = False
        self._ended = asyncio.Event()

    def rng(self, name: str) -> random.Random:
        return random.Random(f"watched {self.scenario.seed} {name}")

    async def run(self) -> None:
        for made in self.scenario.made:
            self.loop.after(made.at, self._put, made)
        for _ in range(self.scenario.processes):
            self._start()
        for at, drains in self.scenario.kills:
            self.loop.after(at, self._end_one, drains)
        self.loop.after(CALM_AT, self._calm_down)
        await self._ended.wait()
        self._check()

    def _put(self, made: Made) -> None:
        self.there[made.path] = made

    def _start(self) -> None:
        if self._closing:
            return
        name = f"w{self._lives}"
        self._lives += 1
        process = Process(name)
        networks = [Network(self.loop, lambda: self.weather, self.rng(f"{name} {way}")) for way in ("store", "sink", "topic")]
        place = Place(self, networks[0], self.rng(f"{name} reading"))
        limits = SubscriberLimits(window_start=4, window_most=16, requests_most=8, flush_s=0.5)
        kind = OrdinalKind(self.rows, 4, Kept())
        climate = Climate(row_s=0.2, seats=8, metrics=True)
        subscriber = Subscriber(
            kind=kind,
            engine=SimulatedEngine(self.loop, self.rows, lambda: climate, self.rng(f"{name} engine"), EngineEvents()),
            source=Watched(place, every_s=EVERY_S, rng=self.rng(f"{name} order"), steady=self.loop.time),
            sink=Sink(self.database, networks[1]),
            dead_letters=Topic(Counter(), networks[2]),
            decoder=Decoder(self.rows),  # type: ignore[arg-type]
            ordered=False,
            limits=limits,
            rng=self.rng(f"{name} subscriber"),
            stats=Stats(),
            stream_stats=StreamStats(),
            now=lambda: BEGAN.timestamp() + self.loop.time(),
        )
        self._alive.append((process, subscriber))
        task = self.loop.spawn(process, subscriber.run())
        task.add_done_callback(lambda done: self._exited(process, done), context=self.loop.outside)

    def _exited(self, process: Process, task: asyncio.Task[int]) -> None:
        if not any(each is process for each, _ in self._alive):
            return
        if not task.cancelled() and task.exception() is not None:
            self._fail("crash", f"{process.name} ended with {task.exception()!r}")
        self._gone(process)

    def _end_one(self, drains: bool) -> None:
        if not self._alive:
            return
        process, subscriber = self._alive[0]
        self.seen["drain" if drains else "kill"] += 1
        if drains:
            self.loop.within(process, subscriber.drain)
        else:
            self._gone(process)

    def _gone(self, process: Process) -> None:
        self._alive = [each for each in self._alive if each[0] is not process]
        self.loop.kill(process)
        if not self._closing:
            self.loop.after(1.0, self._start)
        elif not self._alive:
            self._ended.set()

    def _calm_down(self) -> None:
        self.weather, self.read_error = Weather(), 0.0
        self._look_for_the_end()

    def _look_for_the_end(self) -> None:
        if any(made.found.marker not in self.markers for made in self.there.values()):
            self.loop.after(1.0, self._look_for_the_end)
            return
        self._closing = True
        for process, subscriber in self._alive:
            self.loop.within(process, subscriber.drain)
        if not self._alive:
            self._ended.set()

    def finished(self, marker: str) -> None:
        """A marker is made."""
        made = next(each for each in self.versions.values() if each.found.marker == marker)
        if left := [name for name in self._names(made) if name not in self.database.outcomes]:
            self._fail("done early", f"{made.found.name} is done, and {left} have no outcomes")
        self.markers.setdefault(marker, self.loop.time())

    def _names(self, made: Made) -> list[str]:
        return [f"{made.found.name}/{number}" for number in range(len(made.rows) + made.broken)]

    def _check(self) -> None:
        expected: dict[str, str] = {}
        for made in self.there.values():
            names = self._names(made)
            answers = [self.rows.prediction(ordinal) for ordinal in made.rows]
            expected |= dict(zip(names, [*answers, *(["dead"] * made.broken)], strict=True))
        outcomes = self.database.outcomes
        wrong = {name: outcomes.get(name) for name, answer in expected.items() if outcomes.get(name) != answer}
        if wrong:
            self._fail("answered once", f"{wrong}")
        replaced = {name for made in self.versions.values() if made not in self.there.values() for name in self._names(made)}
        if extra := outcomes.keys() - expected.keys() - replaced:
            self._fail("answered once", f"there are outcomes of {extra}")

    def _fail(self, invariant: str, what: str) -> None:
        self.violations.append(f"{invariant}: {what} (at {self.loop.time():.3f} s)")


def simulate(seed: int) -> Counter[str]:
    """Runs the schedule of a seed; what happened, by name. Raises Violated."""
    world = World(draw(seed))
    loop = world.loop
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(world.run())
    except (Deadlock, Livelock, TimeIsUp) as error:
        left = [made.found.name for made in world.there.values() if made.found.marker not in world.markers]
        world.violations.append(f"liveness: {error}; not done: {left}")
    finally:
        asyncio.set_event_loop(None)
        errors = loop.errors
        loop.close_all()
    world.violations += [f"crash: a callback raised {raised!r}" for raised in errors]
    if world.violations:
        raise Violated(seed, world.violations)
    world.seen["outcomes"] += len(world.database.outcomes)
    return world.seen


def outcome(seed: int) -> Counter[str] | str:
    """What happened in a schedule, or what it violated."""
    try:
        return simulate(seed)
    except Violated as error:
        return str(error)
