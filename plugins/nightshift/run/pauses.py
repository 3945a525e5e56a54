"""Requests to pause or resume a run: numbered objects in its folder, of which the newest counts.

The request outlives the JobSets that it stops: the task `infer` reads it whenever it has a JobSet, its trigger every two
minutes, and the command or DAG that wrote it applies it to the existing ones (`nightshift.jobset.fleet.pause`).
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

from obstore.store import ObjectStore

from nightshift.fields.stored import read
from nightshift.formats import PAUSE, VERSION, UnreadableFormat
from nightshift.run.names import RunRef, canonical_json
from nightshift.store import create_numbered, get_bytes, list_numbered, reaching

log = logging.getLogger(__name__)

BYTES_MOST: Final = 64 << 10
"""Of one request."""


@dataclass(frozen=True)
class PauseRequest:
    """paused: whether the run is to be paused. by: who asked. at: when, ISO 8601 in UTC."""

    paused: bool
    by: str
    at: str

    def __str__(self) -> str:
        return f"{'paused' if self.paused else 'resumed'} by {self.by} at {self.at}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def newest(store: ObjectStore, run: RunRef) -> PauseRequest | None:
    """The request that counts; None if the run was never paused. The store is rooted at the bucket.

    An object that is not a request is ignored with a warning. Raises UnreadableFormat for one of a later release,
    StoreUnavailable.
    """
    with reaching(f"read the pause requests of {run.prefix}"):
        for _, path, size in list_numbered(store, run.pauses_folder, run.parse_pause):
            body = get_bytes(store, path) if size <= BYTES_MOST else b""
            if body is not None and (request := _read(body, path)) is not None:
                return request
    return None


def _read(body: bytes, path: str) -> PauseRequest | None:
    """None if it is not a request. Raises UnreadableFormat for one of a later release: it may be a request."""
    value: Any = None
    try:
        value = json.loads(body)
        PAUSE.check(value, path)
        return read(PauseRequest, value)
    except (AttributeError, RecursionError, ValueError) as error:
        if isinstance(error, UnreadableFormat) and type(value[VERSION]) is int and value[VERSION] > PAUSE.version:
            raise
        log.warning("%s does not say whether the run is paused (%s): it is passed over. Delete it.", path, error)
        return None


def request_pause(store: ObjectStore, run: RunRef, *, paused: bool, by: str) -> PauseRequest:
    """Writes a request after all others; of two that are written at once, the one with the higher number counts.

    Raises StoreUnavailable.
    """
    request = PauseRequest(paused, by, datetime.now(UTC).isoformat(timespec="seconds"))
    body = canonical_json({**PAUSE.stamp(), **request.to_json()})
    with reaching(f"write a pause request of {run.prefix}"):
        newest_number = max((number for number, _, _ in list_numbered(store, run.pauses_folder, run.parse_pause)), default=0)
        create_numbered(store, run.pause_path, newest_number + 1, body)
    return request


class NotPausable(LookupError):
    """There is no such run, it has nothing left to compute, or it was never paused."""


def record(store: ObjectStore, run: RunRef, *, paused: bool, by: str) -> PauseRequest:
    """Writes the request into the run's folder; returns the one that counts. A run that is resumed already gets no second one.

    Raises NotPausable, StoreUnavailable.
    """
    with reaching(f"look at {run.prefix}"):
        there, sealed = (get_bytes(store, path) is not None for path in (run.spec_path, run.manifest_path))
    if not there:
        raise NotPausable(f"There is no run {run.prefix}: {run.spec_path} does not exist.")
    if sealed:
        raise NotPausable(f"{run.prefix} is sealed: nothing is left to compute.")
    if not paused:
        asked = newest(store, run)
        if asked is None:
            raise NotPausable(f"{run.prefix} is not paused: there is nothing to resume.")
        if not asked.paused:
            return asked
    return request_pause(store, run, paused=paused, by=by)
