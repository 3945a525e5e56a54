"""A run's folder of which a part was deleted, then its day triggered: the shipped tasks on a bucket in memory.

A lifecycle rule deletes object by object, in no promised order, and so does a command that is interrupted. So from the objects
of a night every subset may be left. `after` deletes one, puts other rows into the source, and triggers the day with one of
`TRIGGERS`. What may come of it:

refused    a sentence that names what is missing, or what to trigger; the table stays as it was
published  the table shows all rows of the source as it was, or all as it is now, and nothing else (`World.check`)

The tasks are the shipped operators; BigQuery is `Source`, which exports and loads as it is asked to, and the pods of `infer`
are `World.work`, which reads and commits as a driver does. The same with BigQuery's emulator and real drivers is
tests/integration/warehouse/test_deleted_in_part.py.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import io
import itertools
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, Final

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from obstore.store import MemoryStore

from nightshift.driver.environment import ConfigError
from nightshift.driver.main import _load
from nightshift.hooks import warehouse as hook
from nightshift.operators.extract import ExtractOperator
from nightshift.operators.infer import InferOperator
from nightshift.operators.plan import PlanOperator
from nightshift.operators.publish import PublishOperator
from nightshift.operators.run import RunOperator
from nightshift.operators.seal import SealOperator
from nightshift.planner.costs import prices
from nightshift.run import chunks
from nightshift.run.chunks import Provenance, Result
from nightshift.run.inputs import InputChanged, InputReader
from nightshift.run.ledger import Ledger
from nightshift.run.manifest import RunManifest
from nightshift.run.names import RunRef
from nightshift.run.order import Counts
from nightshift.run.plan import ExportedSource
from nightshift.run.redo.redo import Redo
from nightshift.settings import Settings
from nightshift.store import ObjectStorage
from nightshift.warehouse import JobState, WarehouseError
from tests.builders import a_spec
from tests.simulation.replaced import Change, replaced

DAY: Final = "2026-11-20"
SPEC: Final = a_spec(
    task="chat", request={"user": "{{ text }}"}, chunk_rows=2, compute__workers=1, dead_letters__tolerate="50%"
)
SETTINGS: Final = Settings(bucket="b", project="acme")
TRIGGERS: Final = ("plain", "fresh", "republish", "redo", "corrected")
BAD: Final = "bad"
"""A text that the engine refuses, until it is repaired."""

Rows = Mapping[int, str]
"""Texts, or answers, by key."""


_QUICK: Final[tuple[Change, ...]] = (
    (RunOperator, "keep_lineage", lambda *_args, **_counts: None),
    (prices, "load_prices", functools.cache(prices.load_prices)),
)
"""What takes most of a task's time, and has nothing to do with its run's folder."""


class Wrong(AssertionError):
    """The table shows what it must not, or a task has failed without a sentence."""


@dataclass
class Source:
    """BigQuery: the source, the destination, and its memory of jobs, which outlives the bucket's objects."""

    store: MemoryStore
    rows: Rows
    shown: dict[int, str] = field(default_factory=dict)
    run: RunRef | None = None
    asked: dict[str, str] = field(default_factory=dict)
    jobs: dict[str, JobState] = field(default_factory=dict)
    exports: dict[str, list[str]] = field(default_factory=dict)
    bytes_asked: int | None = None
    keys: None = None
    """The job does not say that they are unique."""
    _staged: dict[int, str] = field(default_factory=dict)

    def check_query(self, *_: Any) -> ExportedSource:
        return ExportedSource({"id": "INT64", "text": "STRING"}, ("acme.d.t",))

    read_source = check_query

    def check_destination(self, *_: Any) -> None: ...

    def count_rows(self, *_: Any) -> int:
        return len(self.rows)

    def count_prefixes(self, _spec: Any, _partition: Any, columns: Sequence[str]) -> Counts:
        """No two rows have the same values, so no order is worth anything."""
        ones = (1,) * len(columns)
        return Counts(len(self.rows), tuple(columns), tuple(len(self.rows) * one for one in ones), ones)

    def sample_rows(self, *_: Any) -> list[dict[str, Any]]:
        return []

    def has_published(self, _: Any, run: RunRef) -> bool:
        return run.run_id in self.asked

    def asked_last(self, *_: Any) -> datetime | None:
        return max(map(datetime.fromisoformat, self.asked.values()), default=None)

    def shown_run(self, *_: Any) -> str | None:
        return None if self.run is None else self.run.run_id

    def obstacle(self, _: Any, run: RunRef, asked_at: str, completes: Redo | None = None) -> str | None:
        others = {name: at for name, at in self.asked.items() if name != run.run_id}
        later = [name for name, at in others.items() if datetime.fromisoformat(at) > datetime.fromisoformat(asked_at)]
        own = (run.run_id, completes.run_id, completes.shown) if completes else ()
        overtaken = completes is not None and self.run is not None and self.run.run_id not in own
        return f"a later run is shown: {later}. Trigger the DAG with fresh" if later or overtaken else None

    def check_may_replace(self, spec: Any, run: RunRef, asked_at: str, completes: Redo | None = None) -> None:
        if problem := self.obstacle(spec, run, asked_at, completes):
            raise WarehouseError(problem)

    def start_extract(self, _: Any, run: RunRef, *, into: Any, holds: Any, order: Any = None) -> str:
        """As `nightshift.warehouse.jobs`: a job that succeeded is found again if what it wrote is still there."""
        names = self.exports.setdefault(run.run_id, [])
        for attempt, name in enumerate(names):
            if holds(attempt):
                return name
        attempt = len(names)
        names.append(f"{run.run_id}-extract-{attempt}")
        self.jobs[names[-1]] = JobState(names[-1], True, statistics={"exported_rows": len(self.rows)})
        for number, part in _parts(self.rows):
            obstore.put(self.store, into(attempt).replace("*", f"{number:012d}"), _parquet(dict(part)))
        return names[-1]

    def start_staging(
        self, _: Any, run: RunRef, manifest: RunManifest, __: Any, *, asked_at: str, prompts: Any = None
    ) -> list[str]:
        self._staged = {}
        for each in (manifest, *manifest.earlier):
            for entry in each.chunks:
                table = chunks.decode(bytes(obstore.get(self.store, entry.path).bytes()))[0]
                for row in [row for row in table.to_pylist() if row["dead_reason"] is None]:
                    if row["id"] in self._staged:
                        raise Wrong(f"row {row['id']} is loaded twice")
                    self._staged[row["id"]] = row["prediction"]
        return []

    def start_publish(self, _: Any, run: RunRef, *__: Any, asked_at: str, completes: Redo | None, prompts: Any = None) -> str:
        self.check_may_replace(None, run, asked_at, completes)
        self.shown, self.run, self.asked[run.run_id] = dict(self._staged), run, asked_at
        self.jobs["publish"] = JobState("publish", True)
        return "publish"

    def finish_publish(self, _: Any, run: RunRef, manifest: RunManifest, __: Any, *, asked_at: str) -> dict[str, Any]:
        counts = {"predictions": len(self.shown), "dead_letters": manifest.dead_letters}
        return {"partition": DAY, "table": "d.out", "published_at": asked_at, **counts}

    def job(self, job_id: str) -> JobState:
        return self.jobs[job_id]


def _parts(rows: Rows) -> Iterator[tuple[int, list[tuple[int, str]]]]:
    listed = sorted(rows.items())
    return enumerate(listed[at : at + 4] for at in range(0, len(listed), 4))


def _parquet(rows: Rows) -> bytes:
    body = io.BytesIO()
    table = {"id": pa.array(list(rows), pa.int64()), "text": pa.array(list(rows.values()), pa.string())}
    pq.write_table(pa.table(table), body, row_group_size=3)
    return body.getvalue()


def answers(rows: Rows, *, repaired: bool) -> Rows:
    """What the table shows of these rows."""
    return {key: f"answer to {text}" for key, text in rows.items() if repaired or not text.startswith(BAD)}


class World:
    """A bucket, BigQuery, and DAG runs of one job and day."""

    def __init__(self, rows: Rows) -> None:
        self.store = MemoryStore()
        self.source = Source(self.store, rows)
        self.repaired = False
        self.runs = 0
        self.said = ""

    def trigger(self, *, interrupted: bool = False, **params: Any) -> RunRef:
        """One DAG run; interrupted: up to the middle of the task infer. Raises AirflowFailException as its tasks do."""
        self.runs += 1
        with (
            replaced(_QUICK),
            replaced([(hook, "warehouse_for", lambda _settings, **_: self.source)]),
            DAG("job", schedule=None),
        ):
            told = self._task(PlanOperator, spec=SPEC.model_dump(mode="json"), _warehouse=self.source).execute(
                self._context(params)
            )
            run = RunRef.from_prefix(told["run_prefix"])
            shared = {"run_prefix": told["run_prefix"], "terms": json.dumps(told["spec"])}
            self._task(ExtractOperator, **shared, decision=told["decision"] or "").execute({})
            if interrupted:
                self.work(run, 2)
                return run
            infer = self._task(InferOperator, **shared)
            infer.__dict__.update(run_jobset=lambda _context: self.work(run), drop_jobsets=lambda _context: None)
            infer.execute({})
            self._task(SealOperator, **shared).execute({})
            task = self._task(PublishOperator, **shared, asked_at=told["asked_at"], warehouse=self.source)
            task.execute({"outlet_events": {}, "dag_run": SimpleNamespace(run_id="night")})
        return run

    def work(self, run: RunRef, most: int = 100) -> dict[str, Any]:
        """A driver's life: it commits the chunks that are missing."""
        try:
            loaded = _load(self.store, run)
        except ConfigError as error:
            raise AirflowFailException(str(error)) from error
        ledger = Ledger(ObjectStorage(self.store), run, loaded.plan)
        reader = InputReader(self.store, run, loaded.plan, ("id", "text"))
        committed = asyncio.run(ledger.committed())
        for chunk in [number for number in range(loaded.plan.chunk_count) if number not in committed][:most]:
            try:
                rows = reader.read(chunk)
            except InputChanged as error:
                raise AirflowFailException(str(error)) from error
            asyncio.run(ledger.commit(chunk, self._chunk(run, loaded.plan.uid, chunk, loaded.plan.chunk_range(chunk), rows)))
        return {"jobset": "job"}

    def _chunk(self, run: RunRef, plan_uid: str, chunk: int, ordinals: range, rows: pa.Table) -> bytes:
        results = [
            Result(ordinal, None, "rejected", "no", 1)
            if text.startswith(BAD) and not self.repaired
            else Result(ordinal, f"answer to {text}", None, None, 1)
            for ordinal, text in zip(ordinals, rows.column("text").to_pylist(), strict=True)
        ]
        dead = sum(result.reason is not None for result in results)
        counts = len(results) - dead, dead, 1
        made = Provenance(run.run_id, chunk, f"pod-{self.runs}", "node", {}, "0", "", "", *counts, plan_uid=plan_uid)
        return chunks.encode(rows.select(["id"]), results, pa.string(), made)

    def _task(self, kind: type[Any], warehouse: Any = None, _warehouse: Any = None, **options: Any) -> Any:
        task = kind(task_id=f"{kind.__name__}-{self.runs}", **options)
        quiet = SimpleNamespace(**dict.fromkeys(("debug", "info", "warning"), lambda *_: None))
        task.__dict__.update(settings=SETTINGS, store=self.store, storage_credentials=None, _cached_logger=quiet)
        task.__dict__.update({name: value for name, value in (("warehouse", warehouse), ("_warehouse", _warehouse)) if value})
        return task

    def _context(self, params: Mapping[str, Any]) -> Any:
        began = SimpleNamespace(run_id=f"run {self.runs}", run_type="manual", start_date=datetime.now(UTC))
        return {"params": {"partition": DAY, **params}, "dag_run": began}

    def paths(self) -> list[str]:
        return sorted(meta["path"] for page in obstore.list(self.store) for meta in page)


BEFORE: Final = {**{number: f"old {number}" for number in range(6)}, 3: f"{BAD} 3"}
"""The rows of the first night."""
NOW: Final = ({number + 4: f"new {number + 4}" for number in range(6)}, {number: f"new {number}" for number in range(5)})
"""What the source has later: as many rows with other keys, and fewer."""


class Night:
    """A first night, of which a part will be deleted. sealed: it was published; else half of its chunks are committed."""

    def __init__(self, *, sealed: bool) -> None:
        self._world, interrupted = World(BEFORE), not sealed
        self.run = self._world.trigger(interrupted=interrupted)
        self.paths = self._world.paths()

    def left(self, gone: Collection[int]) -> World:
        """What it has left but for the objects with these numbers."""
        world = World(BEFORE)
        world.runs, world.source = self._world.runs, copy.deepcopy(self._world.source, {id(self._world.store): world.store})
        _copy(self._world.store, world.store)
        for path in [path for number, path in enumerate(self.paths) if number in gone]:
            obstore.delete(world.store, path)
        return world


def _copy(store: MemoryStore, to: MemoryStore) -> None:
    """With the ETags, which plan and manifest name: a store in memory numbers what is put."""
    found = {int(str(meta["e_tag"]).strip('"')): meta["path"] for page in obstore.list(store) for meta in page}
    for number in range(max(found) + 1):
        path = found.get(number)
        obstore.put(to, path or "filler", bytes(obstore.get(store, path).bytes()) if path else b"")
    if len(found) <= max(found):
        obstore.delete(to, "filler")


def after(night: Night, gone: Collection[int], trigger: str, now: Rows, changes: Sequence[Change] = ()) -> str:
    """Deletes the objects with these numbers, and triggers the day. Returns what came of it. Raises Wrong."""
    with replaced(changes):
        world, run = night.left(gone), night.run
        before = dict(world.source.shown)
        world.source.rows, world.repaired = now, True
        asked: dict[str, dict[str, Any]] = {
            "plain": {},
            "fresh": {"fresh": True},
            "republish": {"republish": run.run_id},
            "redo": {"redo": "dead_letters"},
            "corrected": {"redo": "corrected"},
        }
        try:
            shown = world.trigger(**asked[trigger])
        except AirflowFailException as error:
            _check_refusal(str(error), trigger)
            if world.source.shown != before:
                raise Wrong(f"refused, but the table was changed: {error}") from error
            world.trigger(fresh=True)
            _check_rows(world, answers(now, repaired=True), "after fresh")
            return "refused"
        except AirflowException as error:
            # AirflowSkipException of a redo: nothing to redo.
            raise Wrong(f"{trigger}: {error!r}") from error
        # A half-computed run has the answers of both engines, but of the same rows.
        old = answers(BEFORE, repaired=False), answers(BEFORE, repaired=True)
        new = answers(now, repaired=True)
        if trigger == "fresh" or shown != run:
            mended = {**old[0], **{key: text for key, text in new.items() if BEFORE.get(key, "").startswith(BAD)}}
            wanted = [{"redo": old[1], "corrected": mended}.get(trigger, new)]
        else:
            wanted = [*old, new] if _planned_again(world, run) else [*old]
        if dict(world.source.shown) not in wanted:
            raise Wrong(f"{trigger} shows {world.source.shown}, not one of {wanted}")
        return "published"


def _planned_again(world: World, run: RunRef) -> bool:
    """Whether the plan is not of the rows of the first night: then the export was gone, too."""
    return len(world.source.exports[run.run_id]) > 1


def _check_refusal(words: str, trigger: str) -> None:
    if trigger == "fresh":
        raise Wrong(f"fresh was refused: {words}")
    if "fresh" not in words:
        raise Wrong(f"the refusal does not say what to do: {words}")


def _check_rows(world: World, wanted: Rows, when: str) -> None:
    if dict(world.source.shown) != dict(wanted):
        raise Wrong(f"{when} the table shows {world.source.shown}, not {wanted}")


def subsets(count: int) -> Iterator[frozenset[int]]:
    for size in range(count + 1):
        yield from map(frozenset, itertools.combinations(range(count), size))
