"""The worker in this process, with a store that fails as the test wants it."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nightshift import exits
from nightshift.chunks import Provenance
from nightshift.driver import loop
from nightshift.driver.engine import Engine
from nightshift.driver.loop import Worker
from nightshift.driver.reader import InputReader
from nightshift.driver.scheduler import OpenChunk
from nightshift.ledger import Ledger
from nightshift.store import ObjectStorage, StoreUnavailable, open_store
from nightshift.tasks.base import load
from tests.integration.driver.canned import CannedEngine
from tests.integration.driver.runs import PreparedRun, prepare

pytestmark = pytest.mark.integration

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


@contextlib.asynccontextmanager
async def a_worker(prepared: PreparedRun, store: ObjectStorage, engine_url: str) -> AsyncIterator[Worker]:
    kind = load(prepared.spec)

    def stamp(chunk: OpenChunk) -> Provenance:
        return Provenance(prepared.run.run_id, chunk.number, "pod", "node", {}, "0", "", "", len(chunk.results), 0, 0)

    async with Engine(engine_url, "m", 4) as engine:
        yield Worker(
            plan=prepared.plan,
            index=0,
            ledger=Ledger(store, prepared.run, prepared.plan),
            reader=InputReader(open_store(prepared.url), prepared.run, prepared.plan, ("id", "text")),
            kind=kind,
            engine=engine,
            window=4,
            key_columns=("id",),
            attempt="pod",
            provenance=stamp,
        )


async def test_a_store_that_hangs_stops_the_work_instead_of_filling_memory(tmp_path: Path) -> None:
    texts: list[str | None] = [f"text {n}" for n in range(400)]
    prepared = prepare(tmp_path, texts, chunk_rows=CHUNK_ROWS)
    store = Troubled(prepared)
    with CannedEngine() as engine:
        async with a_worker(prepared, store, engine.url) as worker:
            running = asyncio.create_task(worker.run())
            seen = -1
            while seen < len(engine.seen):
                seen = len(engine.seen)
                await asyncio.sleep(0.5)
            store.open.set()
            code = await running

    # What waits to be committed, and what was already open when it became too much.
    assert seen <= (loop.COMMITS_WAITING + 2 * 4 + 1) * CHUNK_ROWS
    assert code == exits.DONE
    assert sorted(prepared.rows()) == list(range(400))


async def test_a_drain_does_not_sleep_through_the_return_of_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "BACKOFF_S", 0.01)
    monkeypatch.setattr(random, "uniform", lambda _low, _high: 3600.0)
    prepared = prepare(tmp_path, [f"text {n}" for n in range(8)], chunk_rows=CHUNK_ROWS)
    store = Troubled(prepared, failing=True)
    with CannedEngine() as engine:
        async with a_worker(prepared, store, engine.url) as worker:
            running = asyncio.create_task(worker.run())
            await store.tried.wait()
            store.open.set()
            worker.drain()
            await running

    assert sorted(prepared.rows()), "the finished chunk is saved"


async def test_a_chunk_that_cannot_be_written_is_left_open_and_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare(tmp_path, [f"text {n}" for n in range(12)], chunk_rows=CHUNK_ROWS)
    store = Troubled(prepared)
    store.open.set()
    with CannedEngine() as engine:
        async with a_worker(prepared, store, engine.url) as worker:
            stamp = worker._provenance
            monkeypatch.setattr(worker, "_provenance", lambda chunk: stamp(chunk) if chunk.number != 1 else 1 / 0)
            code = await worker.run()

    assert code == exits.RESUME
    assert sorted(prepared.rows()) == [0, 1, 2, 3, 8, 9, 10, 11]
