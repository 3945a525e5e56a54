"""Errors that stop a night: which entry of the runbook each belongs to, and how the log ends with it.

Airflow prints an error as the last of its stack frames, in one line that its page does not wrap. So a task that has failed says
the error again as the last lines of its log: what is wrong, what to do, and where more is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final

from airflow.sdk.exceptions import AirflowFailException

from nightshift.fields.terminal import harmless
from nightshift.fields.text import lines
from nightshift.jobset.fleet.errors import Failure
from nightshift.triggers.ended import ERROR_KEY as ERROR_KEY

RUNBOOK: Final = "docs/operate/runbook.md"
MOST: Final = 10_000
"""Characters of an error."""
SKIPPED_KEY: Final = "skipped"
"""The XCom of a task that had nothing to do and said so, unlike one that a person has skipped."""


class Entry(StrEnum):
    """The headings of the runbook."""

    ENGINE_CANNOT_START = "engine-cannot-start"
    TOO_MANY_DEAD_LETTERS = "too-many-dead-letters"
    DRIVER_FAILED = "driver-failed"
    OUT_OF_MEMORY = "out-of-memory"
    WORK_IS_LEFT = "work-is-left"
    DEADLINE = "deadline"
    PODS_TAKEN_AWAY = "pods-taken-away"
    NO_CAPACITY = "no-capacity"
    JOBSET_DELETED = "jobset-deleted"
    JOBSET_REFUSED = "jobset-refused"
    JOBSET_UNKNOWN = "jobset-unknown"
    CLUSTER_UNREACHABLE = "cluster-unreachable"
    NO_SUCH_MODEL = "no-such-model"
    DOES_NOT_FIT = "does-not-fit"
    ROWS_UNFIT = "rows-unfit"
    JOB_FILE = "job-file"
    SETTINGS = "settings"
    WRONG_PARAM = "wrong-param"
    EARLIER_TASK = "earlier-task"
    STOPPED = "stopped"
    ASSET_NAME = "asset-name"
    RUN_FOLDER = "run-folder"
    NOT_CONSERVED = "not-conserved"
    NOT_REDONE = "not-redone"
    BIGQUERY = "bigquery"
    STORE = "store"
    HUB = "hub"
    UNEXPECTED = "unexpected"


PERMANENT: Final[Mapping[str, Entry]] = {
    "nightshift.formats.UnreadableFormat": Entry.RUN_FOLDER,
    "nightshift.planner.costs.prices.PricesError": Entry.SETTINGS,
    "nightshift.planner.plan.NotADecision": Entry.RUN_FOLDER,
    "nightshift.planner.plan.Refused": Entry.DOES_NOT_FIT,
    "nightshift.planner.plan.SpeedUnknown": Entry.DOES_NOT_FIT,
    "nightshift.planner.source.Unfit": Entry.ROWS_UNFIT,
    "nightshift.run.models.hub_revision.NoSuchRevision": Entry.NO_SUCH_MODEL,
    "nightshift.run.ledger.ForeignObject": Entry.RUN_FOLDER,
    "nightshift.run.opening.NoSuchRun": Entry.RUN_FOLDER,
    "nightshift.run.plan.PlanError": Entry.RUN_FOLDER,
    "nightshift.run.redo.redo.NotRedone": Entry.NOT_REDONE,
    "nightshift.run.seal.ConservationError": Entry.NOT_CONSERVED,
    "nightshift.run.sealed_objects.SealBroken": Entry.RUN_FOLDER,
    "nightshift.run.tolerance.ToleranceExceeded": Entry.TOO_MANY_DEAD_LETTERS,
    "nightshift.run.models.weights.NoWeights": Entry.NO_SUCH_MODEL,
    "nightshift.settings.SettingsError": Entry.SETTINGS,
    "nightshift.spec.errors.SpecErrors": Entry.JOB_FILE,
    "nightshift.spec.profile_names.ProfilesError": Entry.SETTINGS,
    "nightshift.warehouse.errors.WarehouseError": Entry.BIGQUERY,
}
"""Errors after which a repeat cannot help, wherever in the package they are raised."""

PASSING: Final[Mapping[str, Entry]] = {
    "airflow.sdk.exceptions.AirflowInactiveAssetInInletOrOutletException": Entry.ASSET_NAME,
    "nightshift.hooks.credentials.NoCredentials": Entry.SETTINGS,
    "nightshift.hooks.runtime.NoSuchRuntime": Entry.SETTINGS,
    "nightshift.jobset.manifest.patch.PatchError": Entry.SETTINGS,
    "nightshift.jobset.runtime.RequestRefused": Entry.JOBSET_REFUSED,
    "nightshift.jobset.runtime.RuntimeUnavailable": Entry.CLUSTER_UNREACHABLE,
    "nightshift.operators.bigquery_jobs.BigQueryJobFailed": Entry.BIGQUERY,
    "nightshift.run.models.hub_revision.HubUnavailable": Entry.HUB,
    "nightshift.store.StoreUnavailable": Entry.STORE,
    "nightshift.warehouse.errors.WarehouseUnavailable": Entry.BIGQUERY,
    "obstore.exceptions.BaseError": Entry.STORE,
}
"""Others, of which a repeat may be free. What a task itself finds wrong is a `NightFailed`, with an entry of its own."""

OF_JOBSETS: Final[Mapping[Failure, Entry]] = {
    Failure.PREEMPTED: Entry.PODS_TAKEN_AWAY,
    Failure.STARTUP: Entry.NO_CAPACITY,
    Failure.LOST: Entry.JOBSET_DELETED,
    Failure.UNAVAILABLE: Entry.CLUSTER_UNREACHABLE,
    Failure.RESUMABLE: Entry.WORK_IS_LEFT,
    Failure.UNKNOWN: Entry.JOBSET_UNKNOWN,
    Failure.APPLICATION: Entry.DRIVER_FAILED,
    Failure.DEADLINE: Entry.DEADLINE,
    Failure.REFUSED: Entry.JOBSET_REFUSED,
}
OF_REASONS: Final[Mapping[str, Entry]] = {
    "EngineCannotStart": Entry.ENGINE_CANNOT_START,
    "TooManyDeadLetters": Entry.TOO_MANY_DEAD_LETTERS,
    "OOMKilled": Entry.OUT_OF_MEMORY,
}
"""Of a JobSet whose program failed: by `nightshift.jobset.verdict.outcome.Outcome.reason`, where it says more."""


class NightFailed(AirflowFailException):
    """An error after which a repeat cannot help. entry: of the runbook."""

    def __init__(self, message: str, entry: Entry) -> None:
        super().__init__(message)
        self.entry = entry


def entry_of(error: BaseException | str | None) -> Entry:
    """Where the runbook has an error."""
    if isinstance(found := getattr(error, "entry", None), Entry):
        return found
    known = {**PERMANENT, **PASSING}
    names = (f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__)
    return next((known[name] for name in names if name in known), Entry.UNEXPECTED)


def is_permanent(error: BaseException) -> bool:
    return any(f"{kind.__module__}.{kind.__qualname__}" in PERMANENT for kind in type(error).__mro__)


def told(error: BaseException | str, entry: Entry) -> Iterator[str]:
    """The last lines of a log, none longer than `WIDTH`."""
    from nightshift.store import first_words

    yield from lines(harmless((first_words(str(error)) or type(error).__name__)[:MOST]))
    yield f"More: {RUNBOOK}#{entry}"


def say(log: logging.Logger, error: BaseException | str) -> None:
    """Ends a task's log with its error. Airflow calls its failure callbacks after it has logged the stack."""
    for line in told(error, entry_of(error)):
        log.error("%s", line)
