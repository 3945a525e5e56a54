"""One seed's schedule: the plan, what goes wrong with rows, storage and engines, what happens to whom.."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any, Final

from nightshift.driver import commits, worker
from nightshift.driver.worker import WorkerLimits
from nightshift.run.names import RunRef
from nightshift.run.plan import InputFile, Plan
from tests.simulation.engines import OUTAGES, Climate, Failing
from tests.simulation.rows import Nature, Rows
from tests.simulation.storage import Weather

RUN: Final = RunRef("job", "2026-11-20", "0123456789abcdef")
WORK: Final = RUN.work("fedcba9876543210")
REAL_CODEC_EVERY: Final = 20
"""One seed in so many uses the driver's own Parquet codec and the real seal; it takes longer."""

STORAGE_FAULTS: Final = {
    "lost_reply": 0.4,
    "never": 0.4,
    "late": 0.4,
    "resent": 0.4,
    "slow": 0.3,
    "read_error": 0.3,
    "list_error": 0.3,
}
"""The highest probability of each."""
ENGINE_FAULTS: Final = {"busy": 0.4, "failed": 0.3, "invalid": 0.3, "aborted": 0.3, "stuck": 0.1, "reset": 0.2}
EVENTS: Final = {
    "kill": 4,
    "drain": 4,
    "drain_twice": 1,
    "drain_then_kill": 2,
    "freeze": 4,
    "freeze_long": 2,
    "twin": 3,
    "helper": 2,
    "engine_death": 3,
    "engine_stall": 2,
    "engine_away": 0.5,
}
"""What may happen to a worker, and how often beside each other."""
SWITCHES: Final = (
    *STORAGE_FAULTS,
    "outage",
    *ENGINE_FAULTS,
    "storm",
    "failing",
    "connections",
    "engines",
    "flight",
    "answers",
    *EVENTS,
    *Nature,
    "planted",
    "reader",
    "threads",
    "tolerance",
)
"""Everything that can be switched off to see whether a failure needs it."""


@dataclass(frozen=True)
class Event:
    """Something that happens to the worker that `pick` (0 to 1) points at among those alive. seconds: for how long."""

    time: float
    what: str
    pick: float
    seconds: float


@dataclass(frozen=True)
class AnswerBounds:
    """The driver's bounds on bytes of answers, which are constants there.

    open: with so many in open and waiting chunks, no chunk is opened. waiting: the same of the waiting ones alone. encoded: how
    many are encoded and stored at once.
    """

    open: int = worker.ANSWER_BYTES
    waiting: int = commits.WAITING_BYTES
    encoded: int = commits.ENCODED_BYTES


@dataclass(frozen=True)
class Scenario:
    """All that is drawn. engines: of each pod.

    calm_at: when faults end, frozen workers thaw, and each home has a worker until the run is over.
    """

    seed: int
    plan: Plan
    rows: Rows
    rows_per_request: int
    limits: WorkerLimits
    weather: Weather
    climate: Climate
    reader_error: float
    thread_s: float
    planted: bool
    events: tuple[Event, ...]
    calm_at: float
    real_codec: bool
    answers: AnswerBounds = AnswerBounds()
    engines: int = 1

    def describe(self) -> str:
        """In words, for the head of a trace."""
        plan, storage, engines = self.plan, self.weather, self.climate
        bad = " ".join(f"{ordinal}:{nature}" for ordinal, nature in sorted(self.rows.natures.items()))
        events = "; ".join(f"{event.time:.1f} s {event.what}" for event in self.events)
        return f"""seed {self.seed}: {plan.rows} rows in chunks of {plan.chunk_rows}, {plan.workers} homes, \
{self.rows_per_request} rows a request, calm at {self.calm_at:.1f} s{", real codec" if self.real_codec else ""}
bad rows: {bad or "none"}
limits: {self.limits}, {self.answers}
storage: {storage.latency_s:.3f} s, pages of {storage.page}, {storage.faults() or "no faults"}
{self.engines} engines a pod: {engines.seats} seats, {engines.row_s:.2f} s a row, {engines.faults() or "no faults"}
events: {events or "none"}"""


def draw(seed: int, without: frozenset[str] = frozenset()) -> Scenario:
    """The schedule of a seed. without: names of `SWITCHES` that are switched off; all else stays as it was drawn."""
    rng = random.Random(f"scenario {seed}")
    plan = _plan(rng)
    rows = _rows(rng, plan, without)
    limits = _limits(rng, rows)
    climate = _climate(rng, limits)
    # A source of chance of their own: the rest of every schedule stays as it was before there were these faults.
    limits, climate = _narrowed(random.Random(f"narrowed {seed}"), limits, climate)
    width = min(climate.seats, limits.window_start) * plan.workers
    busy_s = min(60.0, max(4.0, 1.5 * plan.rows * climate.row_s / width))
    weather = _weather(rng, busy_s)
    events = _events(rng, busy_s)
    scenario = Scenario(
        seed=seed,
        plan=plan,
        rows=rows,
        rows_per_request=rng.choice((1, 1, 2, 4, 8)),
        limits=limits,
        weather=weather,
        climate=climate,
        reader_error=rng.choice((0.0, 0.0, 0.1)),
        thread_s=rng.choice((0.0, 0.0, 0.01, 0.5)),
        planted=rng.random() < 0.2,
        events=events,
        calm_at=busy_s * rng.uniform(1.0, 2.0),
        real_codec=seed % REAL_CODEC_EVERY == 0,
        answers=_answers(random.Random(f"answers {seed}")),
    )
    scenario = _beside_each_other(random.Random(f"engines {seed}"), scenario)
    return _switched_off(scenario, without)


def _switched_off(scenario: Scenario, without: frozenset[str]) -> Scenario:
    calm: dict[str, Any] = {name: 0.0 for name in STORAGE_FAULTS if name in without}
    still: dict[str, Any] = {name: 0.0 for name in ENGINE_FAULTS if name in without}
    calm |= {"outages": ()} if "outage" in without else {}
    still |= {"storms": ()} if "storm" in without else {}
    still |= {"failing": ()} if "failing" in without else {}
    still |= {"connections": Climate().connections} if "connections" in without else {}
    scenario = replace(scenario, engines=1) if "engines" in without else scenario
    limits = scenario.limits
    limits = replace(limits, dead_letters=None) if "tolerance" in without else limits
    limits = replace(limits, flight_bytes=WorkerLimits(1).flight_bytes) if "flight" in without else limits
    return replace(
        scenario,
        weather=replace(scenario.weather, **calm),
        climate=replace(scenario.climate, **still),
        events=tuple(event for event in scenario.events if event.what not in without),
        planted=scenario.planted and "planted" not in without,
        reader_error=0.0 if "reader" in without else scenario.reader_error,
        thread_s=0.0 if "threads" in without else scenario.thread_s,
        limits=limits,
        answers=AnswerBounds() if "answers" in without else scenario.answers,
    )


def _plan(rng: random.Random) -> Plan:
    rows = rng.choice((0, rng.randint(1, 8), *[rng.randint(4, 60)] * 8)) if rng.random() < 0.2 else rng.randint(8, 60)
    chunk_rows = rng.choice((1, 2, 3, 4, 5, 8, 12, 20))
    chunks = -(-rows // chunk_rows)
    workers = min(max(1, chunks), rng.choice((1, 1, 2, 2, 3, 4)))
    files = (InputFile("inputs/a.parquet", rows, (rows,), 1, "e"),) if rows else ()
    return Plan(RUN.run_id, rows, chunk_rows, workers, files, uid=WORK.plan_uid)


def _rows(rng: random.Random, plan: Plan, without: frozenset[str]) -> Rows:
    natures: dict[int, Nature] = {}
    common = [nature for nature in Nature if nature not in (Nature.POISON, Nature.SLOW)]
    if rng.random() < 0.4:
        share = rng.uniform(0.01, 0.2)
        natures |= {ordinal: rng.choice(common) for ordinal in range(plan.rows) if rng.random() < share}
    for nature, chance, most in ((Nature.POISON, 0.2, 3), (Nature.SLOW, 0.04, 3)):
        if plan.rows and rng.random() < chance:
            natures |= {rng.randrange(plan.rows): nature for _ in range(rng.randint(1, most))}
    return Rows(plan.rows, {ordinal: nature for ordinal, nature in sorted(natures.items()) if nature not in without})


def _limits(rng: random.Random, rows: Rows) -> WorkerLimits:
    tolerated = rng.choice((None, None, None, None, 0, 1, 3, len(rows.natures)))
    limits = WorkerLimits(
        window_start=rng.choice((1, 2, 4, 8, 16)),
        window_most=rng.choice((1, 4, 16, 64, 64)),
        buffer_bytes=rng.choice((1, 500, 256 << 20, 256 << 20)),
        dead_letters=tolerated,
    )
    # A draw for a setting that is gone: without it every seed of mutants.json would be another schedule.
    rng.choice((None, None, None, 5.0))
    return limits


def _some(rng: random.Random, highest: dict[str, float]) -> dict[str, Any]:
    """None of the faults in two of five schedules, else one to three of them, mild or hard."""
    if rng.random() < 0.4:
        return {}
    names = rng.sample(sorted(highest), rng.randint(1, 3))
    return {name: highest[name] * rng.choice((0.1, 0.5, 1.0)) for name in names}


def _spans(rng: random.Random, chance: float, within: float, longest: float) -> tuple[tuple[float, float], ...]:
    if rng.random() > chance:
        return ()
    start = rng.uniform(0, within)
    return ((start, start + rng.uniform(0, longest)),)


def _weather(rng: random.Random, busy_s: float) -> Weather:
    return Weather(
        latency_s=rng.choice((0.001, 0.02, 0.2, 1.0)),
        late_s=rng.choice((1.0, 10.0, 60.0, 300.0)),
        slow_s=rng.choice((1.0, 10.0, 40.0)),
        outages=_spans(rng, 0.1, busy_s, rng.choice((10.0, 40.0, 100.0))),
        page=rng.choice((1, 2, 5, 1000)),
        **_some(rng, STORAGE_FAULTS),
    )


def _climate(rng: random.Random, limits: WorkerLimits) -> Climate:
    row_s, seats = rng.choice((0.05, 0.2, 1.0, 3.0)), rng.choice((2, 4, 8, 32))
    return Climate(
        row_s=row_s,
        uneven=rng.choice((0.0, 0.3, 0.8)),
        seats=seats,
        # Longer than the longest wait for a seat and than a stall: a row that runs out of time does so by itself.
        timeout_s=rng.choice((25.0, 40.0)) + 3 * row_s * (limits.window_most / seats + 2),
        downtime_s=rng.choice((0.5, 5.0, 20.0)),
        metrics=rng.random() < 0.7,
        storms=_spans(rng, 0.1, 20.0, 30.0),
        **_some(rng, ENGINE_FAULTS),
    )


def _narrowed(rng: random.Random, limits: WorkerLimits, climate: Climate) -> tuple[WorkerLimits, Climate]:
    """With an engine that fails everybody for a while, few connections, or little memory for requests."""
    failing = tuple(Failing(start, end, rng.choice(OUTAGES)) for start, end in _spans(rng, 0.15, 20.0, 120.0))
    connections = rng.choice((2, 3, 4)) if rng.random() < 0.1 else climate.connections
    flight_bytes = rng.choice((1, 40, 200)) if rng.random() < 0.15 else limits.flight_bytes
    return replace(limits, flight_bytes=flight_bytes), replace(climate, failing=failing, connections=connections)


def _answers(rng: random.Random) -> AnswerBounds:
    """Little memory for answers, in one place at most, so that no bound hides another one."""
    if rng.random() < 0.85:
        return AnswerBounds()
    return AnswerBounds(**{rng.choice(("open", "waiting", "encoded")): rng.choice((1, 40, 120))})


def _beside_each_other(rng: random.Random, scenario: Scenario) -> Scenario:
    """With several engines in each pod, in one of four schedules, of which one alone may fail everybody."""
    engines = rng.choice((1, 1, 1, 1, 1, 1, 2, 3))
    first = int(engines > 1 and rng.random() < 0.7)
    failing = tuple(replace(span, first=first) for span in scenario.climate.failing)
    return replace(scenario, engines=engines, climate=replace(scenario.climate, failing=failing))


def _events(rng: random.Random, busy_s: float) -> tuple[Event, ...]:
    names, weights = list(EVENTS), list(EVENTS.values())
    count = rng.choice((0, 1, 1, 2, 2, 3, 4, 6, 10))
    drawn = [
        Event(rng.uniform(0, busy_s), rng.choices(names, weights)[0], rng.random(), rng.uniform(0.1, 20.0))
        for _ in range(count)
    ]
    return tuple(sorted(drawn, key=lambda event: event.time))
