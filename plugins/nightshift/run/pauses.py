"""Whether a run may work now, as a person wished it: numbered objects in its folder, of which the newest counts.

The wish outlives the JobSets that it stops: the task `infer` reads it whenever it has a JobSet, its trigger every two minutes,
and the command or DAG that wrote it applies it to those that are there (`nightshift.jobset.pausing`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import obstore
from obstore.store import ObjectStore

from nightshift.formats import PAUSE
from nightshift.run.names import RunRef, canonical_json
from nightshift.store import StoreUnavailable, get_bytes


@dataclass(frozen=True)
class Wish:
    """paused: whether the run is to stand still. by: who said so. at: when, ISO 8601 in UTC."""

    paused: bool
    by: str
    at: str

    def __str__(self) -> str:
        return f"{'paused' if self.paused else 'resumed'} by {self.by} at {self.at}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def newest(store: ObjectStore, run: RunRef) -> Wish | None:
    """The wish that counts; None if nobody has ever paused the run. The store is rooted at the bucket.

    Raises UnreadableFormat for one of a later release, ValueError for an object that is not a wish; StoreUnavailable.
    """
    try:
        numbers = _numbers(store, run)
        body = get_bytes(store, run.wish_path(max(numbers))) if numbers else None
    except (obstore.exceptions.BaseError, OSError) as error:
        raise StoreUnavailable(f"read the pause requests of {run.prefix}: {error}") from error
    if body is None:
        return None
    path = run.wish_path(max(numbers))
    try:
        value = json.loads(body)
        PAUSE.check(value, path)
        return Wish(bool(value["paused"]), str(value["by"]), str(value["at"]))
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} does not say whether the run is paused: {error!r}") from error


def wish(store: ObjectStore, run: RunRef, *, paused: bool, by: str) -> Wish:
    """Writes a wish after all others; of two that are written at once, the one with the higher number counts.

    Raises StoreUnavailable.
    """
    said = Wish(paused, by, datetime.now(UTC).isoformat(timespec="seconds"))
    body = canonical_json({**PAUSE.stamp(), **said.to_json()})
    try:
        number = max(_numbers(store, run), default=0) + 1
        while True:
            try:
                obstore.put(store, run.wish_path(number), body, mode="create")
            except obstore.exceptions.AlreadyExistsError:
                number += 1
            else:
                return said
    except (obstore.exceptions.BaseError, OSError) as error:
        raise StoreUnavailable(f"write a pause request of {run.prefix}: {error}") from error


def _numbers(store: ObjectStore, run: RunRef) -> list[int]:
    found = [run.parse_wish(meta["path"]) for page in obstore.list(store, run.pauses_folder) for meta in page]
    return [number for number in found if number is not None]
