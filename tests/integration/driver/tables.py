"""A run of any table, as `runs.prepare` makes one of texts."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq

from nightshift import exits
from nightshift.run import opening
from nightshift.run.plan import InputFile, Plan, save_plan
from nightshift.spec import JobSpec
from nightshift.store import open_store
from tests.builders import bound
from tests.integration.driver.runs import DriverProcess, PreparedRun

GROUP_ROWS = 20


def prepare_table(folder: Path, spec: JobSpec, columns: dict[str, Any], *, chunk_rows: int = 8) -> PreparedRun:
    """A frozen run of rows with these columns, besides the key ``id``; ordinals count from 0 in their order."""
    rows = len(next(iter(columns.values())))
    table = pa.table({"id": pa.array(range(rows), pa.int64()), **columns})
    url = f"file://{folder}/bucket"
    store = open_store(url)
    run = opening.open_run(store, spec, "2026-11-20", opened_by="test")
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=GROUP_ROWS)
    path = "inputs/part-000.parquet"
    obstore.put(store, f"{run.prefix}/{path}", sink.getvalue())
    meta = obstore.head(store, f"{run.prefix}/{path}")
    groups = tuple(min(GROUP_ROWS, rows - at) for at in range(0, rows, GROUP_ROWS))
    file = InputFile(path, rows, groups, meta["size"], str(meta["e_tag"]))
    plan = save_plan(store, run, bound(store, run, Plan(run.run_id, rows, chunk_rows, 1, (file,))))
    return PreparedRun(url, run, spec, plan)


def broken_text(values: list[bytes]) -> pa.Array:
    """A column of type string that holds these bytes, whether they are UTF-8 or not: Parquet does not look."""
    binary = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(values), binary.buffers())


def run(folder: Path, engine_url: str, spec: JobSpec, columns: dict[str, Any], **layout: int) -> dict[int, dict[str, Any]]:
    """The rows of a run from start to end, by ordinal; all of them."""
    prepared = prepare_table(folder, spec, columns, **layout)
    driver = DriverProcess(prepared, engine_url)
    assert driver.finish() == exits.DONE, driver.log[-5:]
    rows = prepared.rows()
    assert sorted(rows) == list(range(prepared.plan.rows))
    return rows


def dead(rows: dict[int, dict[str, Any]]) -> dict[int, str]:
    """The dead letters' reasons by ordinal."""
    return {ordinal: row["dead_reason"] for ordinal, row in rows.items() if row["dead_reason"]}


def predictions(rows: dict[int, dict[str, Any]]) -> list[Any]:
    return [rows[ordinal]["prediction"] for ordinal in sorted(rows)]
