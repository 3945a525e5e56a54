"""A job's notifiers in Airflow: who is told when its DAG runs fail, are late, or have too many dead letters.

    failed                   ``on_failure_callback`` of the DAG, which the DAG processor calls
    late                     a `DeadlineAlert` of the DAG; its callback runs in the triggerer if the notifier can
                             (``async_notify``), else in the executor, which must support callbacks
    too_many_dead_letters    ``on_failure_callback`` of the tasks infer and seal, which the task's own process calls

Airflow counts its deadline from when the DAG run is queued. A scheduled run is queued at midnight and waits for the time of the
job's cron, so that time is added, and `OVERHEAD` for the tasks around infer, whose own deadline is the job's. Airflow's alert
is for people: it changes nothing in the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, time, timedelta
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.bases.notifier import BaseNotifier
    from airflow.sdk.definitions.deadline import DeadlineAlert

    from nightshift.spec import JobSpec
    from nightshift.spec.notify import Notifier

OVERHEAD: Final = timedelta(minutes=30)
"""For planning, exporting, sealing and publishing, and for Airflow's own pauses in between."""
_DAYS_TRIED: Final = 366 * 8
"""The 29th of February of a leap year comes within eight years."""


class NoNotifier(ValueError):
    """A notifier that this Airflow cannot make. Says why, and what to do."""


def notifier_of(said: Notifier) -> BaseNotifier:
    """Raises NoNotifier."""
    kind = _kind(said)
    try:
        return kind(**said.arguments)
    except Exception as error:
        # A notifier is anybody's code.
        raise NoNotifier(f"{said.notifier} does not take these arguments: {error}. Correct them.") from error


def _kind(said: Notifier) -> type[BaseNotifier]:
    from airflow.sdk.bases.notifier import BaseNotifier

    module, _, name = said.notifier.rpartition(".")
    try:
        found = getattr(import_module(module), name)
    except Exception as error:
        raise NoNotifier(
            f"{said.notifier} cannot be imported here: {error}. Install its package wherever Airflow runs (DAG processor, "
            "workers, triggerer), or correct the path."
        ) from error
    if not (isinstance(found, type) and issubclass(found, BaseNotifier)):
        raise NoNotifier(
            f"{said.notifier} is not a notifier of Airflow (a subclass of {BaseNotifier.__module__}.BaseNotifier)."
        )
    return found


def mistakes(jobs: Mapping[Path, JobSpec], relative_to: Path) -> dict[Path, list[str]]:
    """What is wrong with the notifiers of the jobs, by file, as `nightshift validate` says it: FILE: FIELD: problem."""
    found: dict[Path, list[str]] = {}
    for path, spec in jobs.items():
        for name, said in spec.notify.told.items() if spec.notify else ():
            try:
                notifier_of(said)
            except NoNotifier as error:
                found.setdefault(path, []).append(f"{path.relative_to(relative_to)}: notify.{name}: {error}")
    return found


def when_failed(spec: JobSpec) -> list[Callable[[Context], None]] | None:
    """For the DAG's ``on_failure_callback``; Airflow takes an empty list for a callback."""
    return [notifier_of(spec.notify.failed)] if spec.notify and spec.notify.failed else None


def when_late(spec: JobSpec) -> DeadlineAlert | None:
    """For the DAG's ``deadline``."""
    from airflow.sdk.bases.notifier import BaseNotifier
    from airflow.sdk.definitions.callback import AsyncCallback, SyncCallback
    from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

    said = spec.notify.late if spec.notify else None
    if said is None:
        return None
    waits = _kind(said).async_notify is not BaseNotifier.async_notify
    return DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=due_after(spec) + timedelta(seconds=spec.deadline_seconds) + OVERHEAD,
        callback=(AsyncCallback if waits else SyncCallback)(said.notifier, dict(said.arguments)),
        name=f"{spec.job}: {spec.deadline}",
    )


def due_after(spec: JobSpec) -> timedelta:
    """How long after it is queued a scheduled run begins. A cron's first moment on a day is the same on all its days."""
    from nightshift.operators.due import due

    if not spec.schedule:
        return timedelta()
    days = (spec.start_date + timedelta(days=number) for number in range(_DAYS_TRIED))
    moment = next(filter(None, (due(spec.schedule, day) for day in days)), None)
    return moment - datetime.combine(moment.date(), time(), moment.tzinfo) if moment else timedelta()


def when_too_many_die(spec: JobSpec) -> list[Callable[[Context], None]] | None:
    """For the ``on_failure_callback`` of a task that may end for that reason."""
    said = spec.notify.too_many_dead_letters if spec.notify else None
    return [TooMany(notifier_of(said))] if said else None


class TooMany:
    """Calls the notifier only if a task has failed because its run has too many dead letters."""

    def __init__(self, notifier: BaseNotifier) -> None:
        self.notifier = notifier

    def __call__(self, context: Context) -> None:
        if _has_too_many(context):
            self.notifier(context)


def _has_too_many(context: Context) -> bool:
    """Whatever the error says: the drivers of a JobSet stop by themselves, and their task knows only their exit code."""
    from nightshift.run.tolerance import ToleranceExceeded

    error: Any = context.get("exception")
    if any(isinstance(each, ToleranceExceeded) for each in _chain(error)):
        return True
    task: Any = context.get("task")
    asked = getattr(task, "has_too_many_dead_letters", None)
    return bool(asked and asked())


def _chain(error: BaseException | None) -> Iterable[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
