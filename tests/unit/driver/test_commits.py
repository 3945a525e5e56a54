"""What a worker tells of a chunk that it has finished: as the one who committed it, and as the one who came too late."""

from __future__ import annotations

import asyncio
import random

import obstore
import pyarrow as pa
import pytest
from obstore.store import MemoryStore, ObjectStore

from nightshift.driver.backoff import Backoff
from nightshift.driver.codec import ParquetCodec
from nightshift.driver.commits import WAITING_BYTES, Commits
from nightshift.driver.open_chunk import OpenChunk
from nightshift.driver.stats import Stats
from nightshift.run.chunks import Part, Result, Saved
from nightshift.run.ledger import Ledger
from nightshift.store import ObjectStorage
from tests.builders import RUN, WORK, a_chunk, a_plan

pytestmark = pytest.mark.unit

PLAN = a_plan(8, 4)
KEYS = pa.table({"id": pa.array(range(4), pa.int64())})


def a_finished_chunk() -> OpenChunk:
    """Four rows: one saved by an earlier attempt, and one dead letter."""
    chunk = OpenChunk(0, 0, 4)
    chunk.take_over(Saved([Result(0, [1.0], None, None, 1)], Part("pod-0", "n", "0", 1)))
    chunk.results |= {row: Result(row, [1.0], None, None, 1) for row in (1, 2)}
    chunk.results[3] = Result(3, None, "rejected", "no", 1)
    return chunk


def commits_to(store: ObjectStore, stats: Stats, ours: list[bool]) -> Commits:
    codec = ParquetCodec(
        run_id=RUN.run_id, attempt="pod-1", node="n", model={}, engine_version="0", prediction_type=pa.list_(pa.float32())
    )
    return Commits(
        Ledger(ObjectStorage(store), RUN, PLAN),
        codec,
        "pod-1",
        Backoff(random.Random(0), asyncio.Event()),
        stats,
        ended=lambda _, mine: ours.append(mine),
        failed=lambda number, error: pytest.fail(f"chunk {number}: {error}"),
        given_up=lambda _: pytest.fail("the store is there"),
        changed=lambda: None,
    )


async def committed(store: ObjectStore) -> tuple[Stats, list[bool]]:
    """What the worker counts, and whose copy it says the chunk's is."""
    stats = Stats()
    ours: list[bool] = []
    commits = commits_to(store, stats, ours)
    commits.start(a_finished_chunk(), KEYS)
    await commits.end(asyncio.get_running_loop().time() + 60)
    return stats, ours


def notes(store: ObjectStore) -> set[str]:
    """Paths of all that tells people of the run."""
    every = {meta["path"] for page in obstore.list(store, WORK.prefix) for meta in page}
    return {path for path in every if WORK.parse_chunk(path) is None}


async def test_the_first_writer_notes_its_dead_letters() -> None:
    store = MemoryStore()

    stats, ours = await committed(store)

    assert (ours, stats.chunks_committed, stats.chunks_lost, stats.rows_lost) == ([True], 1, 0, 0)
    assert notes(store) == {WORK.dead_note_path(0, 1)}


async def test_who_comes_too_late_notes_the_rows_that_it_computed_itself_and_no_dead_letters() -> None:
    """Dead letters that are noted twice would stop the run too early."""
    store = MemoryStore()
    obstore.put(store, WORK.chunk_path(0), a_chunk(RUN, PLAN, 0))

    stats, ours = await committed(store)

    assert (ours, stats.chunks_committed, stats.chunks_lost, stats.rows_lost) == ([False], 0, 1, 3)
    assert notes(store) == {WORK.lost_note_path(0, "pod-1", 3)}


@pytest.mark.parametrize(("answers", "crowded"), [(WAITING_BYTES - 1, False), (WAITING_BYTES, True)])
async def test_what_waits_for_the_store_is_bounded_by_the_bytes_of_its_answers(answers: int, crowded: bool) -> None:
    ours: list[bool] = []
    commits = commits_to(MemoryStore(), Stats(), ours)
    chunk = a_finished_chunk()
    chunk.answer_bytes = answers

    commits.start(chunk, KEYS)

    assert (commits.crowded, commits.answer_bytes) == (crowded, answers)
    await commits.end(asyncio.get_running_loop().time() + 60)
    assert (ours, commits.crowded, commits.answer_bytes) == ([True], False, 0)
