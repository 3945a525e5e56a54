"""What the tasks `plan` and `extract` do for the param ``redo``: only the rows without an answer of a run, computed again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from nightshift.fields.text import n
from nightshift.run.names import RunRef
from nightshift.run.redo.redo import NotRedone, Redo

if TYPE_CHECKING:
    from obstore.store import ObjectStore

    from nightshift.run.manifest import RunManifest
    from nightshift.run.plan import ExportedSource, Plan
    from nightshift.spec import JobSpec
    from nightshift.warehouse import Warehouse

DEAD_LETTERS: Final = "dead_letters"
"""Of the param: the same rows and the same answers."""
CORRECTED: Final = "corrected"
"""Of the param: the source's rows and the job as they are now."""
VALUES: Final = (DEAD_LETTERS, CORRECTED)


@dataclass(frozen=True)
class _Base:
    """What a redo would complete: a run, its plan, and its manifest or closing."""

    run: RunRef
    plan: Plan
    manifest: RunManifest


def open_again(
    store: ObjectStore,
    warehouse: Warehouse,
    spec: JobSpec,
    partition: str,
    opened_by: str,
    *,
    how: str = DEAD_LETTERS,
    project: str = "",
) -> RunRef:
    """The redo that `opened_by` asks for, or the one that it has opened before, unless that one was published: then this is
    another request.

    It completes the run of the partition that was opened last, if that one was never published and cannot be: it has more dead
    letters than the job tolerates, or all its rows are computed. Else it completes the run that the partition shows. If such a
    redo is open already, whoever has opened it, it is that one: its rows are computed once. Everything that the redo needs is
    checked first, because a run that is open is found by later DAG runs too.

    how: one of `VALUES`. project: as in `nightshift.run.opening.open_run`. Raises NotRedone (NothingToRedo, if the partition
    has no dead letters), ConservationError, SealBroken, WarehouseError.
    """
    from nightshift.run.opening import load_run, open_redo, redo_of_opener

    corrected = how == CORRECTED
    mine = redo_of_opener(store, spec.job, partition, opened_by)
    if mine is not None and not warehouse.has_published(spec, mine):
        frozen, record = load_run(store, mine)
        if record.redo is not None and record.redo.corrected == corrected:
            if not corrected:
                _same_answers(mine, frozen, spec)
            if frozen.semantic() == spec.semantic():
                return mine
    shown = warehouse.shown_run(spec, any_run(spec, partition))
    found = _unpublished(store, warehouse, spec, partition, shown, corrected=corrected)
    if isinstance(found, RunRef):
        return found
    base = found or _shown(store, spec, partition, shown)
    redo = Redo.after(base.manifest, corrected=corrected, shown=shown or "")
    _check(store, warehouse, base, spec, redo)
    return open_redo(
        store,
        base.run,
        spec,
        redo,
        opened_by=opened_by,
        project=project,
        superseded=lambda run: _is_over(store, warehouse, spec, run, redo),
        after=lambda: asked_last(warehouse, spec, partition),
    )


def _unpublished(
    store: ObjectStore, warehouse: Warehouse, spec: JobSpec, partition: str, shown: str | None, *, corrected: bool
) -> RunRef | _Base | None:
    """The open redo that this request joins, or the run that was never published and is completed; None if there is neither."""
    from nightshift.run.manifest import load_manifest
    from nightshift.run.opening import load_run, opened_last, planned
    from nightshift.run.redo.redo_rows import load_earlier
    from nightshift.run.seal import close, keep_closing

    run = opened_last(store, spec.job, partition)
    if run is None or run.run_id == shown or warehouse.has_published(spec, run):
        return None
    frozen, record = load_run(store, run)
    plan, redo = planned(store, run, record), record.redo
    if _is_overtaken(redo, shown):
        return None
    if plan is not None and load_manifest(store, run) is None:
        closing = close(store, run, frozen, plan, record.pins, redo)
        allowed = (redo.terms(spec) if redo else spec).dead_letters.allowed(plan.rows)
        if not _may_go_on(closing, allowed):
            return _Base(run, plan, keep_closing(store, run, closing))
    if redo is None or warehouse.obstacle(spec, run, record.opened_at, redo) is not None:
        return None
    if redo.corrected == corrected and frozen.semantic() == spec.semantic():
        return run
    # It was asked for in another way: this one completes the same run.
    return _Base(*load_earlier(store, run, redo))


def _is_over(store: ObjectStore, warehouse: Warehouse, spec: JobSpec, run: RunRef, redo: Redo) -> bool:
    """Whether this redo, opened before, was published or cannot be any more: then the same is opened again."""
    from nightshift.run.opening import load_run

    opened = load_run(store, run)[1].opened_at
    return warehouse.has_published(spec, run) or warehouse.obstacle(spec, run, opened, redo) is not None


def _is_overtaken(redo: Redo | None, shown: str | None) -> bool:
    """Whether the partition shows another run by now than when the redo was opened: its answers would take away that one's."""
    return redo is not None and redo.shown != (shown or "")


def _may_go_on(closing: RunManifest, allowed: int) -> bool:
    """Whether a run can still be published by itself, if more of its rows are computed, or none are dead letters."""
    return closing.dead_letters <= allowed and (closing.unanswered > 0 or closing.dead_letters == 0)


def _shown(store: ObjectStore, spec: JobSpec, partition: str, shown: str | None) -> _Base:
    """The run that the partition shows. Raises NotRedone."""
    from nightshift.run.manifest import load_manifest
    from nightshift.run.plan import load_plan

    if shown is None:
        raise NotRedone(
            f"Partition {partition} of {spec.destination.table} shows no run of job {spec.job}, and no run that failed has "
            "more dead letters than the job tolerates, so there are none to compute again. Trigger the DAG without redo: that "
            "finishes a run that is open, or computes the partition."
        )
    run = RunRef.from_prefix(f"{spec.job}/{partition}/{shown}")
    plan, manifest = load_plan(store, run), load_manifest(store, run)
    if plan is None or manifest is None:
        raise NotRedone(
            f"Run {run.run_id}, which the partition shows, is not sealed any more: {run.prefix} lacks plan.json or "
            "manifest.json. Trigger the DAG with fresh."
        )
    return _Base(run, plan, manifest)


def _check(store: ObjectStore, warehouse: Warehouse, base: _Base, spec: JobSpec, redo: Redo) -> None:
    """Raises NotRedone, SealBroken and WarehouseError unless everything is there that the redo needs."""
    from nightshift.run.opening import load_run
    from nightshift.run.plan import load_plan
    from nightshift.run.redo.corrected_rows import MOST, first_run, too_many
    from nightshift.run.redo.redo_rows import check_inputs
    from nightshift.run.sealed_objects import check_whole, whole

    frozen, record = load_run(store, base.run)
    if not redo.corrected:
        _same_answers(base.run, frozen, spec)
    else:
        _same_shape(base.run, frozen, spec)
    check_whole(store, base.run, whole(store, base.run, base.manifest, record.redo))
    if not redo.corrected or base.manifest.unanswered:
        check_inputs(store, base.run, base.plan)
    if not redo.corrected:
        warehouse.check_destination(spec, base.plan.exported)
        return
    if redo.left > MOST:
        raise too_many(redo)
    first = first_run(base.run, base.manifest)
    if (plan := load_plan(store, first)) is not None:
        check_inputs(store, first, plan)
    _same_types(base, spec, warehouse.check_query(spec, base.run.partition))


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
            "rows. Or trigger with redo: corrected: then only the rows without an answer are computed by the new job, and each "
            "row of the day names its run. You may change what does not affect answers: compute, deadline, max_num_seqs, time "
            "limits."
        )


def _differ(before: object, now: object, path: str = "") -> list[str]:
    """The paths of the settings that are not the same."""
    if isinstance(before, dict) and isinstance(now, dict):
        names = sorted({*before, *now})
        return [found for name in names for found in _differ(before.get(name), now.get(name), f"{path}.{name}".strip("."))]
    return [] if before == now else [path]


def _same_shape(earlier: RunRef, frozen: JobSpec, spec: JobSpec) -> None:
    """What a corrected job may not change, because its rows stand beside those of the earlier run."""
    from nightshift.tasks.base import load_kind

    changed = [name for name in ("task", "model") if frozen.semantic().get(name) != spec.semantic().get(name)]
    changed += [
        f"source.{name}" for name in ("key", "pass_through") if getattr(frozen.source, name) != getattr(spec.source, name)
    ]
    if not changed and load_kind(frozen).prediction_type != load_kind(spec).prediction_type:
        changed.append("the type of the answers")
    if not changed and frozen.request.keeps_reasoning != spec.request.keeps_reasoning:
        changed.append("request.reasoning")
    if changed:
        raise NotRedone(
            f"{' and '.join(changed)} changed since run {earlier.run_id}, and the rows of one day have one model, the same "
            "columns and one kind of answer. Undo the change, or trigger with fresh to compute all rows. The query, the prompt "
            "and other settings of request and engine may change."
        )


def _same_types(base: _Base, spec: JobSpec, source: ExportedSource) -> None:
    before = base.plan.exported.columns
    if changed := [
        f"{name} was {before.get(name)} and is {kind}"
        for name in spec.source.carried
        if before.get(name) != (kind := source.columns[name])
    ]:
        raise NotRedone(
            f"Columns of the query have another type than in run {base.run.run_id}: {', '.join(changed)}. Cast them in "
            "source.query, or trigger with fresh to compute all rows."
        )


def take_rows(store: ObjectStore, run: RunRef, redo: Redo) -> Plan:
    """Writes the input files of the redo `run`, unless it is a corrected one; returns the plan of the run that they are copied
    from, whose order they keep.

    Raises NotRedone, StoreUnavailable.
    """
    from nightshift.run.redo.redo_rows import copy_rows, load_earlier

    earlier, plan, manifest = load_earlier(store, run, redo)
    copy_rows(store, run, earlier, plan, manifest)
    return plan


def what_it_does(redo: Redo) -> str:
    """What a redo that is not planned yet will do."""
    parts = ((redo.dead_letters, "dead letter"), (redo.unanswered, "unanswered row"))
    what = " and ".join(n(count, noun) for count, noun in parts if count)
    how = (
        "to read from the source as it is now and to compute by the job as it is now" if redo.corrected else "to compute again"
    )
    return f"{what} of run {redo.run_id} {how}. {n(redo.rows - redo.left, 'prediction')} of it stay."
