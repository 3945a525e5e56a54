"""How one run is, and whether it needs attention: from its small objects and `nightshift.run.observed.progress`. Every list and
every screen begins with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

import obstore
from obstore.store import ObjectStore

from nightshift.fields.text import minutes, n
from nightshift.formats import SPEC, UnreadableFormat, loaded
from nightshift.run import pauses
from nightshift.run.answers.bounded import as_json
from nightshift.run.answers.thresholds import concerns
from nightshift.run.manifest import RunManifest, load_manifest
from nightshift.run.names import RunRef
from nightshift.run.observed import endings, pods_kept
from nightshift.run.observed.endings import Ending
from nightshift.run.observed.pods_now import JobSetNow, Stage, in_time
from nightshift.run.observed.progress import STALLED_S, Progress, progress
from nightshift.run.observed.shown import Known, Place, Word, places
from nightshift.run.opening import NoSuchRun, load_run, planned
from nightshift.run.pauses import PauseRequest
from nightshift.run.plan import Plan, PlanError, load_plan
from nightshift.run.record import RunRecord
from nightshift.spec import JobSpec
from nightshift.status.chunk_footer import asked
from nightshift.status.dead_letters import names_of_notes
from nightshift.status.fleets import trouble
from nightshift.status.workers import Attempts
from nightshift.store import get_bytes

FRESH_S: Final = 5.0
"""A summary that is younger is not made again."""
NOT_IN_JSON: Final = ("published", "progress", "dead_reasons", "jobsets", "paused", "problems")
WORKING: Final = ("unplanned", "open", "complete")
"""States after which something else is still to happen, unless the run was given up."""


@dataclass(frozen=True)
class Attention:
    """Why a run needs attention. kind: failed, unreadable, late, stalled, engine (none starts or answers), waiting (for the
    cluster), dead_letters, cut, empty or equal. words: a sentence."""

    kind: str
    words: str


@dataclass(frozen=True)
class Summary:
    """A run at one moment. Times are ISO 8601 in UTC; None is unknown.

    state: unplanned (no rows yet), open, paused, complete (all committed, not sealed), sealed, published, failed, or
    unreadable. opened_at, opened_by: when, and by which DAG run. ended_at: when it was published, sealed or failed. rows, done,
    dead_letters: of its plan; committed; of these without an answer: counted by the seal or the ending, else at least so many,
    by workers' notes. rate: rows per second while it is open, seconds_left: until all rows are committed, both as
    `nightshift.run.observed.progress` measures them. due_at: about: the deadline of its job, from when its rows were exported.
    redo_of: the run that it completes, which has redo_rows rows, those with an answer too. published: its last publication,
    whatever came after that. place: whether the table shows it (`nightshift.run.observed.shown`); one that another run has
    completed or replaced needs no attention.

    Not in its JSON: progress (None of a sealed run), dead_reasons by the seal or the ending, jobsets with their pods as they
    were seen last, paused: the request, problems: objects that cannot be read, by path.
    """

    run: RunRef
    state: str
    opened_at: str
    opened_by: str
    owner: str | None = None
    task: str | None = None
    model: str | None = None
    ended_at: str | None = None
    rows: int | None = None
    done: int | None = None
    dead_letters: int | None = None
    rate: float | None = None
    seconds_left: float | None = None
    due_at: str | None = None
    redo_of: str | None = None
    paused_by: str | None = None
    error: str | None = None
    failed_task: str | None = None
    attention: tuple[Attention, ...] = ()
    redo_rows: int | None = None
    published: Ending | None = None
    place: Place | None = None
    progress: Progress | None = None
    dead_reasons: Mapping[str, int] = field(default_factory=dict)
    jobsets: tuple[JobSetNow, ...] = ()
    paused: PauseRequest | None = None
    problems: Mapping[str, str] = field(default_factory=dict)

    @property
    def word(self) -> str:
        """The state for people: of a published run, whether the table still shows it."""
        return self.place.word if self.place and self.state == "published" else self.state

    @property
    def other(self) -> str | None:
        """The id of the run that has completed or replaced this one."""
        return self.place.run_id if self.place and self.place.word is not Word.SHOWN else None

    @property
    def known(self) -> Known:
        return Known(self.run, self.opened_at, self.redo_of, self.published)

    @property
    def working(self) -> bool:
        return self.state in WORKING

    @property
    def left(self) -> int:
        """Rows of the plan that no committed chunk has, so whether they are dead letters is open. 0 if that is not known."""
        return max(0, (self.rows or 0) - self.done) if self.done is not None else 0

    @property
    def completes(self) -> str | None:
        """What a redo is, for people; None for another run."""
        return self.redo_of and f"completes run {self.redo_of} of {n(self.redo_rows or 0, 'row')}"

    def beside(self, runs: Iterable[Known]) -> Summary:
        """With its place among these runs of its partition, itself included or not."""
        place = places([*(each for each in runs if each.run != self.run), self.known]).get(self.run.run_id)
        return replace(self, place=place, attention=self.attention if place is None or place.word is Word.SHOWN else ())

    def to_json(self) -> dict[str, Any]:
        found = {name: as_json(getattr(self, name)) for name in self.__dataclass_fields__ if name not in NOT_IN_JSON}
        run, place = found.pop("run"), found.pop("place") or {"word": None, "run_id": None}
        names = {"job": run["job"], "partition": run["partition"], "run_id": self.run.run_id}
        return {**names, **found, "place": place["word"], "shown_run": place["run_id"]}


class Summarizer:
    """Of one run. Remembers what never changes. Safe to share between threads.

    whole: keeps the plan and the whole manifest of a sealed run, too. spec, plan, manifest: None until they are known.
    """

    def __init__(self, store: ObjectStore, run: RunRef, *, whole: bool = False) -> None:
        self._store, self._run, self._whole = store, run, whole
        self._lock = threading.Lock()
        self._record: RunRecord | None = None
        self.spec: JobSpec | None = None
        self.plan: Plan | None = None
        self._planned_at: float | None = None
        self.manifest: RunManifest | None = None
        self._made: tuple[float, Summary] | None = None

    def summary(self, note: Callable[[int], None], now: float | None = None, *, fresh: bool = False) -> Summary | None:
        """None for a folder that is not a run's. note: is told the number of requests. fresh: not one that was made before.

        Raises StoreUnavailable.
        """
        with self._lock:
            at = time.time() if now is None else now
            if self._made is None or now is not None or fresh or at - self._made[0] > FRESH_S:
                made = self._summary(note, at)
                if made is None:
                    return None
                self._made = at, made
            return self._made[1]

    def _summary(self, note: Callable[[int], None], now: float) -> Summary | None:
        run = self._run
        try:
            spec, record = self._opened(note)
        except NoSuchRun:
            return None
        except (UnreadableFormat, ValueError, KeyError, TypeError) as error:
            return self._without_record(error, now, note)
        found = Summary(
            run,
            "unplanned",
            record.opened_at,
            record.opened_by,
            owner=spec.owner,
            task=spec.task,
            model=spec.model.name,
            redo_of=record.redo.run_id if record.redo else None,
            redo_rows=record.redo.rows if record.redo else None,
        )
        try:
            self._read(note, record)
            note(2)
            ending, published = endings.last_two(self._store, run)
            found = replace(found, published=published)
            if self.manifest is not None and not _failed_since(self.manifest, ending):
                return self._sealed(found, self.manifest, ending)
            found = self._with_pause(found, note)
        except (UnreadableFormat, PlanError) as error:
            return _unreadable(found, run.prefix, error)
        plan = self.plan
        if plan is None or self.manifest is not None:
            return self._failed(found, ending) if ending else found
        found = self._counted(found, plan, now, note)
        failed = ending is not None and ending.state == endings.FAILED
        if ending is not None and failed and not _went_on(ending, found.progress) and not _tried_again(ending, found.jobsets):
            return self._failed(found, ending)
        return self._open(found, spec, now, note)

    def _without_record(self, error: Exception, now: float, note: Callable[[int], None]) -> Summary:
        """A run of another kind, as that of `nightshift batch`, or of a later release: its rows are counted all the same."""
        path = self._run.spec_path
        note(2)
        try:
            value = loaded(asked(path, lambda: get_bytes(self._store, path)) or b"")
            SPEC.check(value, SPEC.name)
            problems = {}
        except (AttributeError, ValueError) as wrong:
            value, problems = {}, {path: str(wrong) if isinstance(wrong, UnreadableFormat) else "not a JSON object"}
        job = value["spec"] if isinstance(value.get("spec"), dict) else value
        model = job["model"].get("name") if isinstance(job.get("model"), dict) else job.get("model")
        task, model = (each if isinstance(each, str) else None for each in (job.get("task"), model))
        found = replace(_unreadable(Summary(self._run, "", "", ""), path, error), task=task, model=model, problems=problems)
        try:
            self.plan = self.plan or asked(self._run.plan_path, lambda: load_plan(self._store, self._run))
            found = self._with_pause(found, note)
        except (PlanError, UnreadableFormat) as wrong:
            return replace(found, problems={**problems, self._run.plan_path: str(wrong)})
        try:
            self.manifest = self.manifest or asked(self._run.manifest_path, lambda: load_manifest(self._store, self._run))
        except UnreadableFormat as wrong:
            found = replace(found, problems={**problems, self._run.manifest_path: str(wrong)})
        return found if self.plan is None else self._counted(found, self.plan, now, note)

    def _with_pause(self, found: Summary, note: Callable[[int], None]) -> Summary:
        note(2)
        pause = pauses.newest(self._store, self._run)
        if pause is None or not pause.paused:
            return found
        return replace(found, paused=pause, paused_by=f"{pause.by} at {pause.at}")

    def _counted(self, found: Summary, plan: Plan, now: float, note: Callable[[int], None]) -> Summary:
        """With what `nightshift.run.observed` says of a run that is not sealed."""
        work = self._run.work(plan.uid)
        # Before the ledger, for which a first look waits longest.
        notes = names_of_notes(self._store, work, plan.chunk_count)
        done = progress(self._store, work, plan.rows, plan.chunk_rows, now)
        jobsets = pods_kept.load(self._store, self._run)
        note(3 + len(notes) // 1000 + plan.chunk_count // 1000 + len(jobsets))
        complete = done.rows == plan.rows
        works = found.paused is None and not complete
        return replace(
            found,
            rows=plan.rows,
            done=done.rows,
            dead_letters=sum(each.count for each in notes.values()),
            rate=done.rate if works else None,
            seconds_left=done.seconds_left(plan.rows, jobsets) if works or complete else None,
            progress=done,
            jobsets=jobsets,
        )

    def _sealed(self, found: Summary, manifest: RunManifest, ending: Ending | None) -> Summary:
        """Also a published one, by its ending, and one that was sealed after a night had failed."""
        ending = ending if ending and ending.state == endings.PUBLISHED else None
        return replace(
            found,
            state="sealed" if ending is None else "published",
            ended_at=manifest.sealed_at if ending is None else ending.at,
            rows=manifest.rows,
            done=manifest.rows,
            dead_letters=manifest.dead_letters,
            dead_reasons=manifest.dead_reasons,
            seconds_left=0.0,
            attention=tuple(Attention(*each) for each in concerns(manifest)),
        )

    def _failed(self, found: Summary, ending: Ending) -> Summary:
        error = ending.error or "it does not say why"
        task = f"The task {ending.task} failed" if ending.task else "It failed"
        return replace(
            found,
            state="failed",
            ended_at=ending.at,
            rows=known.rows if (known := self.plan or self.manifest) else None,
            done=found.progress.rows if found.progress else ending.rows_committed,
            dead_letters=found.dead_letters or 0 if ending.dead_letters is None else ending.dead_letters,
            dead_reasons=ending.dead_reasons,
            rate=None,
            seconds_left=None,
            failed_task=ending.task or None,
            error=ending.error or None,
            attention=(Attention("failed", f"{task}: {error}"),),
        )

    def _open(self, found: Summary, spec: JobSpec, now: float, note: Callable[[int], None]) -> Summary:
        done = found.progress
        assert done is not None, "it was counted"
        due = None if self._planned_at is None else self._planned_at + spec.deadline_seconds
        complete = done.rows == found.rows
        state = "complete" if complete else "paused" if found.paused else "open"
        made = replace(found, state=state, due_at=None if due is None else in_time(due))
        since = done.newest or self._planned_at
        return replace(made, attention=(*_attention(made, spec, now, due, since), *self._not_starting(made, now, note)))

    def _not_starting(self, made: Summary, now: float, note: Callable[[int], None]) -> Iterator[Attention]:
        if made.state == "open":
            start_s = self.spec.compute.worker().start_seconds if self.spec else 0
            if found := trouble(made.jobsets, now, start_s, lambda: bool(made.done) or self._any_answer(now, note)):
                yield Attention(*found)

    def _any_answer(self, now: float, note: Callable[[int], None]) -> bool:
        """Whether a worker has a result that is not committed yet, by heartbeats."""
        assert self.plan is not None, "the caller has one"
        workers = Attempts(self._store, self._run.work(self.plan.uid)).look(now)
        note(1 + len(workers))
        return any(worker.rows for worker in workers)

    def _opened(self, note: Callable[[int], None]) -> tuple[JobSpec, RunRecord]:
        if self._record is None or self.spec is None:
            note(1)
            self.spec, self._record = asked(self._run.spec_path, lambda: load_run(self._store, self._run))
        return self.spec, self._record

    def _read(self, note: Callable[[int], None], record: RunRecord) -> None:
        """Plan and manifest, once they are there."""
        if self.manifest is None:
            note(1)
            manifest = asked(self._run.manifest_path, lambda: load_manifest(self._store, self._run))
            if manifest is not None:
                # The list of its chunks is large, and thousands of runs are remembered.
                self.manifest = manifest if self._whole else replace(manifest, chunks=(), attempts=())
        if self.plan is None and (self.manifest is None or self._whole):
            note(2)
            try:
                self.plan = asked(self._run.plan_path, lambda: planned(self._store, self._run, record))
            except (UnreadableFormat, PlanError):
                if self.manifest is None:
                    raise
            if self.plan is not None:
                head = asked(self._run.plan_path, lambda: obstore.head(self._store, self._run.plan_path))
                self._planned_at = head["last_modified"].timestamp()


def _unreadable(found: Summary, path: str, error: Exception) -> Summary:
    attention = (Attention("unreadable", str(error)),)
    return replace(found, state="unreadable", attention=attention, error=str(error), problems={path: str(error)})


def _tried_again(ending: Ending, jobsets: Iterable[JobSetNow]) -> bool:
    """Whether pods were seen at work after a night had failed, although they have committed nothing yet."""
    ended = _moment(ending.at)
    return ended is not None and any(
        each.stage is not Stage.ENDED and any(pod.ending is None for pod in each.pods) and (_moment(each.at) or 0) > ended
        for each in jobsets
    )


def _failed_since(manifest: RunManifest, ending: Ending | None) -> bool:
    """Whether a night has failed after the seal."""
    if ending is None or ending.state != endings.FAILED:
        return False
    return (_moment(ending.at) or 0) >= (_moment(manifest.sealed_at) or 0)


def _went_on(ending: Ending, done: Progress | None) -> bool:
    """Whether chunks were committed after a night had failed: a task was cleared, or another DAG run goes on with the run."""
    ended = _moment(ending.at)
    return ended is not None and done is not None and (done.newest or 0.0) > ended + 1


def _moment(at: str) -> float | None:
    """Of ISO 8601, Unix time; None if it is none."""
    try:
        return datetime.fromisoformat(at).astimezone(UTC).timestamp()
    except ValueError:
        return None


def _attention(found: Summary, spec: JobSpec, now: float, due: float | None, since: float | None) -> Iterator[Attention]:
    """Of a run that works or is paused. since: of its last sign of life, Unix time."""
    allowed = spec.dead_letters.allowed(found.rows or 0)
    if (found.dead_letters or 0) > allowed:
        yield Attention("dead_letters", f"{n(found.dead_letters or 0, 'dead letter')}; the job tolerates {allowed:,}.")
    if found.state != "open" or due is None:
        return
    if now > due:
        yield Attention("late", f"Its deadline was at {in_time(due)}.")
    elif found.seconds_left is not None and now + found.seconds_left > due:
        yield Attention("late", f"At this rate it ends about {minutes(now + found.seconds_left - due)} after its deadline.")
    if since is not None and now - since > STALLED_S:
        yield Attention("stalled", f"No chunk was committed for {minutes(now - since)}.")
