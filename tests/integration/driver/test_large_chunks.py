"""Chunks eight times as large as a plan foresees: answers may be longer than anybody can know."""

from __future__ import annotations

import base64
import random
from array import array
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import obstore
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from aiohttp import web

from nightshift import exits
from nightshift.driver.codec import GROUP_BYTES
from nightshift.run import chunks
from nightshift.run.chunks import Provenance, Result
from nightshift.store import open_store
from tests.integration.driver.canned import CannedEngine
from tests.integration.driver.runs import MEASURED, DriverProcess, PreparedRun, prepare

pytestmark = pytest.mark.integration

ROWS = 24_000
WIDTH = 4_096
ROWS_PER_REQUEST = 64
POD_BYTES = 2 << 30
"""The memory limit of the driver's container (docs/operate/limits.md)."""


def vectors() -> list[array[float]]:
    """So many that no compression makes a chunk of them smaller."""
    numbers = random.Random(0)
    return [array("f", (numbers.random() for _ in range(WIDTH))) for _ in range(500)]


class WideEngine(CannedEngine):
    """answered: how many rows."""

    def __init__(self, vectors: list[array[float]]) -> None:
        super().__init__()
        self._vectors = [base64.b64encode(vector.tobytes()).decode() for vector in vectors]
        self._places = count()
        self.answered = 0

    async def _embed(self, request: web.Request) -> web.Response:
        texts = (await request.json())["input"]
        self.answered += len(texts)
        vectors = [self._vectors[next(self._places) % len(self._vectors)] for _ in texts]
        return web.json_response({"data": [{"index": n, "embedding": vector} for n, vector in enumerate(vectors)]})


@pytest.fixture
def prepared(tmp_path: Path) -> Iterator[PreparedRun]:
    request = {"input": "{{ text }}", "rows_per_request": ROWS_PER_REQUEST}
    texts: list[str | None] = [f"text {n}" for n in range(ROWS)]
    yield (run := prepare(tmp_path, texts, chunk_rows=ROWS, per_file=ROWS, per_group=ROWS, request=request))
    for path in run.folder.rglob("*.parquet"):
        path.unlink()


def save_partial(prepared: PreparedRun, rows: int) -> None:
    """As an earlier attempt leaves it."""
    keys = pa.table({"id": pa.array(range(rows), pa.int64())})
    results = [Result(n, vector, None, None, 1) for n, vector in zip(range(rows), vectors() * (rows // 500), strict=True)]
    made = Provenance(
        prepared.run.run_id, 0, "earlier", "node", {"name": "m"}, "1", "", "", rows, 0, 0, plan_uid=prepared.plan.uid
    )
    body = chunks.encode(keys, results, chunks.VECTORS, made, group_rows=GROUP_BYTES // (4 * WIDTH))
    obstore.put(open_store(prepared.url), prepared.run.work(prepared.plan.uid).partial_path(0, "earlier"), body)


@pytest.mark.parametrize("saved", [0, 23_500])
def test_a_chunk_with_400_mb_of_answers_fits_the_pod(prepared: PreparedRun, saved: int) -> None:
    """saved: rows that an earlier attempt has left."""
    if saved:
        save_partial(prepared, saved)

    with WideEngine(vectors()) as engine:
        driver = DriverProcess(prepared, engine.url, program=MEASURED)
        assert driver.finish() == exits.DONE

    assert engine.answered == ROWS - saved
    (path,) = prepared.work.glob("ledger/*.parquet")
    table, _ = chunks.decode_outcomes(path.read_bytes())
    assert table.filter(pc.field("prediction")).column("ordinal").to_pylist() == list(range(ROWS))
    assert driver.peak_bytes < POD_BYTES
