"""The worker in this process, with a store that fails as the test wants it."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pytest

from nightshift import exits
from nightshift.driver.codec import ParquetCodec
from nightshift.driver.engine import EngineClient
from nightshift.driver.open_chunk import OpenChunk
from nightshift.driver.stats import Stats
from nightshift.driver.worker import Worker, WorkerLimits
from nightshift.run.inputs import InputReader
from nightshift.run.ledger import Ledger
from nightshift.store import ObjectStorage, StoreUnavailable, open_store
from nightshift.tasks.base import load_kind
from tests.integration.driver.canned import CannedEngine
from tests.integration.driver.runs import PreparedRun, prepare

pytestmark = [pytest.mark.integration, pytest.mark.gate]

CHUNK_ROWS = 4


class Troubled(ObjectStorage):
    """Takes no commit before `open` is set: commits hang, or fail where `failing`."""

    def __init__(self, prepared: PreparedRun, *, failing: bool = False) -> None:
        super().__init__(open_store(prepared.url))
        self.open = asyncio.Event()
        self.tried = asyncio.Event()
        self._failing = failing

    async def create(self, path: str, body: bytes) -> bool:
        self.tried.set()
        if self._failing and not self.open.is_set():
            raise StoreUnavailable("out of reach")
        await self.open.wait()
        return await super().create(path, body)


class Codec(ParquetCodec):
    """The real one, but for a chunk that cannot be encoded."""

    unwritable: int | None = None

    def encode(self, chunk: OpenChunk, keys: pa.Table) -> bytes:
        if chunk.number == self.unwritable:
            raise ValueError("a prediction that no Parquet file takes")
        return super().encode(chunk, keys)


@contextlib.asynccontextmanager
async def a_worker(
    prepared: PreparedRun,
    store: ObjectStorage,
    engine_url: str,
    *,
    unwritable: int | None = None,
    rng: random.Random | None = None,
) -> AsyncIterator[Worker]:
    kind = load_kind(prepared.spec)
    codec = Codec(
        run_id=prepared.run.run_id,
        attempt="pod",
        node="node",
        model={},
        engine_version="0",
        prediction_type=kind.prediction_type,
    )
    codec.unwritable = unwritable
    async with EngineClient(engine_url, "m") as engine:
        yield Worker(
            plan=prepared.plan,
            index=0,
            ledger=Ledger(store, prepared.run, prepared.plan),
            reader=InputReader(open_store(prepared.url), prepared.run, prepared.plan, ("id", "text")),
            kind=kind,
            engines=[engine],
            codec=codec,
            carried=("id",),
            attempt="pod",
            limits=WorkerLimits(window_start=16, window_most=16),
            rng=rng or random.Random(),
            stats=Stats(),
        )


async def test_a_store_that_hangs_stops_the_work_instead_of_filling_memory(tmp_path: Path) -> None:
    texts: list[str | None] = [f"text {n}" for n in range(400)]
    prepared = prepare(tmp_path, texts, chunk_rows=CHUNK_ROWS)
    store = Troubled(prepared)
    with CannedEngine() as engine:
        async with a_worker(prepared, store, engine.url) as worker:
            running = asyncio.create_task(worker.run())
            await store.tried.wait()
            seen = -1
            while seen < len(engine.seen):
                seen = len(engine.seen)
                await asyncio.sleep(0.5)
            store.open.set()
            code = await running

    # Eight chunks that wait to be committed (docs/develop/ledger.md), and what was in flight when it became too much.
    assert CHUNK_ROWS <= seen <= 8 * CHUNK_ROWS + 16 + CHUNK_ROWS
    assert code == exits.DONE
    assert sorted(prepared.rows()) == list(range(400))


class Sleepy(random.Random):
    """Draws an hour for every wait."""

    def uniform(self, a: float, b: float) -> float:
        return 3600.0


async def test_a_drain_does_not_sleep_through_the_return_of_the_store(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, [f"text {n}" for n in range(8)], chunk_rows=CHUNK_ROWS)
    store = Troubled(prepared, failing=True)
    with CannedEngine() as engine:
        async with a_worker(prepared, store, engine.url, rng=Sleepy()) as worker:
            running = asyncio.create_task(worker.run())
            await store.tried.wait()
            store.open.set()
            worker.drain()
            await running

    assert sorted(prepared.rows()), "the finished chunk is saved"


async def test_a_chunk_that_cannot_be_written_is_left_open_and_costs_no_other(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, [f"text {n}" for n in range(12)], chunk_rows=CHUNK_ROWS)
    store = Troubled(prepared)
    store.open.set()
    with CannedEngine() as engine:
        async with a_worker(prepared, store, engine.url, unwritable=1) as worker:
            code = await worker.run()

    assert code == exits.RESUME
    assert sorted(prepared.rows()) == [0, 1, 2, 3, 8, 9, 10, 11]
