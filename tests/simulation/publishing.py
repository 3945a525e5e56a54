"""Publishing under seeded schedules: the shipped task `publish`, the seal, its SQL and the order of runs, at random times.

One schedule has a few DAG runs that write into one table: of two jobs, of an edited job, of two deployments, of several
generations, of two days, and runs that a person asks for again. Each opens its run (`open_run`), seals it (`seal`) and
executes `PublishOperator` on `bigquery.Client`. Between any two calls and any two statements another one may go on, a
publisher may be killed or repeated while it still runs, BigQuery may lose a job, and somebody may overwrite a chunk. In every
fourth schedule there are redos, too: runs of the dead letters of what a day shows, opened by the shipped `open_again`. In
another fourth, nights fail, and leave their dead letters in the table (`failed_nights`).

Invariants, each checked after every step that changes a table:

rows      the partition holds exactly the rows of the run that was published last, of a redo also those of the runs that it
          completes, and the dead letters are those of the run that was published last
owner     no run replaces rows that another job, or another deployment, has published
order     no run replaces one that was asked for later
redo      a redo replaces the run that it completes, and another one only if a person has asked for that
load      nothing is loaded of a run that was altered before the try began
refusal   a run is refused only if one of these rules forbids it
green     a task that ends well has shown its run, or a later one has replaced it
liveness  once nothing goes wrong any more, every task ends

Not simulated: reading the source (`plan`, `extract`), rows that a person inserts.
"""

from __future__ import annotations

import contextlib
import functools
import io
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred
from google.api_core.exceptions import ServiceUnavailable
from greenlet import GreenletExit, getcurrent, greenlet
from obstore.store import MemoryStore, ObjectStore

from nightshift.operators import bigquery_jobs
from nightshift.operators.publish import PublishOperator
from nightshift.operators.redo import open_again, take_rows
from nightshift.planner.bills import seal_measured
from nightshift.run import chunks, opening
from nightshift.run.chunks import Provenance, Result
from nightshift.run.names import RunRef
from nightshift.run.plan import InputFile, Plan, save_plan
from nightshift.run.redo.redo import NotRedone, Redo
from nightshift.run.redo.redo_rows import WRITTEN
from nightshift.run.sealed_objects import SealBroken
from nightshift.store import StoreUnavailable, create_or_read
from nightshift.triggers.bigquery import jobs_event
from nightshift.warehouse import Warehouse, WarehouseError, WarehouseUnavailable
from nightshift.warehouse.extract import build_plan
from tests.builders import bound, opening_of
from tests.simulation.bigquery import BigQuery, Client, Job
from tests.simulation.check import Violated
from tests.simulation.failed_nights import Failure, JobFailed, key_of, leave
from tests.simulation.publishing_audit import Audit, Sealed, named, owner_of
from tests.simulation.publishing_scenario import RATING, SOURCE, Asked, Scenario, draw
from tests.simulation.replaced import replaced

BEGAN: Final = datetime(2026, 11, 22, 1, tzinfo=UTC)
STEPS_MOST: Final = 20_000
TRIES: Final = 6
"""Of one task, once nothing goes wrong any more: others may still collide with it."""


class Killed(BaseException):
    """The process of a task is gone."""


@dataclass
class Actor:
    """A task's process. wakes: when its turn may come (the world's seconds)."""

    name: str
    greenlet: greenlet
    pace: float
    wakes: float


class World:
    """Runs one schedule."""

    audit_by: type[Audit] = Audit

    def __init__(self, scenario: Scenario, say: Callable[[str], None]) -> None:
        self.scenario = scenario
        self.step = 0
        self.now_s = 0.0
        self.skew_s = 0.0
        self.violations: list[str] = []
        self.seen: Counter[str] = Counter()
        self.sealed: dict[tuple[str, str], Sealed] = {}
        self._say = say
        self._rng = random.Random(f"publishing world {scenario.seed}")
        self._stores = {asked.settings.bucket: MemoryStore() for asked in scenario.asked}
        self.service = BigQuery(self._stores, self.now)
        self._orders: dict[tuple[str, str, str], int] = {}
        self._actors: list[Actor] = []
        self._hub = getcurrent()
        self._asked_at: dict[tuple[str, str], str] = {}
        self._committed: dict[tuple[str, str], int] = {}
        """Of a run whose nights failed: how many chunks it had by the last of them."""
        self.audit = self.audit_by(self)

    def now(self) -> datetime:
        return BEGAN + timedelta(seconds=self.now_s)

    def fail(self, invariant: str, what: str) -> None:
        self.violations.append(f"{invariant}: {what} (step {self.step})")

    def say(self, what: str) -> None:
        actor = next((each.name for each in self._actors if each.greenlet is getcurrent()), "world")
        self._say(f"{self.step:6}  {actor:<24} {what}")

    def order_of(self, sealed: Sealed, asked_at: str) -> int:
        """The place of a run in the order in which runs were asked for, by the one clock that nobody has."""
        return self._orders[sealed.asked.settings.bucket, sealed.run.run_id, asked_at]

    def opened(self, sealed: Sealed) -> int:
        """The place of a run in that order, if nobody had asked for it again."""
        record = opening.load_run(self._stores[sealed.asked.settings.bucket], sealed.run)[1]
        return self.order_of(sealed, record.opened_at)

    def run(self) -> None:
        for number, asked in enumerate(self.scenario.asked):
            self._spawn(f"{number} {asked.spec.job}", asked, partial(self._night, asked))
        events = list(self.scenario.events)
        try:
            while not self.violations and self._advance():
                self.step += 1
                while events and events[0][0] <= self.step:
                    self._happen(events.pop(0)[1])
                self.audit.look()
            if not self.violations:
                self.audit.failed.at_the_end(self.sealed)
        finally:
            for actor in list(self._actors):
                actor.greenlet.throw()
            for job in self.service.running():
                job.interrupt()

    @property
    def _calm(self) -> bool:
        return self.step > self.scenario.calm

    def _advance(self) -> bool:
        """Somebody's turn; whether there was anybody."""
        if self.step > STEPS_MOST:
            self.fail("liveness", f"{[actor.name for actor in self._actors]} do not end")
            return False
        self.now_s += self._rng.uniform(0, 0.5)
        jobs = self.service.running()
        awake = [actor for actor in self._actors if actor.wakes <= self.now_s]
        if not awake and not jobs:
            if not self._actors:
                return False
            self.now_s = min(actor.wakes for actor in self._actors)
            awake = [actor for actor in self._actors if actor.wakes <= self.now_s]
        turn: Any = self._rng.choices(
            [*awake, *jobs], [*(actor.pace for actor in awake), *(self._pace_of(job) for job in jobs)]
        )[0]
        if isinstance(turn, Actor):
            turn.greenlet.switch()
        elif not self._calm and self._rng.random() < self.scenario.lost_job:
            self.seen["lost jobs"] += 1
            self._say(f"{self.step:6}  BigQuery loses {turn.job_id}")
            turn.interrupt()
        else:
            turn.step()
            if turn.done:
                self._say(f"{self.step:6}  {turn.job_id} ends: {turn.error_result or 'well'}")
        return True

    def _pace_of(self, job: Job) -> float:
        """How often a job's turn comes. Beside nights that fail some take long, so that others may begin and end meanwhile."""
        return (0.1, 2.0, 8.0)[zlib.crc32(job.job_id.encode()) % 3] if self.scenario.failures else 2.0

    def _spawn(self, name: str, asked: Asked, work: Callable[[], None]) -> None:
        def live() -> None:
            try:
                work()
            except (Killed, GreenletExit):
                pass
            finally:
                self._actors.remove(actor)

        actor = Actor(name, greenlet(live), asked.pace, self.now_s + asked.start_s)
        self._actors.append(actor)

    def pause(self, _call: str) -> None:
        """Lets others go on."""
        self._hub.switch()
        if not self._calm and self._rng.random() < self.scenario.unavailable:
            raise ServiceUnavailable("The service is currently unavailable.")  # type: ignore[no-untyped-call]

    def sleep(self, seconds: float) -> None:
        actor = next(each for each in self._actors if each.greenlet is getcurrent())
        actor.wakes = self.now_s + seconds
        self._hub.switch()

    def _happen(self, what: str) -> None:
        self._say(f"{self.step:6}  {what.upper()}")
        runs = sorted(self.sealed)
        if what == "kill" and self._actors:
            self.seen[what] += 1
            victim = self._rng.choice(self._actors)
            if victim.greenlet:
                victim.greenlet.throw(Killed)
        elif what == "again" and runs:
            # Airflow takes a process for dead that is not, or a person clears the task.
            self.seen[what] += 1
            sealed = self.sealed[self._rng.choice(runs)]
            asked_at = self._asked_at[sealed.asked.settings.bucket, sealed.run.run_id]
            asked = replace(sealed.asked, start_s=0.0, pace=self._rng.choice((0.05, 1.0, 4.0)))
            self._spawn(f"again {sealed.run.job}", asked, lambda: self._publish(sealed, asked_at))
        elif what == "fail" and runs:
            self._fails(self.sealed[self._rng.choice(runs)])
        elif what in ("overwrite", "delete") and runs:
            self._alter(self.sealed[self._rng.choice(runs)], what)

    def _fails(self, sealed: Sealed) -> None:
        """A night of the run that ends without publishing it, when a part of its chunks, or all, were committed."""
        self.seen["fail"] += 1
        place, chunks = (sealed.asked.settings.bucket, sealed.run.run_id), len(sealed.manifest.chunks)
        committed = self._committed[place] = self._rng.randint(self._committed.get(place, 0), chunks)
        asked = replace(sealed.asked, start_s=0.0, pace=self._rng.choice((0.02, 0.2, 8.0)))
        self._spawn(f"failure {sealed.run.job}", asked, lambda: self._leave(Failure.of(sealed, committed), committed))

    def _leave(self, failure: Failure, committed: int) -> None:
        """The task audit_failure, with Airflow's retries."""
        sealed = failure.sealed
        settings, place = sealed.asked.settings, (sealed.asked.settings.bucket, sealed.run.run_id)
        self.audit.failed.begins(failure)
        tries = 0
        while tries < TRIES:
            tries += self._calm
            before = self.audit.publications_of(key_of(sealed))
            client = Client(self.service, self.pause, self._reply_lost, lambda job_id: self.say(f"starts {job_id}"))
            warehouse = Warehouse(client, settings)  # type: ignore[arg-type]
            try:
                leave(warehouse, failure, failure.chunks(self._stores[settings.bucket], committed), SOURCE, self._ended)
            except JobFailed as error:
                self.say(f"FAILS: {error}")
                if sealed.altered is None:
                    self.fail("refusal", f"the dead letters of {named(sealed)} are refused without a reason: {error}")
                return
            except Killed:
                self.say("KILLED")
                if self._rng.random() < 0.2:
                    self.audit.failed.abandoned.add(place)
                    return
            except WarehouseUnavailable as error:
                self.seen["retries"] += 1
                self.say(f"tries again: {error}")
            else:
                self.say("HAS LEFT ITS DEAD LETTERS")
                self.seen["left"] += bool(failure.rows)
                self.audit.failed.ended(failure, before)
                return
            self.sleep(self._rng.uniform(1.0, 60.0))
        self.fail("liveness", f"the dead letters of {named(sealed)} were not left with {TRIES} tries, and nothing was wrong")

    def _ended(self, names: list[str]) -> list[Job]:
        """Waits for jobs, as the trigger does."""
        while not all((job := self.service.jobs.get(name)) is not None and job.done for name in names):
            self._hub.switch()
        return [self.service.jobs[name] for name in names]

    def _alter(self, sealed: Sealed, what: str) -> None:
        entries = sealed.manifest.chunks
        if not entries:
            return
        self.seen[what] += 1
        sealed.changed = self.step if sealed.changed is None else sealed.changed
        entry = self._rng.choice(entries)
        store = self._stores[sealed.asked.settings.bucket]
        if what == "delete":
            with contextlib.suppress(FileNotFoundError):
                obstore.delete(store, entry.path)
        else:
            obstore.put(
                store,
                entry.path,
                chunk_of(sealed.asked, sealed.run, sealed.manifest.plan, entry.chunk, "forged", sealed.ids),
            )

    def _night(self, asked: Asked) -> None:
        """A DAG run."""
        store = self._stores[asked.settings.bucket]
        if asked.again:
            mine = [each for each in self.sealed.values() if owner_of(each) == (asked.settings.bucket, asked.spec.job)]
            found = [each for each in mine if each.run.partition == asked.day]
            if not found:
                return
            sealed, asked_at = self._rng.choice(found), self.now().isoformat(timespec="microseconds")
        else:
            if (run := self._opened(asked)) is None:
                return
            record = opening.load_run(store, run)[1]
            asked_at = record.opened_at
            self._orders.setdefault((asked.settings.bucket, run.run_id, asked_at), len(self._orders))
            self._hub.switch()
            if (done := self._sealed(asked, run, record.redo)) is None:
                return
            sealed = done
        bucket, run_id = asked.settings.bucket, sealed.run.run_id
        self._orders.setdefault((bucket, run_id, asked_at), len(self._orders))
        self._asked_at[bucket, run_id] = asked_at
        self.say(f"{named(sealed)}, asked for at {asked_at}")
        if self.scenario.failures:
            self._fails(sealed)
        self._hub.switch()
        self._publish(sealed, asked_at)

    def _opened(self, asked: Asked) -> RunRef | None:
        """The run of a DAG run; None if there cannot be a redo."""
        store, opened_by = self._stores[asked.settings.bucket], str(id(asked))
        if not asked.redo:
            self.skew_s = asked.skew_s
            run = opening.open_run(store, asked.spec, asked.day, opened_by=opened_by, fresh=asked.fresh)
            self.skew_s = 0.0
            return run
        client = Client(self.service, self.pause, self._reply_lost, lambda _: None)
        warehouse = Warehouse(client, asked.settings)  # type: ignore[arg-type]
        while True:
            try:
                return open_again(store, warehouse, asked.spec, asked.day, opened_by)
            except WarehouseUnavailable:
                self.sleep(self._rng.uniform(1.0, 60.0))
            except (NotRedone, SealBroken, WarehouseError) as error:
                self.say(f"NO REDO: {error}")
                return None

    def _sealed(self, asked: Asked, run: RunRef, redo: Redo | None) -> Sealed | None:
        """The run, computed and sealed, unless it is already; None if it is a redo and refused.

        redo: by the run's record. A DAG run that does not ask for a redo continues one that is open.
        """
        key = (asked.settings.bucket, run.run_id)
        if key in self.sealed:
            self.seen["redos joined" if redo else "runs joined"] += 1
        elif redo is None:
            self.sealed[key] = self._night_sealed(asked, run)
        elif (redone := self._redo_sealed(asked, run, redo)) is not None:
            self.sealed[key] = redone
        return self.sealed.get(key)

    def _night_sealed(self, asked: Asked, run: RunRef) -> Sealed:
        store = self._stores[asked.settings.bucket]
        plan = save_plan(
            store,
            run,
            bound(store, run, Plan(run.run_id, asked.rows, asked.chunk_rows, 1, _inputs(store, asked, run), source=SOURCE)),
        )
        return self._computed(asked, run, plan, tuple(range(asked.rows)), None)

    def _redo_sealed(self, asked: Asked, run: RunRef, redo: Redo) -> Sealed | None:
        store = self._stores[asked.settings.bucket]
        earlier = self.sealed[asked.settings.bucket, redo.run_id]
        try:
            take_rows(store, run, redo)
            fix = lambda rows, size: (1, asked.chunk_rows, ())  # noqa: E731
            opening = opening_of(store, run)
            plan = build_plan(store, run, asked.spec, SOURCE, fix=fix, opening=opening, rows=redo.dead_letters, attempt=WRITTEN)
            dead = frozenset(n for n in range(plan.rows) if self._rng.random() < 0.3)
            ids = tuple(earlier.ids[n] for n in sorted(earlier.dead))
            sealed = self._computed(replace(asked, rows=plan.rows, dead=dead), run, plan, ids, earlier)
        except NotRedone as error:
            # Somebody has altered the earlier run meanwhile.
            self.say(f"NO REDO: {error}")
            if earlier.altered is None:
                self.fail("refusal", f"the redo of {named(earlier)} is refused without a reason: {error}")
            return None
        self.seen["redos" if asked.redo else "redos of a night"] += 1
        return sealed

    def _computed(self, asked: Asked, run: RunRef, plan: Plan, ids: tuple[int, ...], completes: Sealed | None) -> Sealed:
        store = self._stores[asked.settings.bucket]
        for chunk in range(plan.chunk_count):
            create_or_read(store, run.work(plan.uid).chunk_path(chunk), chunk_of(asked, run, plan.uid, chunk, "genuine", ids))
        manifest = seal_measured(store, run, asked.spec, plan, redo=opening.load_run(store, run)[1].redo)
        own = {
            (ids[n], prediction_of(asked, run, n, "genuine"), run.run_id, n) for n in range(asked.rows) if n not in asked.dead
        }
        rows = own | (completes.rows if completes else frozenset())
        shown = completes.run.run_id if completes else ""
        return Sealed(asked, run, manifest, ids, frozenset(rows), asked.dead, completes, shown)

    def _publish(self, sealed: Sealed, asked_at: str) -> None:
        """The task, with Airflow's retries."""
        order = self.order_of(sealed, asked_at)
        tries = 0
        while tries < TRIES:
            tries += self._calm
            try:
                self._try(sealed, asked_at)
            except AirflowFailException as error:
                self.say(f"REFUSED: {error}")
                self.audit.refused(sealed, asked_at, str(error))
                return
            except Killed:
                self.say("KILLED")
                if self._rng.random() < 0.2:
                    self.audit.failed.abandoned.add((sealed.asked.settings.bucket, sealed.run.run_id))
                    return
            except (AirflowException, WarehouseUnavailable, StoreUnavailable) as error:
                self.seen["retries"] += 1
                self.say(f"tries again: {error}")
            else:
                self.say("ENDS WELL")
                self.audit.ended_well(sealed, order)
                return
            self.sleep(self._rng.uniform(1.0, 60.0))
        self.fail("liveness", f"{named(sealed)} was not published with {TRIES} tries, and nothing was wrong")

    def _try(self, sealed: Sealed, asked_at: str) -> None:
        """One process after the other: each deferral ends one."""
        began, settings = self.step, sealed.asked.settings

        def submitted(job_id: str) -> None:
            self.say(f"starts {job_id}")
            if "-publish" in job_id:
                for _ in range(self.scenario.failures):
                    self._fails(sealed)
            if "-stage" in job_id and sealed.altered is not None and sealed.altered < began:
                self.fail("load", f"{job_id} loads chunks that were altered before")

        client = Client(self.service, self.pause, self._reply_lost, submitted)
        warehouse = Warehouse(client, settings)  # type: ignore[arg-type]

        def task() -> PublishOperator:
            made = PublishOperator(task_id="publish", run_prefix=sealed.run.prefix, terms="", asked_at=asked_at)
            quiet = SimpleNamespace(info=lambda *_: None, warning=lambda *_: None)
            parts = {"settings": settings, "store": self._stores[settings.bucket], "warehouse": warehouse}
            made.__dict__.update(parts, _cached_logger=quiet, keep_lineage=lambda: None)
            return made

        context: Any = {"outlet_events": {}, "dag_run": SimpleNamespace(run_id="night")}
        go_on: Callable[[], Any] = lambda: task().execute(context)  # noqa: E731
        while True:
            try:
                go_on()
            except TaskDeferred as deferral:
                self.seen["deferrals"] += 1
                go_on = self._resumed(deferral, warehouse, task, context)
            else:
                return

    def _resumed(
        self, deferral: TaskDeferred, warehouse: Warehouse, task: Callable[[], PublishOperator], context: Any
    ) -> Callable[[], Any]:
        """Waits as the trigger does."""
        names = list(deferral.trigger.job_ids)
        self._ended(names)
        event = jobs_event([warehouse.job(name) for name in names])
        return lambda: getattr(task(), deferral.method_name)(context, event)

    def _reply_lost(self) -> bool:
        return not self._calm and self._rng.random() < self.scenario.lost_reply


def prediction_of(asked: Asked, run: RunRef, ordinal: int, word: str) -> str:
    return f"{word} {asked.settings.bucket} {run.run_id} {ordinal}"


def _inputs(store: ObjectStore, asked: Asked, run: RunRef) -> tuple[InputFile, ...]:
    if not asked.rows:
        return ()
    path = f"{run.inputs_folder}/1-part-0.parquet"
    create_or_read(store, path, _exported(asked.rows))
    meta = obstore.head(store, path)
    return (InputFile(path.removeprefix(f"{run.prefix}/"), asked.rows, (asked.rows,), meta["size"], str(meta["e_tag"])),)


@functools.cache
def _exported(rows: int) -> bytes:
    body = io.BytesIO()
    pq.write_table(_carried(range(rows)).append_column("text", [["x"] * rows]), body)
    return body.getvalue()


def _carried(ids: Sequence[int]) -> pa.Table:
    """The columns that chunks copy."""
    return pa.table({"id": pa.array(ids, pa.int64()), "rating": pa.array([each * RATING for each in ids], pa.int64())})


def chunk_of(asked: Asked, run: RunRef, plan_uid: str, number: int, word: str, ids: Sequence[int]) -> bytes:
    ordinals = range(number * asked.chunk_rows, min((number + 1) * asked.chunk_rows, asked.rows))
    results = [
        Result(n, None, "too_long", "too long", 1)
        if n in asked.dead
        else Result(n, prediction_of(asked, run, n, word), None, None, 1)
        for n in ordinals
    ]
    dead = sum(n in asked.dead for n in ordinals)
    provenance = Provenance(
        run_id=run.run_id,
        chunk=number,
        attempt="pod-0",
        node="node",
        model={},
        engine_version="0",
        started="2026-11-21T01:00:00+00:00",
        finished="2026-11-21T01:00:01+00:00",
        predictions=len(ordinals) - dead,
        dead_letters=dead,
        prompt_tokens=1,
        plan_uid=plan_uid,
    )
    return chunks.encode(_carried([ids[n] for n in ordinals]), results, pa.string(), provenance)


@dataclass(frozen=True)
class Report:
    seed: int
    steps: int
    seen: Counter[str]


def simulate(seed: int, say: Callable[[str], None] = lambda line: None) -> Report:
    """Runs the schedule of a seed. Raises Violated."""
    return run(World(draw(seed), say), seed)


def run(world: World, seed: int) -> Report:
    """The schedule of a world to its end. Raises Violated."""
    with clocks(world):
        world.run()
    if world.violations:
        raise Violated(seed, world.violations)
    return Report(seed, world.step, world.seen)


def outcome(seed: int) -> Report | str:
    """The report of a schedule, or what it violated."""
    return outcome_of(simulate, seed)


def outcome_of(simulated: Callable[[int], Report], seed: int) -> Report | str:
    try:
        return simulated(seed)
    except Violated as error:
        return str(error)
    except Exception as error:  # The simulator's own mistake must not end the others' runs.
        return f"seed {seed}: {error!r}"


@contextlib.contextmanager
def clocks(world: World) -> Iterator[None]:
    """The world's time where the shipped code asks for the time."""

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return world.now() + timedelta(seconds=world.skew_s)

    virtual = SimpleNamespace(monotonic=lambda: world.now_s, time=lambda: world.now().timestamp(), sleep=world.sleep)
    with replaced([(opening, "datetime", Clock), (bigquery_jobs, "time", virtual)]):
        yield
