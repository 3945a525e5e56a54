"""Opening a run: what it computes is frozen into `spec.json`, created once and never changed. Also for `nightshift batch`.

Opening is safe to repeat: the same job, partition and spec give the same run. `fresh` opens the next generation, and a
repeat by the same opener (an Airflow DAG run that is retried or cleared) finds the generation that it opened so before, until
that is published: Airflow uses a DAG run again for another request, as a backfill does with `--reprocess-behavior completed`.

The runs of one partition are ordered by when they were opened (`opened_at` of the record): an opener takes the time of its own
clock, or a microsecond after the latest run that it sees, so a run that was opened after another one is later, whatever the
clocks of the two machines.

A run is its opening, not its folder's name: each has a random `uid`, which its plan and its manifest repeat. A new run never
takes a folder that is not empty, so leftovers of a partly deleted run are never taken for its own.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import obstore
from obstore.store import ObjectStore

from nightshift.formats import SPEC, loaded
from nightshift.run.names import RunRef, canonical_json, run_digest
from nightshift.run.pins import Pins
from nightshift.run.plan import Plan, PlanError, load_plan
from nightshift.run.record import RunRecord
from nightshift.run.redo.redo import Redo
from nightshift.spec import JobSpec
from nightshift.store import create_or_read, get_bytes

SEEDS_BY_KEY: Final = "key"
"""The record's entry `seeds`: the rows' seeds come from their keys. Only drivers of 0.2.0 read it, and expect it."""

_NEVER: Final = datetime.min.replace(tzinfo=UTC)


class NoSuchRun(LookupError):
    """There is no run at this path."""


def open_run(
    store: ObjectStore,
    spec: JobSpec,
    partition: str,
    *,
    opened_by: str,
    project: str = "",
    tables: Collection[str] = (),
    fresh: bool = False,
    superseded: Callable[[RunRef], bool] = lambda _: False,
    pin: Callable[[], Pins] = Pins,
    after: Callable[[], datetime] = lambda: _NEVER,
) -> RunRef:
    """Finds or creates the run of `spec` for `partition` (YYYY-MM-DD) in a store rooted at the bucket.

    project: of the query's tables that do not name theirs; part of the run's name. tables: what the query reads now, as
    ``project.dataset.table``: a run of 0.2.0, whose name has no project, is taken only if its rows came from these. pin:
    returns a new run's pins. after: a moment after which a new run is opened, besides those of other runs. Neither is called if
    the run is open already. See `open_generation` for the other parameters.
    """
    semantic = spec.semantic()
    records = _records_of(store, spec.job, partition)
    before = RunRef(spec.job, partition, run_digest(spec.job, partition, semantic))
    first = replace(before, digest=run_digest(spec.job, partition, semantic, project))

    def passed_over(run: RunRef) -> bool:
        return (fresh and not _opened_fresh(_read(store, run), run)) or superseded(run)

    earlier = _named_by_0_2_0(store, records, before, first, tables, opener=opened_by if fresh else None)
    if earlier is not None and not passed_over(earlier):
        return earlier
    names = {"spec": spec.model_dump(mode="json"), "semantic": semantic, "project": project}
    frozen = {**names, "seeds": SEEDS_BY_KEY, "rendering": spec.rendering, "fresh": fresh}
    return open_generation(
        store,
        first,
        frozen,
        opened_by=opened_by,
        fresh=fresh,
        superseded=passed_over,
        late=lambda: {"pinned": pin().to_json()},
        after=after,
    )[0]


def open_redo(
    store: ObjectStore,
    earlier: RunRef,
    spec: JobSpec,
    redo: Redo,
    *,
    opened_by: str,
    project: str = "",
    superseded: Callable[[RunRef], bool] = lambda _: False,
    after: Callable[[], datetime] = lambda: _NEVER,
) -> RunRef:
    """Opens a redo of the run `earlier`, or finds the same one that is open already, whoever has opened it: of several that
    ask at once, one opens it.

    spec: the job as it is now. If it gives the same answers, the redo is the next generation of the earlier run, else it has
    the name of a run of its own. project: as in `open_run`, of a corrected redo; the rows of another one come from where they
    came from. Pins are those of the earlier run: one partition, one model. superseded, after: as in `open_run`.
    """
    frozen_before, record = load_run(store, earlier)
    semantic, before = spec.semantic(), frozen_before.semantic()
    kept = ["pinned"] if semantic != before else ["project", "seeds", "rendering", "pinned"]
    same = {name: record.stored[name] for name in kept if name in record.stored}
    own = {"project": project, "seeds": SEEDS_BY_KEY, "rendering": spec.rendering} if semantic != before else {}
    frozen = {"spec": spec.model_dump(mode="json"), "semantic": semantic, "redo": redo.to_json(), **own, **same}
    digest = earlier.digest if semantic == before else run_digest(spec.job, earlier.partition, semantic, project)
    return open_generation(
        store,
        replace(earlier, digest=digest, generation=1),
        frozen,
        opened_by=opened_by,
        fresh=True,
        superseded=superseded,
        same=lambda record: record.redo == redo,
        after=after,
    )[0]


def redo_of_opener(store: ObjectStore, job: str, partition: str, opened_by: str) -> RunRef | None:
    """The last redo that this opener has opened for the partition."""
    records = _records_of(store, job, partition)
    redos = {run: record.opened for run, record in records.items() if record and record.redo and record.opened_by == opened_by}
    return max(redos, key=redos.__getitem__, default=None)


def rows_as_of(store: ObjectStore, run: RunRef) -> datetime:
    """When the run was opened whose query gave the rows: of a redo, that is the first one of those that it completes.

    Raises NoSuchRun.
    """
    record = _read(store, run)
    if record is None:
        raise NoSuchRun(f"There is no run {run.prefix}: {run.spec_path} does not exist.")
    while record.redo and (earlier := _read(store, record.redo.earlier(run))):
        record = earlier
    return record.opened


def opened_last(store: ObjectStore, job: str, partition: str) -> RunRef | None:
    """The run of the partition that was opened last, of any digest."""
    opened = {run: record.opened for run, record in _records_of(store, job, partition).items() if record is not None}
    return max(opened, key=opened.__getitem__, default=None)


def _named_by_0_2_0(
    store: ObjectStore,
    records: Mapping[RunRef, RunRecord | None],
    before: RunRef,
    first: RunRef,
    tables: Collection[str],
    *,
    opener: str | None,
) -> RunRef | None:
    """The newest run of the same answers that release 0.2.0 opened, in whose name there was no project.

    None if a run was opened under the name that it has now, and if its rows came from other tables. records: of all runs of the
    partition. before, first: the first generation under the old and the new name. opener: takes only a run that this opener
    has opened. Delete this function in the release after the next one: docs/operate/formats.md.
    """
    if before == first or any(run.digest == first.digest for run in records):
        return None
    found = [(run, record) for run, record in records.items() if run.digest == before.digest]
    run, record = max(found, key=lambda each: each[0].generation, default=(before, None))
    if record is None or opener not in (None, record.opened_by):
        return None
    plan = load_plan(store, run)
    same = plan is None or plan.source is None or set(plan.source.tables) == set(tables)
    return run if same else None


def open_generation(
    store: ObjectStore,
    first: RunRef,
    frozen: Mapping[str, Any],
    *,
    opened_by: str,
    fresh: bool = False,
    superseded: Callable[[RunRef], bool] = lambda _: False,
    same: Callable[[RunRecord], bool] | None = None,
    after: Callable[[], datetime] = lambda: _NEVER,
    late: Callable[[], Mapping[str, Any]] = dict,
) -> tuple[RunRef, RunRecord]:
    """Finds or creates a generation of the run `first`; returns it with the record of its `spec.json`.

    Without `fresh`: the newest generation, else the first. With it: the generation that is asked for, else a new one. That is
    what `same` says of a record: by default, that `opened_by` has opened it. A folder without its `spec.json` is what was left
    of a run, and never used again: a new run is numbered after it.
    frozen: what a new record holds besides the run's names. superseded: whether a generation must not be returned; then the
    next one is used. late, after: more of what a new record holds, and a moment that it must follow, besides those at which the
    other runs were opened; found out only if one is written.
    """
    same = same or (lambda record: record.opened_by == opened_by)
    records = _records_of(store, first.job, first.partition)
    generations = sorted((run for run in records if run.digest == first.digest), key=lambda run: run.generation)
    for run in generations if fresh else generations[-1:]:
        record = records[run]
        if record is not None and (not fresh or same(record)) and not superseded(run):
            return run, record
    number = generations[-1].generation + 1 if generations else 1
    # Several may open one at once: create-only gives this generation to one opener, and the others read its record.
    frozen = {**frozen, **late()}
    latest = max([after(), *(record.opened for record in records.values() if record is not None)])
    while True:
        run = replace(first, generation=number)
        opened_at = max(datetime.now(UTC), latest + timedelta(microseconds=1)).isoformat(timespec="microseconds")
        names = {"job": run.job, "partition": run.partition, "run_id": run.run_id, "generation": run.generation}
        opening = {"opened_by": opened_by, "opened_at": opened_at, "uid": secrets.token_hex(8)}
        body = canonical_json({**SPEC.stamp(), **names, **opening, **frozen})
        record = RunRecord.from_json(loaded(create_or_read(store, run.spec_path, body)))
        if not fresh or record.uid == opening["uid"] or same(record):
            return run, record
        number, latest = number + 1, max(latest, record.opened)


def newest_generation(store: ObjectStore, first: RunRef) -> RunRef | None:
    """The newest generation of a run; None if it was never opened, or if its `spec.json` is gone."""
    records = _records_of(store, first.job, first.partition)
    newest = max((run for run in records if run.digest == first.digest), key=lambda run: run.generation, default=None)
    return newest if newest is not None and records[newest] is not None else None


def load_run(store: ObjectStore, run: RunRef) -> tuple[JobSpec, RunRecord]:
    """The frozen spec of a job's run and the whole record of `spec.json`. Raises NoSuchRun and UnreadableFormat."""
    record = _read(store, run)
    if record is None:
        raise NoSuchRun(
            f"There is no run {run.prefix}: {run.spec_path} does not exist. If the run's folder was deleted, trigger the DAG "
            "with fresh to compute the partition again."
        )
    SPEC.check(record.stored, run.spec_path)
    return record.spec(run.spec_path), record


def planned(store: ObjectStore, run: RunRef, record: RunRecord) -> Plan | None:
    """The plan of the run with this record; None before `extract` has written it. Raises PlanError, UnreadableFormat."""
    plan = load_plan(store, run)
    if plan is not None and plan.opening != record.uid:
        raise PlanError(
            f"{run.plan_path} belongs to another opening of {run.prefix} than {run.spec_path}: the run's folder was deleted in "
            "part, or someone has copied one of the two. Trigger the DAG with fresh."
        )
    return plan


def _records_of(store: ObjectStore, job: str, partition: str) -> dict[RunRef, RunRecord | None]:
    """Every run of the job and partition whose folder is not empty, with its record; None without `spec.json`."""
    found: dict[RunRef, RunRecord | None] = {}
    for prefix in obstore.list_with_delimiter(store, f"{job}/{partition}")["common_prefixes"]:
        try:
            run = RunRef.from_prefix(prefix)
        except ValueError:
            continue  # not a run's folder
        found[run] = _read(store, run)
    return found


def _read(store: ObjectStore, run: RunRef) -> RunRecord | None:
    body = get_bytes(store, run.spec_path)
    return None if body is None else RunRecord.from_json(loaded(body))


def _opened_fresh(record: RunRecord | None, run: RunRef) -> bool:
    """Release 0.2.0 did not record it, but a first generation is hardly ever opened by `fresh`, and a redo never is."""
    fresh = record.fresh if record else None
    return (run.generation > 1 if fresh is None else fresh) and not (record and record.redo)
