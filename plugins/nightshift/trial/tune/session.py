"""A tune from its question to its result: rows, trials one after the other, each kept as it ends, a record for the planner."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from nightshift.fields.text import n
from nightshift.planner.inputs import known_of
from nightshift.planner.record import Record, workload_of
from nightshift.planner.roofline import CannotStart, estimate
from nightshift.planner.speed import Known, api_servers_of
from nightshift.planner.speeds import path_of
from nightshift.run.answers.compare import compared
from nightshift.run.names import canonical_json, digest_of
from nightshift.run.parquet_rows import whole
from nightshift.run.pins import UNPINNED
from nightshift.store import create_or_read, reaching
from nightshift.tasks.base import load_kind
from nightshift.trial.preview.outcome import EngineTaken
from nightshift.trial.preview.rows import NoRows, kept_rows, read_rows, to_parquet
from nightshift.trial.tune import sample, text
from nightshift.trial.tune.also import Found, Setting
from nightshift.trial.tune.engines import EngineFailed, Engines, JobSetEngines
from nightshift.trial.tune.patch import of_file
from nightshift.trial.tune.points import Cause, Point, Space
from nightshift.trial.tune.search import Choice, Measure, Outcome, Question, Searcher
from nightshift.trial.tune.space import COMPUTE, SEQS_MOST, accelerators, at, changes_of, patched, space_of
from nightshift.trial.tune.trials import Kept, Trial

if TYPE_CHECKING:
    from pathlib import Path

    from obstore.store import ObjectStore

    from nightshift.spec import JobSpec
    from nightshift.trial.preview import outcome
    from nightshift.trial.preview.session import Surroundings

T = TypeVar("T")

WARM_UP: Final = 16
"""Rows before those that are measured: the first requests of an engine are slow."""
DEAD_MOST: Final = 0.05
"""Of a trial's rows: dead letters cost an engine nothing, so with more its rate means little."""
KV_MOST: Final = 0.98
"""Of the KV cache under the soak: above it, rows wait for room."""
SOAK: Final = 2
"""Rows of a soak for each one that the point computes at once: so many that all of them are, and the next ones wait."""
SOAK_SHARE: Final = 0.25
"""Of the sample's rows, at least, so that a soak of few takes its time too: the KV cache is looked at once a second."""
POOL_MOST: Final = 4_000
TRIES: Final = 3
"""Of a trial whose machine is taken away: after them the tune ends, and goes on when it is called again."""


class UnfitRows(Exception):
    """Too many rows of the sample are dead letters. The message says what to do."""


@dataclass(frozen=True)
class Task:
    """rows: of a trial. budget_s: seconds of trials, those that were kept earlier included. also: settings that may change
    answers, to be tried at the end."""

    spec: JobSpec
    partition: str
    rows: int
    budget_s: float
    also: tuple[Setting, ...] = ()


Told = Callable[[int, Trial, Space, float | None], None]
"""Gets the number of a trial, the trial, what is searched, and the default's rate in rows a second."""


@dataclass(frozen=True)
class Result:
    """changes: to the job file, empty if it stays as it is. folder: of the kept trials."""

    space: Space
    trials: tuple[Trial, ...]
    choice: Choice
    changes: dict[str, Any]
    folder: str
    also: tuple[Found, ...] = ()

    @property
    def sentence(self) -> str:
        return text.sentence(self.choice, self.space, self.trials)

    def patch(self, file: Path) -> str:
        """Of the job's file, as `nightshift.trial.tune.patch.of_file`."""
        return of_file(file, self.changes)

    def patch_with(self, found: Found, file: Path) -> str:
        """The same with a setting that may change answers; "" if it brings nothing."""
        return of_file(file, _together(self.changes, found.setting)) if found.better else ""

    def to_json(self, file: Path) -> dict[str, Any]:
        """As docs/use/before-the-night.md has it. file: the job's."""
        choice, point = self.choice, self.choice.point
        return {
            "default": self.space.default.to_json(),
            "chosen": point and point.to_json(),
            "ratio": choice.ratio,
            "low": choice.low,
            "high": choice.high,
            "better": choice.better,
            "changes": self.changes,
            "patch": self.patch(file),
            "sentence": self.sentence,
            "folder": self.folder,
            "also": [{**found.to_json(), "patch": self.patch_with(found, file)} for found in self.also],
            "trials": [trial.to_json() for trial in self.trials],
        }


def tune(task: Task, world: Surroundings, told: Told, engines: Engines | None = None) -> Result:
    """Runs trials until nothing is to be gained or the budget is used up. engines: by default JobSets of the runtime.

    Raises NoRows, UnfitRows, Elsewhere, NotReadable, EngineTaken, StoreUnavailable, and what engines and warehouse raise.
    """
    kind, engines = load_kind(task.spec), engines or JobSetEngines(world.store, world.settings, world.runtime)
    named = [task.spec.model_dump(mode="json"), task.partition, task.rows, world.settings.project]
    kept = Kept(world.store, task.spec.job, digest_of(named))
    table = _rows(task, world, kept, kind.columns)
    space = kept.space(lambda: _space(task.spec, world, table, kind.server_args))
    trials = kept.trials()
    searcher = Searcher(space)
    for number, trial in enumerate(trials, 1):
        searcher.tell(trial.question, trial.outcome)
        told(number, trial, space, _default_rate(trials[:number], space))
    if trials:
        world.say(f"{len(trials)} trials of an earlier call are kept in {kept.folder}; it goes on with the next")
    warm_up, measured = table.slice(0, WARM_UP), table.slice(min(WARM_UP, len(table) - 1))
    texts = sample.texts_of(measured, kind.columns)
    while (question := searcher.ask(_left(trials, task.budget_s))) is not None:
        rows = measured
        if question.measure is Measure.SOAK:
            rows = measured.take(sample.longest(texts, _soak_rows(question.point, len(measured))))
        number = len(trials) + 1

        def ask(names: list[str], question: Question = question, rows: pa.Table = rows) -> Trial:
            return _trial(task.spec, space, question, (warm_up, rows), engines, names)

        trial = _repeated(ask, world, kept, number)
        kept.keep(number, trial)
        trials.append(trial)
        searcher.tell(question, trial.outcome)
        told(number, trial, space, _default_rate(trials, space))
    choice = searcher.choice()
    _keep_records(world.store, task.spec, space, trials, choice, kept.folder)
    also = Also(task.spec, world, engines, kept, space, searcher, (warm_up, measured), texts, len(trials) + 1)
    found = tuple(also.tried(choice.point, setting) for setting in task.also) if choice.point else ()
    return Result(space, tuple(trials), choice, _changes(task.spec, space, trials, choice), kept.folder, found)


@dataclass
class Also:
    """Tries settings that may change answers: the rows at the chosen point, beside the answers without the setting, and the
    soak. number: of their attempts. own: the answers without."""

    spec: JobSpec
    world: Surroundings
    engines: Engines
    kept: Kept
    space: Space
    searcher: Searcher
    tables: tuple[pa.Table, pa.Table]
    texts: list[str]
    number: int
    own: outcome.Outcome | None = None

    def tried(self, point: Point, setting: Setting) -> Found:
        return self.kept.also(point, setting, lambda: self._found(point, setting))

    def _found(self, point: Point, setting: Setting) -> Found:
        job, rows = at(setting.on(self.spec), point, self.space.default), self.tables[1]
        try:
            if self.own is None:
                self.own = self._answers(at(self.spec, point, self.space.default), rows)
            seen = self._answers(job, rows)
            same = compared(self.own.rows, seen.rows)
            most = _soak_rows(point, len(rows))
            soaked = self._answers(job, rows.take(sample.longest(self.texts, most)))
        except EngineFailed as error:
            return Found(setting, cause=error.cause)
        if cause := _cause(Measure.SPEED, seen) or _cause(Measure.SOAK, soaked):
            return Found(setting, cause=cause, same=same)
        rate = (len(rows) - seen.dead) / seen.seconds / accelerators(job)
        return Found(setting, *self.searcher.beside(point, rate), same=same)

    def _answers(self, job: JobSpec, rows: pa.Table) -> outcome.Outcome:
        def ask(names: list[str]) -> outcome.Outcome:
            return self.engines.trial(job, names, self.tables[0], rows, answers=True)

        return _repeated(ask, self.world, self.kept, self.number)


def _soak_rows(point: Point, sampled: int) -> int:
    return max(SOAK * point.max_num_seqs * point.engines, int(SOAK_SHARE * sampled))


def _repeated(ask: Callable[[list[str]], T], world: Surroundings, kept: Kept, number: int) -> T:
    """What a trial gives, which is repeated if its machine was taken away. Raises EngineTaken if that goes on."""
    taken = 0
    while True:
        attempt = kept.begin(number)
        try:
            return ask([f"{kept.tune}-{number}-{each}" for each in range(1, attempt + 1)])
        except EngineTaken as error:
            taken += 1
            if taken == TRIES:
                raise
            world.say(f"trial {number} is repeated: {str(error).rstrip('.')}")


def _trial(
    spec: JobSpec, space: Space, question: Question, tables: tuple[pa.Table, pa.Table], engines: Engines, names: list[str]
) -> Trial:
    began = time.monotonic()
    job = at(spec, question.point, space.default)
    moment = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        seen = engines.trial(job, names, *tables)
    except EngineFailed as error:
        took = round(time.monotonic() - began, 3)
        return Trial(question, Outcome(cause=error.cause), took_s=took, words=error.words, at=moment)
    rows = len(tables[1])
    if seen.dead > DEAD_MOST * rows:
        raise UnfitRows(
            f"{seen.dead:,} of {n(rows, 'row')} are dead letters, which cost an engine little: correct the job or its "
            "rows first. nightshift preview shows them"
        )
    cause = _cause(question.measure, seen)
    rate = (rows - seen.dead) / seen.seconds / accelerators(job)
    return Trial(
        question,
        Outcome(cause=cause) if cause else Outcome(rate),
        rows=rows - seen.dead,
        seconds=round(seen.seconds, 3),
        took_s=round(time.monotonic() - began, 3),
        tokens_in=seen.prompt_tokens,
        tokens_out=seen.output_tokens,
        preemptions=seen.preemptions,
        kv_cache=round(seen.kv_cache, 4),
        at=moment,
    )


def _cause(measure: Measure, seen: outcome.Outcome) -> Cause | None:
    """Why a trial that was answered is a failure all the same."""
    if seen.losses:
        return Cause.DIED
    if seen.preemptions:
        return Cause.PREEMPTED  # What has no room for the sample has none for its longest rows.
    return Cause.KV_CACHE_FULL if measure is Measure.SOAK and seen.kv_cache > KV_MOST else None


def _left(trials: list[Trial], budget_s: float) -> int | None:
    """How many more trials there is room for, if each takes as long as those so far."""
    if not trials:
        return None
    used = max(sum(trial.took_s for trial in trials), 1e-3)
    return max(0, int((budget_s - used) / (used / len(trials))))


def _rows(task: Task, world: Surroundings, kept: Kept, columns: tuple[str, ...]) -> pa.Table:
    """The rows of all trials of this tune: chosen once."""
    body = kept.rows()
    if body is None:
        pool = _pool(task, world, columns)
        wanted = task.rows + WARM_UP
        chosen = pool.take(sample.stratified(sample.texts_of(pool, columns), wanted))
        body = kept.keep_rows(to_parquet(chosen))
    table = whole(body)
    if len(table) < 2:
        raise NoRows(f"The query of job {task.spec.job} returns fewer than 2 rows for partition {task.partition}.")
    return table


def _pool(task: Task, world: Surroundings, columns: tuple[str, ...]) -> pa.Table:
    wanted = min(POOL_MOST, sample.POOL * (task.rows + WARM_UP))
    if (found := sample.pool_of_run(world.store, task.spec, task.partition, columns, wanted)) is not None:
        run, table = found
        world.say(f"{n(len(table), 'row')} of run {run.prefix}, of which {task.rows:,} are taken for each trial")
        return table
    asked = (task.spec, task.partition, wanted, world.settings.project)
    rows = kept_rows(world.store, *asked)
    if rows is None:
        source = world.warehouse(job=task.spec.job, step="tune")
        bytes_ = source.query_bytes(task.spec, task.partition)
        world.say(f"no run of {task.partition} has the rows, so the query is read once, whole, for {wanted:,} of them")
        rows = read_rows(world.store, source, *asked, bytes_)
    return rows.table


def _space(spec: JobSpec, world: Surroundings, table: pa.Table, server_args: tuple[str, ...]) -> Space:
    credentials = world.credentials if spec.model.uri.startswith("gs://") else None

    def some(columns: Sequence[str], rows: int) -> list[dict[str, Any]]:
        some_rows = table.take(list(range(0, len(table), -(-len(table) // rows))))
        found: list[dict[str, Any]] = some_rows.select([name for name in columns if name in table.column_names]).to_pylist()
        return found

    known = known_of(spec, UNPINNED, sample=some, environment=world.environment, credentials=credentials)
    servers = api_servers_of(spec, known).get(spec.compute.worker().profile.name, 1)
    return space_of(spec, server_args, _seats(spec, known), servers)


def _seats(spec: JobSpec, known: Known) -> int | None:
    """How many rows at once the memory holds, by the roofline; None if that is not known."""
    if known.model is None:
        return None
    try:
        found = estimate(
            known.model,
            spec.compute.worker(),
            known.tokens,
            seqs=SEQS_MOST,
            length=spec.engine.max_model_len,
            flags=spec.engine.flags,
        )
    except CannotStart:
        return None  # A trial finds out.
    return found.seats


def _default_rate(trials: list[Trial], space: Space) -> float | None:
    rates = [each.outcome.rate for each in trials if each.question == Question(space.default, Measure.SPEED)]
    return next((rate for rate in rates if rate), None)


def _together(changes: Mapping[str, Any], setting: Setting) -> dict[str, Any]:
    engine = dict(changes.get("engine", {}))
    added = setting.changes
    if "args" in engine and "args" in added:
        added = {"args": {**engine["args"], **added["args"]}}
    return {**changes, "engine": {**engine, **added}}


def _changes(spec: JobSpec, space: Space, trials: list[Trial], choice: Choice) -> dict[str, Any]:
    """To the job file: of a point that is better, or that holds where the default does not."""
    broken = any(trial.question.point == space.default and trial.outcome.cause for trial in trials)
    if choice.point is None or not (choice.better or broken):
        return {}
    changes = changes_of(spec, choice.point, space.default)
    compute = {name: changes.pop(name) for name in COMPUTE if name in changes}
    return {name: values for name, values in (("engine", changes), ("compute", compute)) if values}


def _keep_records(store: ObjectStore, spec: JobSpec, space: Space, trials: list[Trial], choice: Choice, folder: str) -> None:
    """The speeds of the default and of the chosen point, for the planner; a repeat of the same tune finds them there."""
    for point in dict.fromkeys(each for each in (space.default, choice.point) if each is not None):
        record = _record(patched(spec, point, space.default), point, trials, folder)
        if record is not None:
            path = path_of(record)
            with reaching(f"write {path}"):
                create_or_read(store, path, canonical_json(record.to_json()))


def _record(job: JobSpec, point: Point, trials: list[Trial], folder: str) -> Record | None:
    mine = [trial for trial in trials if trial.question == Question(point, Measure.SPEED) and trial.outcome.cause is None]
    if not mine:
        return None
    return Record(
        workload=workload_of(job, job.compute.profile),
        run=folder,
        sealed_at=mine[-1].at,
        rows=sum(trial.rows for trial in mine),
        workers=1,
        work_s=sum(trial.seconds for trial in mine),
        alive_s=sum(trial.took_s for trial in mine),
        input_tokens=sum(trial.tokens_in for trial in mine),
        output_tokens=sum(trial.tokens_out for trial in mine),
        preemptions=0,
        profile=job.compute.profile,
    )
