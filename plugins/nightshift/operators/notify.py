"""A job's notifiers in Airflow: what is called when its DAG runs fail, are late, or have too many dead letters.

    failed                   ``on_failure_callback`` of the DAG, which the DAG processor calls
    late                     a `DeadlineAlert` of the DAG, whose callback runs in the triggerer
    too_many_dead_letters    ``on_failure_callback`` of the tasks infer and seal, which the task's own process calls
    doubtful_answers         ``on_success_callback`` of the task seal, likewise
    empty                    both callbacks of the task plan: it has succeeded, or failed for good

Each is a `nightshift.operators.notices.Notice`: the DAG holds names and texts, and no notifier is made before it is due.

Airflow counts its deadline from when the DAG run is queued. A scheduled run is queued at midnight and waits for the time of the
job's cron, so that time is added, and `OVERHEAD` for the tasks around infer, whose own deadline is the job's. Airflow's alert
is for people: it changes nothing in the run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nightshift.operators.notices import Notice, tell_late
from nightshift.spec import notifiers
from nightshift.spec.cron import first_of_day

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.deadline import DeadlineAlert

    from nightshift.spec import JobSpec

OVERHEAD: Final = timedelta(minutes=30)
"""For planning, exporting, sealing and publishing, and for Airflow's own pauses in between."""


def mistakes(jobs: Mapping[Path, JobSpec], relative_to: Path, file: str) -> dict[Path, list[str]]:
    """What is wrong with the notifiers of the jobs, by file, as `nightshift validate` prints it: FILE: FIELD: problem.

    file: the operator's (NIGHTSHIFT_NOTIFIERS); empty for none.
    """
    found = {
        path: list(notifiers.wrong(path.relative_to(relative_to), spec, file, jobs=path.parent)) for path, spec in jobs.items()
    }
    return {path: lines for path, lines in found.items() if lines}


def _notice(spec: JobSpec, event: str) -> Notice | None:
    entry = spec.notify.told.get(event) if spec.notify else None
    if entry is None:
        return None
    by_files = spec.source.watch is not None
    return Notice(spec.job, event, entry.notifier, dict(entry.arguments), spec.every, by_files)


def when_failed(spec: JobSpec) -> list[Callable[[Context], None]] | None:
    """For the DAG's ``on_failure_callback``; Airflow takes an empty list for a callback."""
    notice = _notice(spec, "failed")
    return None if notice is None else [notice]


def when_late(spec: JobSpec) -> DeadlineAlert | None:
    """For the DAG's ``deadline``."""
    from airflow.sdk.definitions.callback import AsyncCallback
    from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

    notice = _notice(spec, "late")
    if notice is None:
        return None
    interval: Any = (due_after(spec) + timedelta(seconds=spec.deadline_seconds) + OVERHEAD).total_seconds()
    return DeadlineAlert(
        # The only reference that every kind of DAG run has: one that files or a person start has no logical date.
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        # As a number, which Airflow takes for seconds, as it stored them before 3.3. A clear computes the deadline again, and
        # Airflow 3.3.0 to 3.3.2 can add only a number (apache/airflow#70368): with a timedelta, no clear would work.
        interval=interval,
        # As one text: whatever its arguments hold, Airflow can store the DAG.
        callback=AsyncCallback(tell_late, {"notice": json.dumps(asdict(notice))}),
        name=f"{spec.job}: {spec.deadline}",
    )


def due_after(spec: JobSpec) -> timedelta:
    """How long after it is queued a scheduled run begins."""
    return first_of_day(spec.schedule) if spec.schedule else timedelta()


def when_too_many_die(spec: JobSpec) -> list[Callable[[Context], None]] | None:
    """For the ``on_failure_callback`` of a task that may end for that reason."""
    notice = _notice(spec, "too_many_dead_letters")
    return None if notice is None else [TooMany(notice)]


def when_answers_are_doubtful(spec: JobSpec) -> list[Callable[[Context], None]] | None:
    """For the ``on_success_callback`` of the task seal."""
    notice = _notice(spec, "doubtful_answers")
    return None if notice is None else [Said(notice, "doubts")]


def when_empty(spec: JobSpec) -> list[Callable[[Context], None]] | None:
    """For both callbacks of the task plan."""
    notice = _notice(spec, "empty")
    return None if notice is None else [Said(notice, "empty")]


class Said:
    """Notifies only if the task has something to say: `SealOperator.doubts`, `PlanOperator.empty`."""

    def __init__(self, notice: Notice, about: str) -> None:
        self.notice, self.about = notice, about

    def __call__(self, context: Context) -> None:
        said: Any = getattr(context.get("task"), self.about, "")
        if words := said() if callable(said) else said:
            self.notice({**context, "exception": None, "reason": words})


class TooMany:
    """Notifies only if a task has failed because its run has too many dead letters."""

    def __init__(self, notice: Notice) -> None:
        self.notice = notice

    def __call__(self, context: Context) -> None:
        if _has_too_many(context):
            self.notice(context)


def _has_too_many(context: Context) -> bool:
    """Whatever the error: the drivers of a JobSet stop by themselves, and their task knows only their exit code."""
    from nightshift.operators.failures import Entry
    from nightshift.run.tolerance import ToleranceExceeded

    error: Any = context.get("exception")
    if getattr(error, "entry", None) is Entry.TOO_MANY_DEAD_LETTERS or any(
        isinstance(each, ToleranceExceeded) for each in _chain(error)
    ):
        return True
    task: Any = context.get("task")
    asked = getattr(task, "has_too_many_dead_letters", None)
    return bool(asked and asked())


def _chain(error: BaseException | None) -> Iterable[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
