"""Rows that repeat long texts: 8 of them in 60,000 rows are a file of some 400 kB in one row group, and 2.3 GiB unpacked.

Whatever reads such a file holds little of it at once: the driver fits its container, and the others take less than 512 MiB more
than they do without it.
"""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightshift import exits
from nightshift.run import chunks, opening
from nightshift.run.chunks import Provenance, Result
from nightshift.run.names import RunRef
from nightshift.run.plan import InputFile, Plan, save_plan
from nightshift.store import open_store
from nightshift.trial.rows import rows_path
from tests.builders import a_spec, bound
from tests.integration.driver.canned import CannedEngine
from tests.integration.driver.runs import MEASURED, DriverProcess, PreparedRun
from tests.integration.warehouse.peak import REDO
from tests.integration.warehouse.test_memory import peak_of

pytestmark = [pytest.mark.integration, pytest.mark.gate]

ROWS = 60_000
TEXTS = pa.array([f"{number} " * 20_000 for number in range(8)])
MORE_BYTES = 512 << 20
CONTAINER_BYTES = 2 << 30


def the_rows(start: int = 0, stop: int = ROWS) -> pa.Table:
    places = pa.array([ordinal % len(TEXTS) for ordinal in range(start, stop)], pa.int32())
    ids = pa.array(range(start, stop), pa.int64())
    return pa.table({"id": ids, "text": pa.DictionaryArray.from_arrays(places, TEXTS)})


def the_file() -> bytes:
    """As BigQuery may write it: without Arrow's own schema."""
    sink = io.BytesIO()
    pq.write_table(the_rows(), sink, row_group_size=ROWS, compression="zstd", store_schema=False)
    assert pq.read_metadata(io.BytesIO(sink.getvalue())).num_row_groups == 1
    assert len(sink.getvalue()) < 1 << 20
    return sink.getvalue()


def prepared(folder: Path, chunk_rows: int, **changes: Any) -> PreparedRun:
    spec = a_spec(**changes)
    url = f"file://{folder}/bucket"
    store = open_store(url)
    run = opening.open_run(store, spec, "2026-11-20", opened_by="test")
    body = the_file()
    path = f"{run.prefix}/inputs/part-000.parquet"
    obstore.put(store, path, body)
    for source in (
        f"{RunRef(run.job, run.partition, REDO[::-1]).source_folder}/0-part-000.parquet",
        rows_path(spec, run.partition, 20, ""),
    ):
        obstore.put(store, source, body)
    file = InputFile("inputs/part-000.parquet", ROWS, (ROWS,), len(body), str(obstore.head(store, path)["e_tag"]))
    plan = save_plan(store, run, bound(store, run, Plan(run.run_id, ROWS, chunk_rows, 1, (file,))))
    return PreparedRun(url, run, spec, plan)


def commit(made: PreparedRun, chunk: int, *, dead: int = 0) -> None:
    """dead: how many of its rows are dead letters, the first ones."""
    span = made.plan.chunk_range(chunk)
    results = [
        Result(row, None, "rejected", "no", 1) if row < span.start + dead else Result(row, [0.5, 1.0], None, None, 1)
        for row in span
    ]
    keys = the_rows(span.start, span.stop).select(list(made.spec.source.carried))
    provenance = Provenance(
        made.run.run_id, chunk, "pod-0", "node", {}, "0", "", "", len(span) - dead, dead, 1, plan_uid=made.plan.uid
    )
    body = chunks.encode(keys, results, chunks.VECTORS, provenance, group_rows=1_000)
    obstore.put(open_store(made.url), made.run.work(made.plan.uid).chunk_path(chunk), body)
    if dead:
        note = made.run.work(made.plan.uid).dead_note_path(chunk, dead)
        obstore.put(open_store(made.url), note, f'{{"rejected": {dead}}}'.encode())


def test_the_driver_reads_a_chunk_without_the_rest(tmp_path: Path) -> None:
    made = prepared(tmp_path, 64)

    with CannedEngine() as engine:
        driver = DriverProcess(made, engine.url, program=MEASURED)
        for _ in range(3):
            driver.wait_for("committed")
        driver.terminate()
        assert driver.finish() == exits.RESUME

    assert len(made.rows()) >= 3 * 64
    assert set(engine.seen) <= set(TEXTS.to_pylist())
    assert driver.peak_bytes < CONTAINER_BYTES // 4, f"{driver.peak_bytes >> 20} MiB"


def test_a_chunk_of_all_rows_is_read_and_the_text_is_not_unpacked(tmp_path: Path) -> None:
    made = prepared(tmp_path, ROWS)

    with CannedEngine() as engine:
        driver = DriverProcess(made, engine.url, program=MEASURED)
        while len(engine.seen) < 500:
            assert driver.process.poll() is None
            time.sleep(0.05)
        driver.terminate()
        assert driver.finish() == exits.RESUME

    assert made.partial_rows()
    assert driver.peak_bytes < CONTAINER_BYTES // 2, f"{driver.peak_bytes >> 20} MiB"


def test_a_chunk_that_the_seal_would_refuse_ends_the_run_before_anything_is_asked(tmp_path: Path) -> None:
    made = prepared(tmp_path, 30_000, source__pass_through=["text"])

    with CannedEngine() as engine:
        driver = DriverProcess(made, engine.url, program=MEASURED)
        assert driver.finish() == exits.CONFIG

    (said,) = [entry["error"] for entry in driver.log if entry["message"] == "cannot continue"]
    assert "the column text has 1,200,000,000 bytes in 30,000 rows, more than 536,870,912" in said
    assert "Set chunk_rows to 13,421 or less" in said
    assert not engine.seen
    assert not made.rows()
    assert driver.peak_bytes < CONTAINER_BYTES // 4, f"{driver.peak_bytes >> 20} MiB"


@pytest.mark.parametrize("task", ["preview", "redo", "tune"])
def test_a_task_takes_little(task: str, tmp_path: Path) -> None:
    made = prepared(tmp_path, 10_000)

    idle, peak = (peak_of(each, made.url, ROWS, made.run.prefix) for each in ("idle", task))
    assert peak < idle + MORE_BYTES, f"{idle >> 20} MiB idle, {peak >> 20} MiB"


@pytest.mark.parametrize("chunk_rows", [60, 12_000])
def test_a_page_takes_little(chunk_rows: int, tmp_path: Path) -> None:
    """The largest chunk that the seal takes has 12,000 rows."""
    made = prepared(tmp_path, chunk_rows, source__pass_through=["text"])
    commit(made, made.plan.chunk_count - 1, dead=50)

    idle, peak = (peak_of(each, made.url, ROWS, made.run.prefix) for each in ("idle", "page"))
    assert peak < idle + MORE_BYTES, f"{idle >> 20} MiB idle, {peak >> 20} MiB"


def test_the_seal_takes_little(tmp_path: Path) -> None:
    made = prepared(tmp_path, 12_000, source__pass_through=["text"])
    for chunk in range(made.plan.chunk_count):
        commit(made, chunk)

    idle, peak = (peak_of(each, made.url, made.plan.chunk_count, made.run.prefix) for each in ("idle", "seal_carried"))
    assert peak < idle + MORE_BYTES, f"{idle >> 20} MiB idle, {peak >> 20} MiB"
