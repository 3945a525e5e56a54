"""A tune from its question to its result: rows, trials one after the other, each kept as it ends, a record for the planner."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from nightshift.fields.text import n
from nightshift.planner.record import Record, workload_of
from nightshift.planner.roofline import CannotStart, estimate
from nightshift.planner.speed import Known, api_servers_of
from nightshift.planner.speeds import path_of
from nightshift.run.answers.compare import compared
from nightshift.run.names import canonical_json, digest_of
from nightshift.run.parquet_rows import whole
from nightshift.store import create_or_read, reaching
from nightshift.tasks.base import load_kind
from nightshift.trial.engine_jobset import EngineFailed, Engines, JobSetEngines
from nightshift.trial.outcomes import Cause, EngineTaken
from nightshift.trial.rows import NoRows, longest, rows_of_query, rows_of_run, stratified, texts_of, to_parquet
from nightshift.trial.tune import tune_text
from nightshift.trial.tune.also import Found, Setting
from nightshift.trial.tune.patch import merged, of_file
from nightshift.trial.tune.points import Point, Space
from nightshift.trial.tune.search import Choice, Measure, Question, Searcher
from nightshift.trial.tune.space import COMPUTE, SEQS_MOST, accelerators, at, changes_of, patched, space_of
from nightshift.trial.tune.trials import Kept, Trial

if TYPE_CHECKING:
    from pathlib import Path

    from nightshift.spec import JobSpec
    from nightshift.trial.outcomes import Outcome as Answers
    from nightshift.trial.world import World

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
POOL: Final = 4
"""Rows that are looked at for each one of the sample."""
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
        return tune_text.sentence(self.choice, self.space, self.trials)

    def patch(self, file: Path) -> str:
        """Of the job's file, as `nightshift.trial.tune.patch.of_file`."""
        return of_file(file, self.changes)

    def patch_with(self, found: Found, file: Path) -> str:
        """The same with a setting that may change answers; "" if it brings nothing."""
        return of_file(file, merged(self.changes, {"engine": found.setting.changes})) if found.better else ""

    def to_json(self, file: Path) -> dict[str, Any]:
        """As docs/use/before-the-night.md has it. file: the job's."""
        choice, point = self.choice, self.choice.point
        return {
            "default": asdict(self.space.default),
            "chosen": point and asdict(point),
            "ratio": choice.ratio,
            "low": choice.low,
            "high": choice.high,
            "better": choice.better,
            "changes": self.changes,
            "patch": self.patch(file),
            "sentence": self.sentence,
            "folder": self.folder,
            "also": [{**found.to_json(), "patch": self.patch_with(found, file)} for found in self.also],
            "trials": [asdict(trial) for trial in self.trials],
        }


def tune(task: Task, world: World, told: Told, engines: Engines | None = None) -> Result:
    """Runs trials until nothing is to be gained or the budget is used up. engines: by default JobSets of the runtime.

    Raises NoRows, UnfitRows, Elsewhere, NotATune, EngineTaken, StoreUnavailable, and what engines and warehouse raise.
    """
    return _Tune(task, world, told, engines or JobSetEngines(world.store, world.settings, world.runtime)).result()


class _Tune:
    """Rows, what is searched, and the trials so far."""

    def __init__(self, task: Task, world: World, told: Told, engines: Engines) -> None:
        self._task, self._spec, self._world, self._told, self._engines = task, task.spec, world, told, engines
        named = [task.spec.model_dump(mode="json"), task.partition, task.rows, world.settings.project]
        self._kept = Kept(world.store, task.spec.job, digest_of(named))
        kind = load_kind(task.spec)
        table = self._chosen(kind.columns)
        self._warm_up, self._rows = table.slice(0, WARM_UP), table.slice(min(WARM_UP, len(table) - 1))
        self._texts = texts_of(self._rows, kind.columns)
        self._space = self._kept.space(lambda: self._wanted(table, kind.server_args))
        self._searcher = Searcher(self._space)
        self._trials: list[Trial] = []

    def result(self) -> Result:
        for trial in self._kept.trials():
            self._add(trial)
        if self._trials:
            self._world.say(
                f"{len(self._trials)} trials of an earlier call are kept in {self._kept.folder}; it goes on with the next"
            )
        while (question := self._searcher.ask(self._left())) is not None:
            trial = self._repeated(partial(self._trial, question))
            self._kept.keep(len(self._trials) + 1, trial)
            self._add(trial)
        choice = self._searcher.choice()
        self._keep_records(choice)
        found: tuple[Found, ...] = ()
        if (point := choice.point) is not None:
            # Without the setting, once for all of them.
            own = cache(lambda: self._answers(self._job(point), self._rows))
            found = tuple(
                self._kept.also(point, setting, partial(self._found, point, setting, own)) for setting in self._task.also
            )
        return Result(self._space, tuple(self._trials), choice, self._changes(choice), self._kept.folder, found)

    def _add(self, trial: Trial) -> None:
        self._trials.append(trial)
        self._searcher.tell(trial.question, trial.outcome)
        default = Question(self._space.default, Measure.SPEED)
        rate = next((each.rate for each in self._trials if each.question == default and each.rate), None)
        self._told(len(self._trials), trial, self._space, rate)

    def _left(self) -> int | None:
        """How many more trials there is room for, if each takes as long as those so far."""
        if not self._trials:
            return None
        used = max(sum(trial.took_s for trial in self._trials), 1e-3)
        return max(0, int((self._task.budget_s - used) / (used / len(self._trials))))

    def _repeated(self, ask: Callable[[list[str]], T]) -> T:
        """What a trial gives, which is repeated if its machine was taken away. Raises EngineTaken if that goes on."""
        number, taken = len(self._trials) + 1, 0
        while True:
            attempt = self._kept.begin(number)
            try:
                return ask([f"{self._kept.tune}-{number}-{each}" for each in range(1, attempt + 1)])
            except EngineTaken as error:
                taken += 1
                if taken == TRIES:
                    raise
                self._world.say(f"trial {number} is repeated: {str(error).rstrip('.')}")

    def _trial(self, question: Question, names: list[str]) -> Trial:
        began, job = time.monotonic(), self._job(question.point)
        moment = datetime.now(UTC).isoformat(timespec="seconds")
        table = self._soak(question.point) if question.measure is Measure.SOAK else self._rows
        try:
            seen = self._engines.trial(job, names, self._warm_up, table)
        except EngineFailed as error:
            took = round(time.monotonic() - began, 3)
            return Trial(question.point, question.measure, cause=error.cause, took_s=took, words=error.words, at=moment)
        rows = len(table)
        if seen.dead > DEAD_MOST * rows:
            raise UnfitRows(
                f"{seen.dead:,} of {n(rows, 'row')} are dead letters, which cost an engine little: correct the job or its "
                "rows first. nightshift preview shows them"
            )
        cause = _cause(question.measure, seen)
        return Trial(
            question.point,
            question.measure,
            0.0 if cause else _rate(job, rows, seen),
            cause,
            rows=rows - seen.dead,
            seconds=round(seen.seconds, 3),
            took_s=round(time.monotonic() - began, 3),
            tokens_in=seen.prompt_tokens,
            tokens_out=seen.output_tokens,
            preemptions=seen.preemptions,
            kv_cache=round(seen.kv_cache, 4),
            at=moment,
        )

    def _found(self, point: Point, setting: Setting, own: Callable[[], Answers]) -> Found:
        """What a setting that may change answers brings: the rows, beside `own` answers, and the soak."""
        job = self._job(point, setting)
        try:
            before, seen = own(), self._answers(job, self._rows)
            same = compared(before.rows, seen.rows)
            soaked = self._answers(job, self._soak(point))
        except EngineFailed as error:
            return Found(setting, cause=error.cause)
        if cause := _cause(Measure.SPEED, seen) or _cause(Measure.SOAK, soaked):
            return Found(setting, cause=cause, same=same)
        return Found(setting, *self._searcher.beside(point, _rate(job, len(self._rows), seen)), same=same)

    def _answers(self, job: JobSpec, rows: pa.Table) -> Answers:
        return self._repeated(lambda names: self._engines.trial(job, names, self._warm_up, rows, answers=True))

    def _job(self, point: Point, setting: Setting | None = None) -> JobSpec:
        return at(setting.on(self._spec) if setting else self._spec, point, self._space.default)

    def _soak(self, point: Point) -> pa.Table:
        most = max(SOAK * point.max_num_seqs * point.engines, int(SOAK_SHARE * len(self._rows)))
        return self._rows.take(longest(self._texts, most))

    def _chosen(self, columns: tuple[str, ...]) -> pa.Table:
        """The rows of all trials of this tune: chosen once."""
        body, wanted = self._kept.rows(), self._task.rows + WARM_UP
        if body is None:
            pool = self._pool(columns, min(POOL_MOST, POOL * wanted))
            body = self._kept.keep_rows(to_parquet(pool.take(stratified(texts_of(pool, columns), wanted))))
        table = whole(body)
        if len(table) < 2:
            raise NoRows(f"The query of job {self._spec.job} returns fewer than 2 rows for partition {self._task.partition}.")
        return table

    def _pool(self, columns: tuple[str, ...], wanted: int) -> pa.Table:
        if (found := rows_of_run(self._world.store, self._spec, self._task.partition, columns, wanted)) is not None:
            run, table = found
            self._world.say(
                f"{n(len(table), 'row')} of run {run.prefix}, of which {self._task.rows:,} are taken for each trial"
            )
            return table
        self._world.say(f"no run of {self._task.partition} has the rows")
        return rows_of_query(self._world, self._spec, self._task.partition, wanted, "tune").table

    def _wanted(self, table: pa.Table, server_args: tuple[str, ...]) -> Space:
        def some(columns: Sequence[str], rows: int) -> list[dict[str, Any]]:
            some_rows = table.take(list(range(0, len(table), -(-len(table) // rows))))
            found: list[dict[str, Any]] = some_rows.select([name for name in columns if name in table.column_names]).to_pylist()
            return found

        known = self._world.known(self._spec, sample=some)
        servers = api_servers_of(self._spec, known).get(self._spec.compute.worker().profile.name, 1)
        return space_of(self._spec, server_args, _seats(self._spec, known), servers)

    def _changes(self, choice: Choice) -> dict[str, Any]:
        """To the job file: of a point that is better, or that holds where the default does not."""
        broken = any(trial.point == self._space.default and trial.cause for trial in self._trials)
        if choice.point is None or not (choice.better or broken):
            return {}
        changes = changes_of(self._spec, choice.point, self._space.default)
        compute = {name: changes.pop(name) for name in COMPUTE if name in changes}
        return {name: values for name, values in (("engine", changes), ("compute", compute)) if values}

    def _keep_records(self, choice: Choice) -> None:
        """The speeds of the default and of the chosen point, for the planner; a repeat of the same tune finds them there."""
        for point in dict.fromkeys(each for each in (self._space.default, choice.point) if each is not None):
            speed = Question(point, Measure.SPEED)
            mine = [trial for trial in self._trials if trial.question == speed and trial.cause is None]
            if not mine:
                continue
            job = patched(self._spec, point, self._space.default)
            record = Record(
                workload=workload_of(job, job.compute.profile),
                run=self._kept.folder,
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
            path = path_of(record)
            with reaching(f"write {path}"):
                create_or_read(self._world.store, path, canonical_json(record.to_json()))


def _rate(job: JobSpec, rows: int, seen: Answers) -> float:
    """Rows a second of an accelerator."""
    return (rows - seen.dead) / seen.seconds / accelerators(job)


def _cause(measure: Measure, seen: Answers) -> Cause | None:
    """Why a trial that was answered is a failure all the same."""
    if seen.losses:
        return Cause.DIED
    if seen.preemptions:
        return Cause.PREEMPTED  # What has no room for the sample has none for its longest rows.
    return Cause.KV_CACHE_FULL if measure is Measure.SOAK and seen.kv_cache > KV_MOST else None


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
