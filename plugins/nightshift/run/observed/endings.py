"""How the nights of a run ended: numbered objects in its folder, of which the newest is the last ending.

A run may have several: a night that failed and was repaired, and each publication. They are for people and for what shows them
a run without asking BigQuery (pages, commands, notifiers). No proof depends on them. The table of publications decides what a
partition shows; what people are shown of that comes from the endings (`nightshift.run.observed.shown`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from obstore.store import ObjectStore

from nightshift.fields.stored import Count, read
from nightshift.formats import ENDING
from nightshift.run import names
from nightshift.run.names import RunRef, canonical_json
from nightshift.store import create_numbered, get_bytes, list_numbered, reaching

if TYPE_CHECKING:
    from nightshift.run.manifest import RunManifest

log = logging.getLogger(__name__)

PUBLISHED: Final = names.PUBLISHED
FAILED: Final = names.FAILED
BYTES_MOST: Final = 64 << 10
"""Of one ending."""
ERROR_MOST: Final = 8_000
"""Characters of an error that are kept."""


@dataclass(frozen=True)
class Ending:
    """state: `PUBLISHED` or `FAILED`. at: when, ISO 8601 in UTC. dag_run_id: the DAG run that ended so.

    task, error: which task failed, and why, as the task said it: what to do first. Both are empty for a publication.
    dead_letters, dead_reasons, rows_committed: of the run's committed chunks by then; None if they could not be read.
    dead_reasons may say less than dead_letters. asked_at: when a published run was asked for, ISO 8601 in UTC; empty in an
    ending of an earlier release, and for a failure.
    """

    state: Literal["published", "failed"]
    at: str
    dag_run_id: str
    task: str = ""
    error: str = ""
    dead_letters: Count | None = None
    dead_reasons: Mapping[str, Count] = field(default_factory=dict)
    rows_committed: Count | None = None
    asked_at: str = ""

    @classmethod
    def of_publication(cls, manifest: RunManifest, published_at: str, dag_run_id: str, asked_at: str) -> Ending:
        """manifest: of the run itself."""
        counts = manifest.dead_letters, manifest.dead_reasons, manifest.rows
        return cls(PUBLISHED, published_at, dag_run_id, "", "", *counts, asked_at)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "dead_reasons": dict(self.dead_reasons)}


def latest(store: ObjectStore, run: RunRef) -> Ending | None:
    """How the run's last night ended; None if none has ended yet, or if it was of a release that wrote no endings.

    The store is rooted at the bucket. An object that is not an ending, or of a later release, is passed over with a warning.
    Raises StoreUnavailable.
    """
    return next(_newest_first(store, run), None)


def last_two(store: ObjectStore, run: RunRef) -> tuple[Ending | None, Ending | None]:
    """How its last night ended, and its last publication: the same unless a night has failed since. Else as `latest`."""
    last = None
    for ending in _newest_first(store, run):
        last = last or ending
        if ending.state == PUBLISHED:
            return last, ending
    return last, None


def _newest_first(store: ObjectStore, run: RunRef) -> Iterator[Ending]:
    with reaching(f"read how the nights of {run.prefix} ended"):
        for _, path, size in list_numbered(store, run.endings_folder, run.parse_ending):
            body = get_bytes(store, path) if size <= BYTES_MOST else b""
            if body is not None and (ending := _read(body, path)) is not None:
                yield ending


def record(store: ObjectStore, run: RunRef, ending: Ending) -> None:
    """Writes an ending after all others, unless the last one is the same: of a failure, but for its time.

    Raises StoreUnavailable.
    """
    ending = replace(ending, error=ending.error[:ERROR_MOST])
    last = latest(store, run)
    if last is not None and (last if ending.state == PUBLISHED else replace(last, at=ending.at)) == ending:
        return
    body = canonical_json({**ENDING.stamp(), **ending.to_json()})
    with reaching(f"write how a night of {run.prefix} ended"):
        number = max((number for number, _, _ in list_numbered(store, run.endings_folder, run.parse_ending)), default=0)
        create_numbered(store, run.ending_path, number + 1, body)


def _read(body: bytes, path: str) -> Ending | None:
    try:
        value = json.loads(body)
        ENDING.check(value, path)
        return read(Ending, value)
    except (AttributeError, RecursionError, ValueError) as error:
        log.warning("%s does not say how a night ended (%s): it is passed over.", path, error)
        return None
