"""Opening a run: what it computes is frozen into `spec.json`, created once and never changed. Also for `nightshift batch`.

Opening is safe to repeat: the same job, partition and spec give the same run. `fresh` opens the next generation, and a
repeat by the same opener (an Airflow DAG run that is retried or cleared) finds the generation that it opened so before, until
that is published: Airflow uses a DAG run again for another request, as a backfill does with `--reprocess-behavior completed`.

The runs of one partition are ordered by when they were opened (`opened_at` of the record): an opener takes the time of its own
clock, or a microsecond after the latest run that it sees, so a run that was opened after another one is later, whatever the
clocks of the two machines say.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import obstore
from obstore.store import ObjectStore
from pydantic import ValidationError

from nightshift import __version__
from nightshift.formats import SPEC, WRITTEN_BY, UnreadableFormat
from nightshift.run import pins
from nightshift.run.names import RunRef, canonical_json, run_digest
from nightshift.run.pins import Pins
from nightshift.run.redo import KEY, Redo
from nightshift.spec import JobSpec
from nightshift.store import create_or_read, get_bytes

SEEDS_BY_KEY: Final = "key"
"""The record's entry `seeds`: the rows' seeds come from their keys. Only drivers of 0.2.0 read it, and expect it."""

FRESH: Final = "fresh"
"""The record's entry: whether this generation was opened because a person asked for `fresh`. Runs of 0.2.0 lack it."""

_NEVER: Final = datetime.min.replace(tzinfo=UTC)

Record = dict[str, Any]
"""The content of `spec.json`: the run's names, who opened it and when (`opened_at`, ISO 8601 in UTC), and what was frozen."""


class NoSuchRun(LookupError):
    """There is no run at the given place."""


def open_run(
    store: ObjectStore,
    spec: JobSpec,
    partition: str,
    *,
    opened_by: str,
    fresh: bool = False,
    superseded: Callable[[RunRef], bool] = lambda _: False,
    pin: Callable[[], Pins] = Pins,
    after: Callable[[], datetime] = lambda: _NEVER,
) -> RunRef:
    """Finds or creates the run of `spec` for `partition` (YYYY-MM-DD) in a store rooted at the bucket.

    pin: says what a new run pins. after: a moment after which a new run is opened, besides those of other runs. Neither is
    called if the run is open already. See `open_generation` for the other parameters.
    """
    semantic = spec.semantic()
    first = RunRef(spec.job, partition, run_digest(spec.job, partition, semantic))
    frozen = {"spec": spec.model_dump(mode="json"), "semantic": semantic, "seeds": SEEDS_BY_KEY, FRESH: fresh}
    return open_generation(
        store,
        first,
        frozen,
        opened_by=opened_by,
        fresh=fresh,
        superseded=lambda run: (fresh and not _opened_fresh(store, run)) or superseded(run),
        late=lambda: {pins.KEY: pin().to_json()},
        later_than=lambda: max(_latest(store, first), after()),
    )[0]


def open_redo(
    store: ObjectStore,
    earlier: RunRef,
    spec: JobSpec,
    redo: Redo,
    *,
    opened_by: str,
    superseded: Callable[[RunRef], bool] = lambda _: False,
    after: Callable[[], datetime] = lambda: _NEVER,
) -> RunRef:
    """Opens a redo of the run `earlier` as the next generation of it; a repeat by the same opener finds it.

    spec: the job as it is now, with the same answers. Pins and seeds are those of the earlier run: one partition, one model.
    superseded, after: as in `open_run`.
    """
    _, record = load_run(store, earlier)
    same: dict[str, Any] = {name: record[name] for name in ("seeds", pins.KEY) if name in record}
    frozen = {"spec": spec.model_dump(mode="json"), "semantic": spec.semantic(), KEY: redo.to_json(), **same}
    return open_generation(
        store,
        replace(earlier, generation=1),
        frozen,
        opened_by=opened_by,
        fresh=True,
        superseded=lambda run: Redo.of(_read(store, run) or {}) != redo or superseded(run),
        later_than=lambda: max(_latest(store, earlier), after()),
    )[0]


def redo_of_opener(store: ObjectStore, job: str, partition: str, opened_by: str) -> RunRef | None:
    """The last redo that this opener has opened for the partition."""
    records = _records_of(store, RunRef(job, partition, "0" * 16))
    mine = [record for record in records if record["opened_by"] == opened_by and Redo.of(record) is not None]
    last = max(mine, key=_opened_at, default=None)
    return None if last is None else RunRef.from_prefix(f"{job}/{partition}/{last['run_id']}")


def rows_as_of(store: ObjectStore, run: RunRef) -> datetime:
    """When the run was opened whose query gave the rows: of a redo, that is the first one of those that it completes.

    Raises NoSuchRun.
    """
    record = _read(store, run)
    if record is None:
        raise NoSuchRun(f"There is no run {run.prefix}: {run.spec_path} does not exist.")
    while (redo := Redo.of(record)) and (earlier := _read(store, redo.earlier(run))):
        record = earlier
    return _opened_at(record)


def redo_opened_last(store: ObjectStore, earlier: RunRef, redo: Redo) -> tuple[RunRef, str] | None:
    """This redo of the run `earlier`, and when it was opened (ISO 8601), if no run of the partition was opened after it."""
    latest = max(_records_of(store, earlier), key=_opened_at, default=None)
    if latest is None or Redo.of(latest) != redo:
        return None
    return RunRef.from_prefix(f"{earlier.job}/{earlier.partition}/{latest['run_id']}"), str(latest["opened_at"])


def open_generation(
    store: ObjectStore,
    first: RunRef,
    frozen: Mapping[str, Any],
    *,
    opened_by: str,
    fresh: bool = False,
    superseded: Callable[[RunRef], bool] = lambda _: False,
    later_than: Callable[[], datetime] = lambda: _NEVER,
    late: Callable[[], Mapping[str, Any]] = dict,
) -> tuple[RunRef, Record]:
    """Finds or creates a generation of the run `first`; returns it with the record of its `spec.json`.

    Without `fresh`: the newest generation, else the first. With it: the generation that `opened_by` opened before, else a
    new one. frozen: what a new record holds besides the run's names. superseded: whether a generation must not be
    returned; then the next one is used. late, later_than: more of what a new record holds, and the moment that it must follow,
    as the latest other run was opened; found out only if one is written.
    """
    newest = None
    number, latest = 1, _NEVER
    for run, record in _generations(store, first):
        if fresh and record["opened_by"] == opened_by and not superseded(run):
            return run, record
        newest, number = (run, record), run.generation + 1
        latest = max(latest, _opened_at(record))
    if newest is not None and not fresh and not superseded(newest[0]):
        return newest
    # Several may open one at once: create-only gives this generation to one of them, and the others see who got it.
    frozen, latest = {**frozen, **late()}, max(latest, later_than())
    while True:
        run = replace(first, generation=number)
        opened_at = max(datetime.now(UTC), latest + timedelta(microseconds=1)).isoformat(timespec="microseconds")
        body = canonical_json({**SPEC.stamp(), **_names_of(run), "opened_by": opened_by, "opened_at": opened_at, **frozen})
        record = json.loads(create_or_read(store, run.spec_path, body))
        if record["opened_by"] == opened_by or not fresh:
            return run, record
        number, latest = number + 1, max(latest, _opened_at(record))


def newest_generation(store: ObjectStore, first: RunRef) -> RunRef | None:
    """The newest generation of a run; None if it was never opened."""
    newest = None
    for run, _ in _generations(store, first):
        newest = run
    return newest


def load_run(store: ObjectStore, run: RunRef) -> tuple[JobSpec, Record]:
    """The frozen spec of a job's run and the whole record of `spec.json`. Raises NoSuchRun and UnreadableFormat."""
    record = _read(store, run)
    if record is None:
        raise NoSuchRun(f"There is no run {run.prefix}: {run.spec_path} does not exist.")
    return _spec_of(record, run), record


def _spec_of(record: Record, run: RunRef) -> JobSpec:
    """The frozen spec. A setting that this release does not have cannot be passed over: it may affect answers.

    Raises UnreadableFormat.
    """
    SPEC.check(record, run.spec_path)
    try:
        return JobSpec.model_validate(record["spec"])
    except ValidationError as error:
        names = ", ".join(".".join(map(str, each["loc"])) for each in error.errors())
        writer = record.get(WRITTEN_BY, "another release")
        raise UnreadableFormat(
            f"{run.spec_path} was written by nightshift {writer}; this is nightshift {__version__}, which cannot read these "
            f"settings of the job: {names}. Finish the run with that release, or trigger the DAG with fresh."
        ) from error


def _generations(store: ObjectStore, first: RunRef) -> Iterator[tuple[RunRef, Record]]:
    """Every generation that was opened, in order."""
    for number in itertools.count(1):
        run = replace(first, generation=number)
        record = _read(store, run)
        if record is None:
            return
        yield run, record


def _records_of(store: ObjectStore, run: RunRef) -> Iterator[Record]:
    """The record of every run of the job and partition, whatever its spec."""
    for prefix in obstore.list_with_delimiter(store, f"{run.job}/{run.partition}")["common_prefixes"]:
        try:
            other = RunRef.from_prefix(prefix)
        except ValueError:
            continue  # not a run's folder
        if (record := _read(store, other)) is not None:
            yield record


def _read(store: ObjectStore, run: RunRef) -> Record | None:
    """Of any version: names, `opened_by` and `opened_at` mean the same in all, so that runs can always be put in order."""
    body = get_bytes(store, run.spec_path)
    return None if body is None else dict(json.loads(body))


def _latest(store: ObjectStore, run: RunRef) -> datetime:
    """When the latest run of the partition was opened; `_NEVER` if there is no run."""
    return max(map(_opened_at, _records_of(store, run)), default=_NEVER)


def _opened_fresh(store: ObjectStore, run: RunRef) -> bool:
    """Release 0.2.0 does not say it, but a first generation is hardly ever opened by `fresh`, and a redo never is."""
    record = _read(store, run) or {}
    return bool(record.get(FRESH, run.generation > 1)) and Redo.of(record) is None


def _opened_at(record: Record) -> datetime:
    return datetime.fromisoformat(record["opened_at"])


def _names_of(run: RunRef) -> dict[str, Any]:
    return {"job": run.job, "partition": run.partition, "run_id": run.run_id, "generation": run.generation}
