"""One simulated run from start to end: pods with the real worker in them, a supervisor that replaces them, and the schedule."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Final

import obstore
import pyarrow as pa
from obstore.store import MemoryStore

from nightshift import exits
from nightshift.driver import commits, worker
from nightshift.driver.codec import ParquetCodec
from nightshift.driver.commits import Codec
from nightshift.driver.heartbeats import Heartbeats
from nightshift.driver.open_chunk import OpenChunk
from nightshift.driver.scheduler import TRIES
from nightshift.driver.stats import Stats
from nightshift.driver.worker import Worker
from nightshift.planner.bills import seal_measured
from nightshift.run.chunks import Result
from nightshift.run.ledger import Ledger
from nightshift.run.names import WORKERS
from nightshift.run.observed import heartbeats
from nightshift.run.observed.heartbeats import Ended, Heartbeat
from nightshift.run.tolerance import ToleranceExceeded
from tests.builders import a_spec, write_input
from tests.simulation.check import Audit, EngineAudit, MarkAudit, PodAudit, Violated
from tests.simulation.codecs import LightCodec, decode_light, decode_parquet
from tests.simulation.engines import Climate, SimulatedEngine
from tests.simulation.replaced import replaced
from tests.simulation.rows import Kept, Kind, Nature, Reader
from tests.simulation.scenario import RUN, WORK, AnswerBounds, Event, Scenario, draw
from tests.simulation.storage import Bucket, Client, Weather
from tests.simulation.virtual import Deadlock, Livelock, Process, TimeIsUp, VirtualLoop, current_process

AFTER_CALM_S: Final = 7200.0
"""What a run may take once nothing goes wrong any more, in virtual seconds, beside the rows that hang (`_over_by`)."""
PODS_MOST: Final = 150
REPLACED_AFTER_S: Final = 15.0
"""A pod that ended before its work was done is replaced within so many seconds."""


@dataclass(frozen=True)
class Report:
    """What one schedule came to. computed: rows that engines computed, also for nothing; took_s: virtual.

    carried_until, asked: of the first pod's engines, when each had its last row, and when it was to be started again.
    """

    seed: int
    rows: int
    computed: int
    pods: int
    steps: int
    took_s: float
    seen: Counter[str]
    trace: tuple[str, ...]
    carried_until: dict[int, float]
    asked: dict[int, list[float]]


class Watched:
    """A codec that tells the checker what it encodes."""

    def __init__(self, codec: Codec, audit: PodAudit) -> None:
        self._codec = codec
        self._audit = audit
        self.decode = codec.decode
        self.first_answered = codec.first_answered

    def encode(self, chunk: OpenChunk, keys: pa.Table) -> bytes:
        self._audit.encodes(chunk.number, sum(len(result.prediction or "") for result in chunk.results.values()))
        return self._codec.encode(chunk, keys)


class Pod:
    """One attempt: a worker, its engine, its way to the store."""

    def __init__(self, world: World, name: str, index: int | None) -> None:
        scenario, loop, audit = world.scenario, world.loop, world.audit
        self.name = name
        self.index = index
        self.over = False
        self.draining = False
        self.process = Process(name)
        self._loop = loop
        home = range(scenario.plan.chunk_count)
        if index is not None:
            home = scenario.plan.shard(index) if scenario.plan.chunk_count else range(0)
        kept = Kept()
        self.audit = PodAudit(audit, name, home, kept)
        self.stats = Stats()
        self.engines = [
            SimulatedEngine(
                loop,
                scenario.rows,
                lambda: world.climate,
                world.rng(f"{name} engine{f' {number}' if number else ''}"),
                EngineAudit(self.audit, number),
                number,
            )
            for number in range(scenario.engines)
        ]
        client = Client(loop, world.bucket, lambda: world.weather, world.rng(f"{name} store"), name, self.audit)
        # A way of their own: what happens to a mark must not excuse the worker for anything.
        events = MarkAudit(audit, name)
        self._mark_client = Client(loop, world.bucket, lambda: world.weather, world.rng(f"{name} marks"), name, events)
        self.worker = Worker(
            plan=scenario.plan,
            index=index,
            ledger=Ledger(client, RUN, scenario.plan),
            reader=Reader(
                scenario.plan, scenario.rows, lambda: world.reader_error, world.rng(f"{name} reader"), kept, self.audit.reading
            ),
            kind=Kind(scenario.rows, scenario.rows_per_request, kept),
            engines=self.engines,
            codec=Watched(world.codec(name, RUN.run_id), self.audit),
            carried=("id",),
            attempt=name,
            limits=scenario.limits,
            rng=world.rng(f"{name} worker"),
            stats=self.stats,
        )

    def start(self) -> asyncio.Task[int]:
        return self._loop.spawn(self.process, self._live())

    async def _live(self) -> int:
        """As `nightshift.driver.main.work` does it."""
        role = "helper" if self.index is None else "owner"
        birth = Heartbeat(self.name, "cpu", role, self.index, "node", self.name, 1.0, "", "", 0.0)
        own = Heartbeats(self._mark_client, WORK, birth, self.stats, now=self._loop.time)
        code = exits.RESUME
        async with own.kept(lambda error: Ended.DONE if error is None and code == exits.DONE else Ended.GAVE_UP):
            own.engine_answers()
            code = await self.worker.run()
        return code

    def drain(self) -> None:
        """SIGTERM."""
        self._loop.within(self.process, self._drain)

    def _drain(self) -> None:
        if not self.draining:
            self.draining = True
            self.audit.drained()
        self.worker.drain()


class World:
    """Runs one scenario. tracing: keep a line for everything that happens."""

    def __init__(self, scenario: Scenario, *, tracing: bool = False) -> None:
        self.scenario = scenario
        self.loop = VirtualLoop(deadline=_over_by(scenario), thread_delays=self._thread_delays)
        self.bucket = Bucket()
        self.weather: Weather = scenario.weather
        self.climate: Climate = scenario.climate
        self.reader_error = scenario.reader_error
        self.trace: list[str] = []
        self.pods: list[Pod] = []
        self._rng = self.rng("world")
        self._alive: list[Pod] = []
        self._done: set[int] = set()
        self._stopped = False
        self._calm = False
        self._ended = asyncio.Event()
        decode = decode_parquet if scenario.real_codec else decode_light
        self.audit = Audit(scenario, decode, self.loop.time, self._say if tracing else _say_nothing)
        self.bucket.observe = self.audit.effect
        if scenario.planted:
            self._plant()

    def rng(self, name: str) -> random.Random:
        """A source of chance for one part, so that what one part draws changes nothing for the others."""
        return random.Random(f"{self.scenario.seed} {name}")

    def codec(self, attempt: str, run_id: str) -> Codec:
        if not self.scenario.real_codec:
            return LightCodec(run_id, attempt)
        return ParquetCodec(
            run_id=run_id,
            plan_uid=WORK.plan_uid,
            attempt=attempt,
            node="node",
            model={},
            engine_version="0",
            prediction_type=pa.string(),
        )

    async def run(self) -> None:
        """From the first pod to the last; raises nothing for a violation, `audit` has it."""
        plan = self.scenario.plan
        for index in range(plan.workers):
            self.loop.after(self._rng.uniform(0, 5.0) if index else 0.0, self._start, index)
        for event in self.scenario.events:
            self.loop.after(event.time, self._happen, event)
        self.loop.after(self.scenario.calm_at, self._calm_down)
        await self._ended.wait()
        # What is still in the network must do no harm when it arrives.
        await self.bucket.quiet()
        self.audit.over(self.bucket, self._stopped)

    def _start(self, index: int | None) -> None:
        if index in self._done or self._stopped:
            return
        if len(self.pods) >= PODS_MOST:
            self.audit.fail("liveness", f"{PODS_MOST} pods were not enough")
            self._ended.set()
            return
        pod = Pod(self, f"{'help' if index is None else index}.{len(self.pods)}", index)
        self.pods.append(pod)
        self._alive.append(pod)
        self.audit.say(pod.name, "STARTS")
        pod.start().add_done_callback(lambda task: self._exited(pod, task), context=self.loop.outside)

    def _exited(self, pod: Pod, task: asyncio.Task[int]) -> None:
        error = None if task.cancelled() else task.exception()
        code = None if task.cancelled() or error is not None else task.result()
        pod.audit.exited(code, error)
        if isinstance(error, ToleranceExceeded) and not self._stopped:
            self._stop(pod)
        if code == exits.DONE and pod.index is not None:
            self._done.add(pod.index)
        self._gone(pod)

    def _stop(self, judge: Pod) -> None:
        """The run cannot be published any more: the job has failed, and its other pods are told to end."""
        self._stopped = True
        for pod in self._alive:
            if pod is not judge:
                self._thaw(pod)
                pod.drain()

    def _gone(self, pod: Pod) -> None:
        """The pod is no more: nothing of it runs on, and if its work is not done another takes its place."""
        pod.over = True
        self.loop.kill(pod.process)
        self._alive.remove(pod)
        if pod.index is not None:
            self.loop.after(self._rng.uniform(0.1, REPLACED_AFTER_S), self._replace, pod.index)
        self._look_for_the_end()

    def _replace(self, index: int) -> None:
        if all(pod.index != index or pod.process.frozen for pod in self._alive):
            self._start(index)
        self._look_for_the_end()

    def _look_for_the_end(self) -> None:
        everyone = self._stopped or len(self._done) == self.scenario.plan.workers
        if everyone and not self._alive and (self._calm or self._stopped):
            self._ended.set()

    def _calm_down(self) -> None:
        self.audit.say("world", "CALM")
        self._calm = True
        self.weather = Weather(latency_s=min(0.2, self.scenario.weather.latency_s), page=self.scenario.weather.page)
        self.climate = Climate(row_s=self.climate.row_s, seats=self.climate.seats, timeout_s=self.climate.timeout_s)
        self.reader_error = 0.0
        for pod in self._alive:
            self._thaw(pod)
        for index in range(self.scenario.plan.workers):
            self._replace(index)
        self._look_for_the_end()

    def _happen(self, event: Event) -> None:
        """Carries out an event on one of the pods that are alive."""
        if event.what == "helper":
            self._start(None)
            return
        if not self._alive or self._calm:
            return
        pod = self._alive[int(event.pick * len(self._alive))]
        # Not the digits of `pick` that have chosen the pod.
        engine = pod.engines[int(event.pick * 1000) % len(pod.engines)]
        self.audit.seen[event.what] += 1
        self.audit.say("world", f"{event.what} of {pod.name}")
        actions: dict[str, Callable[[], object]] = {
            "kill": lambda: self._kill(pod),
            "drain": pod.drain,
            "drain_twice": lambda: self._drain_and_then(pod, event.seconds / 10, pod.drain),
            "drain_then_kill": lambda: self._drain_and_then(pod, event.seconds / 2, lambda: self._kill(pod)),
            "freeze": lambda: self._freeze(pod, event.seconds),
            "freeze_long": lambda: self._freeze(pod, None),
            "twin": lambda: self._start(pod.index),
            "engine_death": lambda: engine.die("killed", event.seconds),
            "engine_stall": lambda: engine.stall(event.seconds),
            "engine_away": lambda: engine.die("killed", 350.0),
        }
        actions[event.what]()

    def _drain_and_then(self, pod: Pod, seconds: float, action: Callable[[], None]) -> None:
        pod.drain()
        self.loop.after(seconds, action)

    def _kill(self, pod: Pod) -> None:
        if not pod.over:
            self.audit.say(pod.name, "KILLED")
            pod.audit.killed()
            self._gone(pod)

    def _freeze(self, pod: Pod, seconds: float | None) -> None:
        """None: until the calm; a replacement is started beside it, as a controller that hears nothing of its node does."""
        if pod.draining:
            return
        self.loop.freeze(pod.process)
        pod.audit.frozen()
        if seconds is not None:
            self.loop.after(seconds, self._thaw, pod)
        elif pod.index is not None:
            self.loop.after(self._rng.uniform(0.1, REPLACED_AFTER_S), self._replace, pod.index)

    def _thaw(self, pod: Pod) -> None:
        if pod.process.frozen and not pod.over:
            self.audit.say(pod.name, "THAWS")
            self.loop.thaw(pod.process)
            pod.audit.thawed()

    def _thread_delays(self) -> tuple[float, float]:
        seconds = self.scenario.thread_s
        return (self._rng.uniform(0, seconds), self._rng.uniform(0, seconds)) if seconds else (0.0, 0.0)

    def _plant(self) -> None:
        """Objects that must not be read, or must be seen through: of other runs, torn, of another chunk."""
        others = [f"{WORKERS}/{RUN.job}/{RUN.partition}/{name}" for name in ("f" * 16, f"{RUN.run_id}-g2", f"{RUN.run_id}0")]
        others = [f"{folder}/{WORK.plan_uid}" for folder in others]
        # What a run of this name has left that was opened before.
        others += [RUN.prefix, RUN.work("0" * 16).prefix, f"{WORK.prefix}0"]
        for folder in others:
            for chunk in range(self.scenario.plan.chunk_count):
                self._put(f"{folder}/ledger/chunk-{chunk:08d}.parquet", b"of another run")
                self._put(f"{folder}/partials/chunk-{chunk:08d}/x.parquet", b"of another run")
        for chunk in range(self.scenario.plan.chunk_count):
            saved = f"{WORK.prefix}/partials/chunk-{chunk:08d}"
            self._put(f"{saved}/other.parquet", self._lies(chunk, "other", "f" * 16, chunk))
            self._put(f"{saved}/neighbour.parquet", self._lies(chunk, "neighbour", RUN.run_id, chunk + 1))
            self._put(f"{saved}/torn.parquet", b"torn")
        self._put(WORK.mark_path("torn", 0), b"torn")

    def _lies(self, chunk: int, attempt: str, run_id: str, named: int) -> bytes:
        """An object with the rows of a chunk that says it is the chunk `named` of that run."""
        ordinals = self.scenario.plan.chunk_range(chunk)
        results = {ordinal: Result(ordinal, "a lie", None, None, 1) for ordinal in ordinals}
        keys = pa.table({"id": pa.array(ordinals, pa.int64())})
        return self.codec(attempt, run_id).encode(OpenChunk(named, ordinals.start, len(ordinals), results), keys)

    def _put(self, path: str, body: bytes) -> None:
        self.bucket.put(0.0, path, body)
        self.audit.planted[path] = body

    def _say(self, who: str, what: str) -> None:
        self.trace.append(f"{self.loop.time():10.3f}  {who:<8} {what}")


def _say_nothing(_who: str, _what: str) -> None:
    pass


class _ToTrace(logging.Handler):
    """The workers' own log lines, between the world's."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage() == "progress":
            return
        process = current_process()
        self._world._say(process.name if process else "world", f"log: {record.getMessage()} {getattr(record, 'fields', '')}")


def seal_for_real(world: World) -> None:
    """The bucket's run, sealed by the real seal: it proves conservation by itself."""
    store = MemoryStore()
    for path, body in world.bucket.objects.items():
        obstore.put(store, path, body)
    plan = replace(
        world.scenario.plan, files=write_input(store, RUN, [None] * world.scenario.plan.rows, per_file=50, per_group=7)
    )
    manifest = seal_measured(store, RUN, a_spec(dead_letters__tolerate="100%"), plan)
    dead = sum(world.audit.dead.values())
    assert (manifest.rows, manifest.dead_letters) == (world.scenario.plan.rows, dead)
    # Whatever became of marks, what was measured holds at least what the ledger holds of those that were seen.
    measured = manifest.measured
    assert measured is not None
    seen = {path.split("/")[-2] for path in world.bucket.objects if path.startswith(f"{WORK.attempts_folder}/")}
    assert measured["attempts"] == len(seen | set(manifest.attempts))
    assert measured["not_seen"] == len(set(manifest.attempts) - seen) + ("torn" in seen)
    for profile in measured["profiles"]:
        assert 0 <= profile["rows_unused"] <= profile["rows"]
        assert sum(profile["ended"].values()) == profile["attempts"]


def simulate(
    seed: int,
    *,
    tracing: bool = False,
    without: frozenset[str] = frozenset(),
    change: Callable[[Scenario], Scenario] = lambda scenario: scenario,
) -> Report:
    """Runs the schedule of a seed. Raises Violated, with the trace's lines as `trace` when it was asked for."""
    world = World(change(draw(seed, without)), tracing=tracing)
    with _logging(world, tracing), _without_collection(), _bounds(world.scenario.answers):
        try:
            world.loop.run_until_complete(world.run())
        except (Deadlock, Livelock, TimeIsUp) as error:
            world.audit.fail("liveness", f"{error}; alive: {[pod.name for pod in world._alive]}, done: {sorted(world._done)}")
        finally:
            world.loop.close_all()
    for raised in world.loop.errors:
        world.audit.fail("crash", f"a callback raised {raised!r}")
    if world.audit.violations:
        violated = Violated(seed, world.audit.violations)
        violated.trace = tuple(world.trace)
        raise violated
    if world.scenario.real_codec and not world._stopped:
        with _logging(world, tracing):
            seal_for_real(world)
    return Report(
        seed=seed,
        rows=world.scenario.plan.rows,
        computed=sum(world.audit.computed.values()),
        pods=len(world.pods),
        steps=world.loop.steps,
        took_s=world.loop.time(),
        seen=world.audit.seen,
        trace=tuple(world.trace),
        carried_until=world.pods[0].audit.carried_until,
        asked=world.pods[0].audit.asked,
    )


@contextlib.contextmanager
def _logging(world: World, tracing: bool) -> Iterator[None]:
    """The workers' log goes into the trace, or nowhere."""
    logger, handler = logging.getLogger("nightshift"), _ToTrace(world)
    level = logger.level
    logger.setLevel(logging.INFO if tracing else logging.CRITICAL + 1)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _over_by(scenario: Scenario) -> float:
    """When the run must be over.

    A row that hangs is tried `TRIES` times. Before each of them it may hang once while nobody else is answered, which counts
    for nothing. If no other row is left, these times follow one another.
    """
    hanging = sum(nature is Nature.SLOW for nature in scenario.rows.natures.values())
    return scenario.calm_at + AFTER_CALM_S + hanging * 2 * TRIES * scenario.climate.timeout_s


def _bounds(answers: AnswerBounds) -> AbstractContextManager[None]:
    """The driver's constants, as the schedule has them."""
    waiting = [(commits, "WAITING_BYTES", answers.waiting), (commits, "ENCODED_BYTES", answers.encoded)]
    # Heartbeats of a life of half a minute show all that marks can do.
    return replaced([(worker, "ANSWER_BYTES", answers.open), *waiting, (heartbeats, "LEAST_S", 15.0)])


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """When garbage is collected must not depend on what ran before in this process."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
