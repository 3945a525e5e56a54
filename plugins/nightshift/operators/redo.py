"""What the tasks `plan` and `extract` do for the param ``redo``: only the dead letters of a run, computed again."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from nightshift.run.names import RunRef
from nightshift.run.redo import NotRedone, Redo

if TYPE_CHECKING:
    from obstore.store import ObjectStore

    from nightshift.run.plan import ExportedSource, Plan
    from nightshift.spec import JobSpec
    from nightshift.warehouse import Warehouse

DEAD_LETTERS = "dead_letters"
"""The one value of the param."""


def open_again(store: ObjectStore, warehouse: Warehouse, spec: JobSpec, partition: str, opened_by: str) -> RunRef:
    """The redo that `opened_by` asks for: of the run that the partition shows now, or the one that it has opened before, unless
    that one was published: then this is another request.

    If a redo of that run is open already, whoever has opened it, it is that one: its rows are computed once. Everything that
    the redo needs is checked first, because a run that is open is found by later DAG runs too. Raises NotRedone
    (NothingToRedo, if the partition has no dead letters), SealBroken, WarehouseError.
    """
    from nightshift.run.opening import load_run, open_redo, redo_of_opener, redo_opened_last
    from nightshift.run.redo_rows import check_inputs

    mine = redo_of_opener(store, spec.job, partition, opened_by)
    if mine is not None and not warehouse.has_published(spec, mine):
        _same_answers(mine, load_run(store, mine)[0], spec)
        return mine
    shown = warehouse.shown_run(spec, any_run(spec, partition))
    if shown is None:
        raise NotRedone(
            f"Partition {partition} of {spec.destination.table} shows no run of job {spec.job}, so there are no dead letters "
            "to compute again. Trigger the DAG without redo: that finishes a run that is open, or computes the partition."
        )
    earlier = RunRef.from_prefix(f"{spec.job}/{partition}/{shown}")
    frozen, record = load_run(store, earlier)
    _same_answers(earlier, frozen, spec)
    plan, redo = _sealed(store, earlier, record.redo)
    if (last := redo_opened_last(store, earlier, redo)) and warehouse.obstacle(spec, *last, redo.run_id) is None:
        return last[0]
    check_inputs(store, earlier, plan)
    warehouse.check_destination(spec, plan.exported)
    return open_redo(
        store,
        earlier,
        spec,
        redo,
        opened_by=opened_by,
        superseded=lambda run: warehouse.has_published(spec, run),
        after=lambda: asked_last(warehouse, spec, partition),
    )


def asked_last(warehouse: Warehouse, spec: JobSpec, partition: str) -> datetime:
    """The time of the partition's latest request, which a new one must follow."""
    return warehouse.asked_last(spec, any_run(spec, partition)) or datetime.min.replace(tzinfo=UTC)


def any_run(spec: JobSpec, partition: str) -> RunRef:
    """Stands for a partition, whatever its runs."""
    return RunRef(spec.job, partition, "0" * 16)


def _same_answers(earlier: RunRef, frozen: JobSpec, spec: JobSpec) -> None:
    """One partition holds answers of one spec (invariant 4)."""
    before, now = frozen.semantic(), spec.semantic()
    if before != now:
        changed = ", ".join(_differ(before, now))
        raise NotRedone(
            f"The job would give other answers than run {earlier.run_id}: {changed} changed. The "
            "partition would mix answers of the old job and the new one. Undo the change, or trigger with fresh to compute all "
            "rows. You may change what does not affect answers: compute, deadline, max_num_seqs, time limits."
        )


def _differ(before: object, now: object, path: str = "") -> list[str]:
    """The paths of the settings that are not the same."""
    if isinstance(before, dict) and isinstance(now, dict):
        names = sorted({*before, *now})
        return [found for name in names for found in _differ(before.get(name), now.get(name), f"{path}.{name}".strip("."))]
    return [] if before == now else [path]


def _sealed(store: ObjectStore, earlier: RunRef, done_before: Redo | None) -> tuple[Plan, Redo]:
    """The plan of the run that is shown, and the redo of it. Raises NotRedone and SealBroken."""
    from nightshift.run.manifest import load_manifest
    from nightshift.run.plan import load_plan
    from nightshift.run.sealed_objects import check_whole, whole

    plan, manifest = load_plan(store, earlier), load_manifest(store, earlier)
    if plan is None or manifest is None:
        raise NotRedone(
            f"Run {earlier.run_id}, which the partition shows, is not sealed any more: {earlier.prefix} lacks plan.json or "
            "manifest.json. Trigger the DAG with fresh."
        )
    redo = Redo.after(manifest)
    check_whole(store, earlier, whole(store, earlier, manifest, done_before))
    return plan, redo


def take_rows(store: ObjectStore, run: RunRef, redo: Redo) -> ExportedSource:
    """Writes the input files of the redo `run`; returns what the query returned when they were exported first.

    Raises NotRedone, StoreUnavailable.
    """
    from nightshift.run.manifest import load_manifest
    from nightshift.run.plan import load_plan
    from nightshift.run.redo_rows import copy_rows

    earlier = redo.earlier(run)
    plan, manifest = load_plan(store, earlier), load_manifest(store, earlier)
    if plan is None or manifest is None or manifest.digest != redo.manifest_digest:
        raise NotRedone(
            f"Run {earlier.run_id}, whose dead letters {run.prefix} computes again, was deleted or computed again meanwhile. "
            "Trigger the DAG with fresh."
        )
    copy_rows(store, run, earlier, plan, manifest)
    return plan.exported
