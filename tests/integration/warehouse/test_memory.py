"""A task's memory does not grow with the number of rows: a run of five times the bytes is planned and sealed in as much."""

from __future__ import annotations

import base64
import io
import os
import random
import subprocess
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.store import ObjectStore

from nightshift.run import chunks
from nightshift.run.chunks import Provenance, Result
from nightshift.run.plan import save_plan
from nightshift.spec.limits import chunk_rows_most
from nightshift.store import open_store
from tests.builders import PLAN_UID, RUN, WORK, a_plan, a_spec, with_rows

pytestmark = [pytest.mark.integration, pytest.mark.gate]

ROOT = Path(__file__).resolve().parents[3]
OBJECT_BYTES = 1 << 20
"""Of each input file and of each chunk, about; a task holds up to sixteen of them at once."""
WIDTH = 4096
FEW, MANY = 32, 160
SLACK_BYTES = (MANY - FEW) * OBJECT_BYTES // 4
"""How much more the larger run may take: a quarter of its additional bytes."""


def texts(count: int) -> Iterator[str]:
    """Texts that do not compress."""
    numbers = random.Random(7)
    return (base64.b64encode(numbers.randbytes(OBJECT_BYTES)).decode() for _ in range(count))


def a_chunk(chunk: int, text: str) -> bytes:
    provenance = Provenance(RUN.run_id, chunk, "pod-0", "node", {}, "0", "", "", 1, 0, 1, plan_uid=PLAN_UID)
    keys = pa.table({"id": pa.array([chunk], pa.int64())})
    return chunks.encode(keys, [Result(chunk, text, None, None, 1)], pa.string(), provenance)


def an_input(number: int, text: str) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": pa.array([number], pa.int64()), "text": [text]}), sink)
    return sink.getvalue()


def prepare(store: ObjectStore, task: str, count: int) -> None:
    """A run of one row a file and a chunk, as the task finds it."""
    if task == "seal":
        save_plan(store, RUN, with_rows(store, a_plan(count, 1)))
    for number, text in enumerate(texts(count)):
        if task == "seal":
            obstore.put(store, WORK.chunk_path(number), a_chunk(number, text))
        else:
            obstore.put(store, f"{RUN.prefix}/inputs/0-part-{number:08d}.parquet", an_input(number, text))


def peak_bytes(folder: Path, task: str, count: int) -> int:
    url = f"file://{folder}/{count}"
    prepare(open_store(url), task, count)
    return peak_of(task, url, count)


def peak_of(task: str, url: str, count: int, prefix: str = RUN.prefix) -> int:
    command = [sys.executable, "-m", "tests.integration.warehouse.peak", task, url, prefix, str(count)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/plugins:{ROOT}"}
    return int(subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE).stdout)


@pytest.mark.parametrize("task", ["plan", "seal"])
def test_a_larger_run_takes_no_more_memory(task: str, tmp_path: Path) -> None:
    few = peak_bytes(tmp_path, task, FEW)
    # How many objects are held at once is chance on a busy machine, but what grows with the run is there each time.
    many = min(peak_bytes(tmp_path / str(time), task, MANY) for time in range(2))

    assert many < few + SLACK_BYTES, f"{few >> 20} MiB for {FEW} objects, {many >> 20} MiB for {MANY}"


@pytest.mark.parametrize("width", [WIDTH, 128])
def test_the_largest_chunks_of_vectors_are_sealed_in_300_mib(tmp_path: Path, width: int) -> None:
    rows, count = chunk_rows_most(type(a_spec().request), {"dimensions": width}), 2
    url = f"file://{tmp_path}/bucket"
    store = open_store(url)
    plan = save_plan(store, RUN, with_rows(store, a_plan(rows * count, rows)))
    for chunk in range(count):
        # Numbers that do not compress.
        numbers = np.random.default_rng(chunk).random((rows, width), dtype=np.float32)
        vectors = (array("f", vector.tobytes()) for vector in numbers)
        results = [
            Result(ordinal, vector, None, None, 1) for ordinal, vector in zip(plan.chunk_range(chunk), vectors, strict=True)
        ]
        provenance = Provenance(RUN.run_id, chunk, "pod-0", "node", {}, "0", "", "", rows, 0, 1, plan_uid=plan.uid)
        keys = pa.table({"id": pa.array(plan.chunk_range(chunk), pa.int64())})
        obstore.put(store, WORK.chunk_path(chunk), chunks.encode(keys, results, pa.list_(pa.float32()), provenance))

    peak = peak_of("seal", url, count)
    assert peak < 300 << 20, f"{peak >> 20} MiB"
