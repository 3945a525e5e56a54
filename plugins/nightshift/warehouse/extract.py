"""From the exported Parquet files to `plan.json`, which fixes the ordinals.

Export attempt N writes ``inputs/N-part-*.parquet`` (`nightshift.warehouse.query.plain_export`, or if the rows are sorted,
`nightshift.warehouse.ordered`). The plan takes the files of the attempt whose job has succeeded: what others left half-written
stays next to them.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from nightshift.fields.text import n
from nightshift.run.plan import ExportedSource, InputFile, Plan, PlanError, load_plan, new_uid, save_plan

if TYPE_CHECKING:
    from obstore.store import ObjectStore

    from nightshift.run.names import RunRef
    from nightshift.run.order import Order
    from nightshift.spec import JobSpec

READERS: Final = 16
"""Parquet footers read in parallel."""
Fixed = tuple[int, int, tuple[str, ...]]
"""Workers, rows of a chunk, reasons."""


def build_plan(
    store: ObjectStore,
    run: RunRef,
    spec: JobSpec,
    source: ExportedSource,
    *,
    fix: Callable[[int, int], Fixed],
    opening: str = "",
    decision: str | None = None,
    rows: int | None = None,
    order: Order | None = None,
    attempt: int,
) -> Plan:
    """Writes the run's plan from the files of an export that has succeeded; returns the stored plan.

    The store is rooted at the bucket. Files are ordered by name; files without rows are left out; a plan may have no rows.
    Only footers are read, by ranges. source: what `Warehouse.read_source` returns after the export. rows: how many rows
    BigQuery reports as exported, if it does. fix: what the decision becomes for this many rows, in files of this many bytes
    (`nightshift.planner.plan.fixed`). opening: the `uid` of the run's record; empty for a run of release 0.2.0. decision: where
    it is stored. order: of the rows in these files. attempt: whose files they are. Raises what fix raises; PlanError for a file
    that lacks a column, is not Parquet, cannot be read by a worker or changes meanwhile, and for files that do not hold those
    rows; StoreUnavailable.
    """
    from nightshift.store import reaching

    with reaching(f"plan the inputs of {run.prefix}"):
        planned = load_plan(store, run)
        if planned is not None:
            return planned
        paths = exported(store, run, attempt)
        with ThreadPoolExecutor(READERS) as pool:
            files = [file for file in pool.map(lambda path: _input_file(store, run, spec, path), paths) if file.rows]
        found = sum(file.rows for file in files)
        if rows is not None and rows != found:
            raise PlanError(
                f"BigQuery exported {n(rows, 'row')}, but the files in {run.inputs_folder} hold {found}: some were deleted or "
                "added since. Trigger the DAG with fresh."
            )
        workers, chunk_rows, reasons = fix(found, sum(file.size for file in files))
        # The workers of a run that 0.2.0 has opened write into its folder: older ones may be at work.
        uid = new_uid() if opening else ""
        plan = Plan(run.run_id, found, chunk_rows, workers, tuple(files), reasons, source, decision, uid, opening, order)
        return save_plan(store, run, plan)


def exported(store: ObjectStore, run: RunRef, attempt: int) -> list[str]:
    """Paths of the files of an export attempt, sorted by name."""
    from nightshift.store import list_numbered

    return sorted(path for number, path, _ in list_numbered(store, run.inputs_folder, run.parse_export) if number == attempt)


def _input_file(store: ObjectStore, run: RunRef, spec: JobSpec, path: str) -> InputFile:
    import obstore
    import pyarrow as pa

    from nightshift.run.parquet_rows import RowGroups, cannot_be_read
    from nightshift.store import ObjectChanged, ObjectFile
    from nightshift.tasks import base

    meta = obstore.head(store, path)
    etag = str(meta["e_tag"])
    try:
        # The version whose rows are counted is the one that is recorded.
        parquet = RowGroups(ObjectFile(store, path, meta["size"], etag))
    except ObjectChanged as error:
        raise PlanError(f"{error}. Trigger the DAG with fresh.") from error
    except (pa.ArrowException, OSError) as error:  # The store's own errors come under names of their own.
        raise PlanError(f"{path} is not readable Parquet: {error}. Trigger the DAG with fresh.") from error
    read, metadata = (*spec.source.carried, *base.load_kind(spec).columns), parquet.metadata
    if missing := [name for name in read if name not in parquet.schema.names]:
        raise PlanError(f"{path} lacks the columns {missing}; it has {parquet.schema.names}")
    if problem := cannot_be_read(metadata, read):
        raise PlanError(f"{path}: {problem}. Leave the column out, or let the query divide it over several rows.")
    groups = tuple(metadata.row_group(number).num_rows for number in range(metadata.num_row_groups))
    return InputFile(path.removeprefix(f"{run.prefix}/"), metadata.num_rows, groups, meta["size"], etag)
