"""A stream under seeded schedules of faults: nightshift's own subscriber over a simulated Pub/Sub, sink and engine.

A violation names its invariant: answered once, never acked unanswered, poison, pull, attempts, drain, order,
computed again, liveness, crash. Of files as a sink also: twice (one process never writes a message into two files, and only a
message that was delivered again is in two), folder (all copies of a message are in the folder of its hour). What stands in is
time, chance, the services and the engine; what is not simulated is HTTP, gRPC and SQL, which the integration tests have.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from nightshift import exits
from nightshift.driver.engine import Replied, SendResult
from nightshift.driver.stats import Stats
from nightshift.stream.in_flight import MESSAGE_BYTES
from nightshift.stream.messages import Delivery, Message
from nightshift.stream.ports import Sink as SinkOfStream
from nightshift.stream.stats import StreamStats
from nightshift.stream.subscriber import Subscriber, SubscriberLimits
from tests.simulation import stream_files
from tests.simulation.check import Violated
from tests.simulation.engines import OUTAGES, Climate, EngineEvents, Failing, SimulatedEngine
from tests.simulation.rows import REASONS, Kept, Kind, Nature, Rows
from tests.simulation.stream_parts import Database, Network, Sink, Source, Subscription, Topic, Weather, age
from tests.simulation.virtual import Deadlock, Livelock, Process, TimeIsUp, VirtualLoop

BEGAN: Final = datetime(2026, 11, 20, 12, 55, tzinfo=UTC)
"""Files have folders by the hour, so a new one begins meanwhile."""
AFTER_CALM_S: Final = 7200.0
SLOW_S: Final = 3600.0
"""More for each message that hangs: it takes a request's place until the time limit, in each of its tries."""
FURTHER_S: Final = 300.0
"""After the calm, a good message comes every so often while others are left: what fails alone, with no other to compare it
with, may be the engine's fault."""
FAILING_S: Final = 900.0
"""So long an engine must have answered nobody before messages are given back for want of it."""
PROMPT_S: Final = 200.0
"""A good message that comes in calm weather has its answer within this time and the backlog's, whatever fails beside it."""
AHEAD: Final = 2
"""A subscriber may have so many times what its engine may have at once, before that or there. Stated here, not taken from the
subscriber."""
PROBES: Final = 8
"""So many messages more than those that fail it may hold while it was never answered. Stated here, too."""
DRAIN_S: Final = 15.0
NATURES: Final = tuple(Nature)
EVENTS: Final = {"kill": 4, "drain": 3, "freeze": 4, "freeze_long": 1, "engine_death": 3, "engine_stall": 2, "engine_away": 1}
PULL_FAULTS: Final = {"lost_reply": 0.3, "never": 0.3, "late": 0.2, "twice": 0.2, "forgotten": 0.3}
SINK_FAULTS: Final = {"lost_reply": 0.3, "never": 0.3, "late": 0.2}
ENGINE_FAULTS: Final = {"busy": 0.3, "failed": 0.2, "invalid": 0.2, "aborted": 0.2, "stuck": 0.05, "reset": 0.1}


@dataclass(frozen=True)
class FileTerms:
    """Of a sink that is files: rows of each, and how long one waits for others."""

    rows: int
    every_s: float


@dataclass(frozen=True)
class Scenario:
    """All that is drawn. keys: of each message's row in the sink. unwritable: messages whose answer the sink refuses.

    files: None if the sink is a database.
    """

    seed: int
    rows: Rows
    published: tuple[float, ...]
    keys: tuple[str, ...]
    lanes: tuple[str, ...]
    unwritable: frozenset[str]
    rows_per_request: int
    limits: SubscriberLimits
    ordered: bool
    pull: Weather
    sink: Weather
    climate: Climate
    processes: int
    events: tuple[tuple[float, str, float, float], ...]
    calm_at: float
    files: FileTerms | None = None

    def key(self, number: int) -> str:
        return self.keys[number] if number < len(self.keys) else f"further {number}"

    def lane(self, number: int) -> str:
        return self.lanes[number] if number < len(self.lanes) else "further" * self.ordered

    @property
    def roomy(self) -> bool:
        """Whether the bad messages leave room for others.

        One that hangs takes a request's place until its time limit, and one that was with two engines as they died goes alone.
        """
        least = min(self.limits.window_most, self.limits.requests_most)
        deaths = sum(what in ("engine_death", "engine_away") for _, what, _, _ in self.events)
        return Nature.SLOW not in self.rows.natures.values() and least >= 8 > 2 * len(self.rows.natures) and deaths < 2

    @property
    def backlog_s(self) -> float:
        """How long the engine may take for all messages: twice what it takes on average."""
        return 2 * self.rows.count * self.climate.row_s / self.climate.seats

    @property
    def quiet(self) -> bool:
        """Whether nothing happens to Pub/Sub or to a process: then no message is delivered twice."""
        harmless = all(what.startswith("engine") for _, what, _, _ in self.events)
        return harmless and self.pull == Weather(latency_s=self.pull.latency_s, late_s=self.pull.late_s)


@dataclass(frozen=True)
class Report:
    """What one schedule came to. seen: what happened, by name; took_s: virtual."""

    seed: int
    messages: int
    deliveries: int
    took_s: float
    seen: Counter[str]


def draw(seed: int) -> Scenario:
    """The schedule of a seed."""
    rng = random.Random(f"stream {seed}")
    count = rng.choice((1, 3, 10, 40, 40, 120))
    calm_at = rng.uniform(20, 600)
    ordered = rng.random() < 0.25
    natures = {n: rng.choice(NATURES) for n in range(count) if rng.random() < rng.choice((0, 0.03, 0.1))}
    keyed = rng.random() < 0.3
    lanes = tuple(f"lane {rng.randrange(4)}" if ordered else "" for _ in range(count))
    keys = tuple(f"key {rng.randrange(max(1, count // 3))}" if keyed else f"{n}" for n in range(count))
    span = rng.choice((0.0, calm_at / 4, calm_at))
    published = tuple(sorted(rng.uniform(0, span) for _ in range(count)))
    few = rng.random() < 0.2
    refused = frozenset(f"{n}" for n in range(count) if n not in natures and rng.random() < 0.02)
    failing: tuple[Failing, ...] = ()
    if rng.random() < 0.3:
        start = rng.uniform(0, calm_at)
        failing = (Failing(start, start + rng.uniform(1, 300), rng.choice(OUTAGES)),)
    faults: dict[str, Any] = {name: rng.uniform(0, most) for name, most in ENGINE_FAULTS.items() if rng.random() < 0.25}
    return Scenario(
        seed,
        Rows(count, natures),
        published,
        keys,
        lanes,
        refused,
        rng.choice((1, 4, 8)),
        SubscriberLimits(
            window_start=rng.choice((1, 4, 16)),
            window_most=rng.choice((1, 8, 32)),
            requests_most=rng.choice((1, 16)),
            flush_s=rng.choice((0.05, 0.5, 5.0)),
            buffer_bytes=20 * MESSAGE_BYTES if few else 1 << 20,
        ),
        ordered,
        _weather(rng, PULL_FAULTS, calm_at),
        _weather(rng, SINK_FAULTS, calm_at),
        Climate(
            row_s=rng.choice((0.05, 0.5, 5.0)),
            seats=rng.choice((1, 4, 16)),
            metrics=rng.random() < 0.7,
            failing=failing,
            **faults,
        ),
        rng.choice((1, 1, 2, 3)),
        tuple(
            (rng.uniform(0, calm_at), what, rng.random(), rng.choice((1.0, 10.0, 40.0)))
            for what in rng.choices(list(EVENTS), list(EVENTS.values()), k=rng.choice((0, 0, 1, 3, 8)))
        ),
        calm_at,
    )


def into_files(scenario: Scenario) -> Scenario:
    """The same schedule with files as its sink."""
    rng = random.Random(f"stream files {scenario.seed}")
    terms = FileTerms(rng.choice((1, 5, 20, 500)), rng.choice((0.5, 5.0, 20.0)))
    return replace(scenario, ordered=False, lanes=("",) * len(scenario.lanes), files=terms)


def _weather(rng: random.Random, faults: Mapping[str, float], calm_at: float) -> Weather:
    drawn: dict[str, Any] = {name: rng.uniform(0, most) for name, most in faults.items() if rng.random() < 0.25}
    outages: tuple[tuple[float, float], ...] = ()
    if rng.random() < 0.2:
        start = rng.uniform(0, calm_at)
        outages = ((start, start + rng.choice((5.0, 60.0, 300.0))),)
    return Weather(latency_s=rng.choice((0.001, 0.05, 0.5)), late_s=rng.choice((5.0, 90.0)), outages=outages, **drawn)


class Decoder:
    """Rows by the ids of their messages."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario

    def row(self, message: Message) -> Mapping[str, Any]:
        return {"text": self._scenario.rows.text(int(message.id))}

    def key(self, message: Message, row: Mapping[str, Any]) -> tuple[str, ...]:
        return (self._scenario.key(int(message.id)),)


class _Engine(EngineEvents):
    def __init__(self, life: Life) -> None:
        self._life = life

    def sent(self, ordinals: list[int], *, canary: bool) -> None:
        if not canary:
            self._life.world.sent(self._life, ordinals)

    def answered(self, ordinals: list[int], outcome: SendResult) -> None:
        # A refusal does not show that the engine is well: it may be refusing everybody.
        if isinstance(outcome, Replied) and isinstance(outcome.body, list):
            self._life.check_patience()
            self._life.last_answer = self._life.world.loop.time()
            self._life.ever_answered = True
            self._life.answered |= {f"{ordinal}" for ordinal in ordinals}
        self._life.under_way -= Counter(ordinals)

    def hung_up(self, ordinals: list[int]) -> None:
        self._life.under_way -= Counter(ordinals)


class Life:
    """One process: a subscriber with its engine."""

    def __init__(self, world: World, name: str) -> None:
        scenario, loop = world.scenario, world.loop
        self.world = world
        self.name = name
        self.process = Process(name)
        self.drained_at: float | None = None
        self.drained_calmly = False
        self.frozen_once = False
        self.last_answer = loop.time()
        self.ever_answered = False
        self.given_back = 0
        self.got: set[str] = set()
        """Ids of leases."""
        self.under_way: Counter[int] = Counter()
        self.came: set[str] = set()
        self.answered: set[str] = set()
        self.asked = 0
        self.stats = StreamStats()
        self.engine = SimulatedEngine(loop, scenario.rows, lambda: world.climate, world.rng(f"{name} engine"), _Engine(self))
        pulls = Network(loop, lambda: world.pull, world.rng(f"{name} pull"))
        writes = Network(loop, lambda: world.sink, world.rng(f"{name} sink"))
        self.subscriber = Subscriber(
            kind=Kind(scenario.rows, scenario.rows_per_request, Kept()),
            engine=self.engine,
            source=Source(loop, world.subscription, pulls, name, self._pulling, self._pulled),
            sink=self._sink(writes),
            dead_letters=Topic(world.topic, Network(loop, lambda: world.pull, world.rng(f"{name} topic"))),
            decoder=Decoder(scenario),  # type: ignore[arg-type]
            ordered=scenario.ordered,
            limits=scenario.limits,
            rng=world.rng(f"{name} subscriber"),
            stats=Stats(),
            stream_stats=self.stats,
            now=lambda: BEGAN.timestamp() + loop.time(),
        )

    def _sink(self, network: Network) -> SinkOfStream:
        world, scenario = self.world, self.world.scenario
        if not isinstance(world.database, stream_files.Folder):
            return Sink(world.database, network)
        assert scenario.files is not None
        return stream_files.sink(
            world.database,
            network,
            self.name,
            unwritable=scenario.unwritable,
            rows=scenario.files.rows,
            every_s=scenario.files.every_s,
            loop=world.loop,
            began=BEGAN,
        )

    def check_patience(self) -> None:
        """Called before each answer and each pull: nothing was given back since the last of them, or its engine was silent."""
        silent = self.world.loop.time() - self.last_answer
        hasty = self.stats.given_back > self.given_back and silent < FAILING_S
        if hasty and not self.frozen_once and self.drained_at is None:
            self.world.fail("attempts", f"{self.name} gave messages back, though its engine answered {silent:.0f} s ago")
        self.given_back = self.stats.given_back

    def _pulled(self, deliveries: Sequence[Delivery], most: int) -> None:
        self.asked -= most
        self.got.update(delivery.ack_id for delivery in deliveries)
        self.came.update(delivery.message.id for delivery in deliveries)

    def _could_be_worked_on(self) -> int:
        """How many messages an engine could work on, of those that came, at least: none that has its outcome; in order, those
        that it has. Bad ones do not count, which may have failed already; nor do any once some were given back."""
        scenario, database = self.world.scenario, self.world.database
        known = database.written_by[self.name] if isinstance(database, stream_files.Folder) else database.since
        if self.stats.given_back or scenario.ordered:
            return len(self.under_way)
        over, bad = self.world.superseded, scenario.rows.natures
        return sum(n not in known and int(n) not in bad and not over(n) for n in self.came - self.answered)

    def _pulling(self, most: int) -> None:
        self.check_patience()
        self.asked += most
        can_take = AHEAD * max(self.world.scenario.limits.window_most, self.world.scenario.rows_per_request)
        # As long as it was never answered, it may look for a message that is.
        searches = not self.ever_answered and most <= PROBES
        if (has := self._could_be_worked_on()) + self.asked > can_take and not searches:
            self.world.fail("pull", f"{self.name} has {has} and asks for {self.asked}")
        bound = self.world.scenario.limits.buffer_bytes
        if (has := max(self.stats.held_bytes, self.stats.held * MESSAGE_BYTES)) > bound and self.stats.held > 1:
            self.world.fail("pull", f"{self.name} holds {has} bytes and pulls, though {bound} are the most")


class World:
    """Runs one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        slow = list(scenario.rows.natures.values()).count(Nature.SLOW)
        self.loop = VirtualLoop(deadline=scenario.calm_at + AFTER_CALM_S + slow * SLOW_S)
        self.pull, self.sink, self.climate = scenario.pull, scenario.sink, scenario.climate
        self.violations: list[str] = []
        self.seen: Counter[str] = Counter()
        self.database = (
            stream_files.Folder(self.loop.time, self.fail) if scenario.files else Database(scenario.unwritable, self.loop.time)
        )
        self.topic: Counter[str] = Counter()
        self._first: dict[tuple[str, str], float] = {}
        self.subscription = Subscription(
            self.loop,
            lambda: self.pull,
            self.rng("subscription"),
            self._acknowledged,
            self._delivered,
            ordered=scenario.ordered,
        )
        self._rng = self.rng("world")
        self._alive: list[Life] = []
        self._lives = 0
        self._calm = self._closing = False
        self._ended = asyncio.Event()

    def rng(self, name: str) -> random.Random:
        return random.Random(f"stream {self.scenario.seed} {name}")

    def fail(self, invariant: str, what: str) -> None:
        self.violations.append(f"{invariant}: {what} (at {self.loop.time():.3f} s)")

    async def run(self) -> None:
        for number, at in enumerate(self.scenario.published):
            self.loop.after(at, self._publish, number, at)
        for _ in range(self.scenario.processes):
            self.loop.after(self._rng.uniform(0, 3.0), self._start)
        for event in self.scenario.events:
            self.loop.after(event[0], self._happen, event)
        self.loop.after(self.scenario.calm_at, self._calm_down)
        await self._ended.wait()
        self._check_end()

    def _publish(self, number: int, at: float) -> None:
        scenario = self.scenario
        text = scenario.rows.text(number).encode()
        published = BEGAN + timedelta(microseconds=int(at * 1e6))
        self.subscription.publish(Message(f"{number}", text, {}, scenario.lane(number), published))

    def _publish_further(self) -> None:
        if not self._closing:
            self._publish(len(self.subscription.states), self.loop.time())
            self.loop.after(FURTHER_S, self._publish_further)

    def _start(self) -> None:
        if self._closing:
            return
        life = Life(self, f"s{self._lives}")
        self._lives += 1
        self._alive.append(life)
        task = self.loop.spawn(life.process, life.subscriber.run())
        task.add_done_callback(lambda done: self._exited(life, done), context=self.loop.outside)

    def _exited(self, life: Life, task: asyncio.Task[int]) -> None:
        if life not in self._alive:
            return
        self._alive.remove(life)
        if task.cancelled() or task.exception() is not None:
            self.fail("crash", f"{life.name} ended with {None if task.cancelled() else task.exception()!r}")
        else:
            self._check_drain(life, task.result())
        self.loop.kill(life.process)
        self._go_on()

    def _go_on(self) -> None:
        if not self._closing:
            self.loop.after(self._rng.uniform(0.1, 10.0), self._start)
        elif not self._alive:
            self._ended.set()

    def _check_drain(self, life: Life, code: int) -> None:
        if life.drained_at is None:
            self.fail("drain", f"{life.name} ended by itself")
            return
        took = self.loop.time() - life.drained_at
        if took > DRAIN_S and not life.frozen_once:
            self.fail("drain", f"{life.name} took {took:.1f} s")
        # Not by message: a pull under way as the process gave one back may take it again, for nobody.
        kept = self.subscription.leased(life.got)
        if code == exits.DONE and kept and self.scenario.pull.latency_s < 0.5 and life.drained_calmly and not life.frozen_once:
            self.fail("drain", f"{life.name} kept the leases of {kept}")

    def _happen(self, event: tuple[float, str, float, float]) -> None:
        _, what, pick, seconds = event
        if not self._alive or self._calm:
            return
        life = self._alive[int(pick * len(self._alive))]
        self.seen[what] += 1
        match what:
            case "kill":
                self._alive.remove(life)
                self.loop.kill(life.process)
                self._go_on()
            case "drain":
                self._drain(life)
            case "freeze" | "freeze_long":
                life.frozen_once = True
                self.loop.freeze(life.process)
                self.loop.after(seconds if what == "freeze" else 10 * seconds, self._thaw, life)
            case "engine_death":
                life.engine.die("killed", seconds)
            case "engine_away":
                life.engine.die("killed", 350.0)
            case "engine_stall":
                life.engine.stall(seconds)

    def _drain(self, life: Life) -> None:
        if life.drained_at is None:
            life.drained_at = self.loop.time()
            life.drained_calmly = self.pull == Weather(latency_s=self.pull.latency_s, late_s=self.pull.late_s)
        self.loop.within(life.process, life.subscriber.drain)

    def _thaw(self, life: Life) -> None:
        if life.process.frozen:
            self.loop.thaw(life.process)

    def _calm_down(self) -> None:
        self._calm = True
        self.pull = self.sink = Weather()
        self.climate = replace(
            Climate(row_s=self.climate.row_s, seats=self.climate.seats, metrics=self.climate.metrics),
            timeout_s=self.climate.timeout_s,
        )
        for life in self._alive:
            self._thaw(life)
        self.loop.after(FURTHER_S, self._publish_further)
        self._look_for_the_end()

    def _look_for_the_end(self) -> None:
        if not self.subscription.done or len(self.subscription.states) < self.scenario.rows.count:
            self.loop.after(1.0, self._look_for_the_end)
            return
        self._closing = True
        for life in self._alive:
            self._drain(life)
        if not self._alive:
            self._ended.set()

    def _delivered(self, message: str, who: str) -> None:
        self._first.setdefault((who, message), self.loop.time())
        self.seen["delivered"] += 1
        if self.subscription.states[message].deliveries > 1:
            self.seen["delivered again"] += 1
            if self.scenario.quiet and not any(life.stats.given_back for life in self._alive):
                self.fail("attempts", f"{message} was delivered again to {who}")

    def sent(self, life: Life, ordinals: list[int]) -> None:
        """A process sends these rows to its engine."""
        life.under_way += Counter(ordinals)
        lanes = Counter(self.scenario.lane(ordinal) for ordinal in life.under_way if self.scenario.ordered)
        if any(count > 1 for count in lanes.values()):
            self.fail("order", f"{life.name} computes {dict(life.under_way)} at once")
        if twice := [ordinal for ordinal, count in life.under_way.items() if count > 1]:
            self.fail("computed again", f"{life.name} computes {twice} twice at once")
        # A folder cannot be asked, so a process knows only of its own files.
        known = self.database.written_by[life.name] if isinstance(self.database, stream_files.Folder) else self.database.since
        late = [n for n in ordinals if known.get(f"{n}", self.loop.time()) < self._first[life.name, f"{n}"]]
        if late:
            self.fail("computed again", f"{life.name} computes {late}, which had their outcomes when they were delivered to it")

    def _acknowledged(self, message: str) -> None:
        if message not in self.database.outcomes and not self.superseded(message):
            self.fail("never acked unanswered", f"{message} is acknowledged and has no outcome")
        elif self.database.outcomes.get(message) == "dead" and not self.topic[message]:
            self.fail("never acked unanswered", f"{message} is acknowledged, and the topic of dead letters has it not")

    def superseded(self, message: str) -> bool:
        row = self.database.rows.get((self.scenario.key(int(message)),))
        return row is not None and age(row.message) > age(self.subscription.states[message].message)

    def _check_end(self) -> None:
        scenario, database = self.scenario, self.database
        newest: dict[str, Message] = {}
        for number in range(len(self.subscription.states)):
            message = self.subscription.states[f"{number}"].message
            nature = scenario.rows.natures.get(number)
            outcome = database.outcomes.get(message.id)
            bad = nature is not None or message.id in scenario.unwritable
            if outcome is None and not self.superseded(message.id):
                self.fail("answered once", f"{message.id} has no outcome")
            elif bad and outcome not in ("dead", None):
                self.fail("poison", f"{message.id} ({nature or 'unwritable'}) has the answer {outcome!r}")
            elif bad and outcome == "dead":
                self._check_reason(message.id, str(REASONS[nature]) if nature else "unwritable")
            elif not bad and (given_up := database.given_up.get(message.id)):
                self.fail("poison", f"{message.id} is good, and given up: {given_up.reason}")
            elif not bad:
                key = scenario.key(number)
                waited = database.since.get(message.id, 0.0) - self._at(message)
                if number >= scenario.rows.count and scenario.roomy and waited > PROMPT_S + scenario.backlog_s:
                    self.fail("poison", f"{message.id} is good and waited {waited:.0f} s")
                if outcome not in (None, scenario.rows.prediction(number)):
                    self.fail("answered once", f"{message.id} has the answer {outcome!r}")
                newest[key] = max(newest.get(key, message), message, key=age)
        rows = {key[0]: row.message.id for key, row in database.rows.items()}
        if rows != {key: message.id for key, message in newest.items()}:
            self.fail("answered once", f"the sink has {rows}, expected {newest}")
        self._check_copies()
        if extra := {message for message in self.topic if message not in database.dead}:
            self.fail("poison", f"the topic of dead letters has {extra}, which have other outcomes")

    def _check_copies(self) -> None:
        copies = self.database.copies if isinstance(self.database, stream_files.Folder) else Counter[str]()
        for name, count in copies.items():
            self.seen["copies"] += count - 1
            if count > self.subscription.states[name].deliveries:
                self.fail("twice", f"{name} is in {count} files, and was delivered less often")

    def _at(self, message: Message) -> float:
        return (message.published - BEGAN).total_seconds()

    def _check_reason(self, message: str, expected: str) -> None:
        if (reason := self.database.dead[message].reason) != expected:
            self.fail("poison", f"{message} is dead because of {reason}, expected {expected}")


def simulate(seed: int, change: Callable[[Scenario], Scenario] = lambda scenario: scenario) -> Report:
    """Runs the schedule of a seed. Raises Violated."""
    world = World(change(draw(seed)))
    loop = world.loop
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(world.run())
    except (Deadlock, Livelock, TimeIsUp) as error:
        left = [message for message, state in world.subscription.states.items() if not state.acknowledged]
        world.fail("liveness", f"{error}; not acknowledged: {left}")
    finally:
        asyncio.set_event_loop(None)
        took = loop.time()
        errors = loop.errors
        loop.close_all()
    for raised in errors:
        world.fail("crash", f"a callback raised {raised!r}")
    if world.violations:
        raise Violated(seed, world.violations)
    return Report(seed, world.scenario.rows.count, world.seen["delivered"], took, world.seen)


def simulate_files(seed: int) -> Report:
    """The same with files as the sink."""
    return simulate(seed, into_files)


def outcome_of_files(seed: int) -> Report | str:
    """As `outcome`, with files as the sink."""
    return outcome(seed, into_files)


def outcome(seed: int, change: Callable[[Scenario], Scenario] = lambda scenario: scenario) -> Report | str:
    """The report of a schedule, or what it violated."""
    try:
        return simulate(seed, change)
    except Violated as error:
        return str(error)
    except Exception as error:  # The simulator's own mistake must not end the others' runs.
        return f"seed {seed}: {error!r}"
