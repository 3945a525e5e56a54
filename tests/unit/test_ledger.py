"""The ledger on a memory store and on a folder: create-only commits, resume by listing, and the proof at the seal."""

import asyncio
import hashlib
from pathlib import Path

import obstore
import pytest
from obstore.store import MemoryStore, ObjectStore

from nightshift import chunks, seal
from nightshift.ledger import ForeignObject, Ledger, load_plan, save_plan
from nightshift.store import ObjectStorage, open_store
from tests.builders import RUN, a_chunk, a_plan, a_spec

pytestmark = pytest.mark.unit

PLAN = a_plan(10, 4, 2)


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return open_store("memory:///" if request.param == "memory" else f"file://{tmp_path}/bucket")


@pytest.fixture
def ledger(store: ObjectStore) -> Ledger:
    return Ledger(ObjectStorage(store), RUN, PLAN)


async def commit_all(ledger: Ledger, *, dead: tuple[int, ...] = ()) -> None:
    for chunk in range(PLAN.chunk_count):
        ordinals = PLAN.chunk_range(chunk)
        assert await ledger.commit(chunk, a_chunk(RUN, PLAN, chunk, dead=[row for row in dead if row in ordinals]))


async def test_the_first_writer_wins(ledger: Ledger) -> None:
    assert await ledger.commit(1, b"first") is True
    assert await ledger.commit(1, b"second") is False

    assert await ledger.read(1) == b"first"


async def test_of_racing_writers_one_wins(ledger: Ledger) -> None:
    won = await asyncio.gather(*(ledger.commit(0, f"writer {n}".encode()) for n in range(16)))

    assert won.count(True) == 1
    assert await ledger.read(0) == f"writer {won.index(True)}".encode()


async def test_resume_is_what_was_committed(ledger: Ledger) -> None:
    assert await ledger.committed() == set()

    await ledger.commit(2, b"x")
    await ledger.commit(0, b"x")

    assert await ledger.committed() == {0, 2}
    assert await ledger.read(1) is None


async def test_resume_lists_page_after_page() -> None:
    plan = a_plan(2500, 1)
    ledger = Ledger(ObjectStorage(MemoryStore()), RUN, plan)
    for chunk in range(plan.chunk_count):
        await ledger.commit(chunk, b"")

    assert await ledger.committed() == set(range(2500))


@pytest.mark.parametrize("name", ["chunk-00000003.parquet", "chunk-1.parquet", "notes.txt"])
async def test_a_foreign_object_in_the_ledger_is_an_error(store: ObjectStore, ledger: Ledger, name: str) -> None:
    obstore.put(store, f"{RUN.prefix}/ledger/{name}", b"")

    with pytest.raises(ForeignObject, match=name):
        await ledger.committed()


async def test_partials_are_found_by_chunk_in_one_order(ledger: Ledger) -> None:
    await ledger.save_partial(2, "pod-b", b"b")
    await ledger.save_partial(2, "pod-a", b"a")
    await ledger.save_partial(0, "pod-a", b"c")

    found = await ledger.partials()

    assert sorted(found) == [0, 2]
    assert [await ledger.read_partial(path) for path in found[2]] == [b"a", b"b"]
    assert await ledger.committed() == set(), "a partial commits nothing"


@pytest.mark.parametrize("name", ["notes.txt", "chunk-1/a.parquet", "chunk-00000001/a.tmp", "chunk-00000001/a/b.parquet"])
async def test_what_is_no_partial_is_passed_over(store: ObjectStore, ledger: Ledger, name: str) -> None:
    obstore.put(store, f"{RUN.prefix}/partials/{name}", b"")
    await ledger.save_partial(1, "pod", b"x")

    assert await ledger.partials() == {1: [f"{RUN.prefix}/partials/chunk-00000001/pod.parquet"]}


def test_the_first_plan_counts_for_ever(store: ObjectStore) -> None:
    assert load_plan(store, RUN) is None

    assert save_plan(store, RUN, PLAN) == PLAN
    assert save_plan(store, RUN, a_plan(10, 5)) == PLAN
    assert load_plan(store, RUN) == PLAN


def test_a_chunk_survives_its_file() -> None:
    table, provenance = chunks.decode(a_chunk(RUN, PLAN, 1, dead=[5]))

    assert table.column("ordinal").to_pylist() == [4, 5, 6, 7]
    assert table.column("id").to_pylist() == [4, 5, 6, 7]
    assert [result.reason for result in chunks.results_of(table)] == [None, "rejected", None, None]
    assert (provenance.chunk, provenance.dead_letters) == (1, 1)


@pytest.mark.parametrize("torn", [0, 1, 100, -1])
def test_a_torn_chunk_is_none(torn: int) -> None:
    with pytest.raises(chunks.NotAChunk):
        chunks.decode(a_chunk(RUN, PLAN, 1)[:torn])


def test_sealing_proves_and_counts(store: ObjectStore, ledger: Ledger) -> None:
    asyncio.run(commit_all(ledger, dead=(0, 9)))

    manifest = seal.seal(store, RUN, a_spec(dead_letters__tolerate=2), PLAN)

    assert (manifest["rows"], manifest["predictions"], manifest["dead_letters"]) == (10, 8, 2)
    assert manifest["dead_reasons"] == {"rejected": 2}
    assert [entry["rows"] for entry in manifest["chunks"]] == [4, 4, 2]
    first = obstore.get(store, manifest["chunks"][0]["path"]).bytes()
    assert manifest["chunks"][0]["sha256"] == hashlib.sha256(bytes(first)).hexdigest()
    assert manifest["merkle_root"] == seal.merkle_root([entry["sha256"] for entry in manifest["chunks"]])
    assert seal.load_manifest(store, RUN) == manifest


def test_a_sealed_run_stays_as_it_was_sealed(store: ObjectStore, ledger: Ledger) -> None:
    asyncio.run(commit_all(ledger))
    manifest = seal.seal(store, RUN, a_spec(), PLAN)

    obstore.delete(store, ledger.chunk_path(0))

    assert seal.seal(store, RUN, a_spec(), PLAN) == manifest


def test_missing_chunks_are_named(store: ObjectStore, ledger: Ledger) -> None:
    asyncio.run(ledger.commit(1, a_chunk(RUN, PLAN, 1)))

    with pytest.raises(seal.ConservationError, match=r"2 of 3 chunks are not committed \(0, 2\): 6 of 10 rows"):
        seal.seal(store, RUN, a_spec(), PLAN)
    assert seal.load_manifest(store, RUN) is None


@pytest.mark.parametrize("ordinals", [[4, 5, 6], [4, 5, 6, 6], [4, 5, 6, 8], [5, 4, 6, 7], [4, 5, 6, 7, 7]])
def test_wrong_ordinals_are_not_sealed(store: ObjectStore, ledger: Ledger, ordinals: list[int]) -> None:
    asyncio.run(ledger.commit(0, a_chunk(RUN, PLAN, 0)))
    asyncio.run(ledger.commit(1, a_chunk(RUN, PLAN, 1, ordinals=ordinals)))
    asyncio.run(ledger.commit(2, a_chunk(RUN, PLAN, 2)))

    with pytest.raises(seal.ConservationError, match="ordinals 4 to 7"):
        seal.seal(store, RUN, a_spec(), PLAN)


def test_a_chunk_of_another_run_is_not_sealed(store: ObjectStore, ledger: Ledger) -> None:
    asyncio.run(commit_all(ledger))
    other = type(RUN)(RUN.job, RUN.partition, "f" * 16)
    obstore.put(store, ledger.chunk_path(2), a_chunk(other, PLAN, 2))

    with pytest.raises(seal.ConservationError, match="belongs to run ffff"):
        seal.seal(store, RUN, a_spec(), PLAN)


def test_a_row_without_prediction_and_reason_is_not_sealed(store: ObjectStore, ledger: Ledger) -> None:
    asyncio.run(commit_all(ledger))
    table, provenance = chunks.decode(a_chunk(RUN, PLAN, 2))
    results = [chunks.Result(ordinal, None, None, None, 1) for ordinal in (8, 9)]
    body = chunks.encode(table.select(["id"]), results, table.schema.field("prediction").type, provenance)
    obstore.put(store, ledger.chunk_path(2), body)

    with pytest.raises(seal.ConservationError, match="neither a prediction nor a dead letter"):
        seal.seal(store, RUN, a_spec(), PLAN)


def test_too_many_dead_letters_are_not_sealed(store: ObjectStore, ledger: Ledger) -> None:
    asyncio.run(commit_all(ledger, dead=(0, 1)))

    with pytest.raises(seal.ToleranceExceeded, match=r"2 of 10 rows are dead letters \(2 rejected\); the job tolerates 1"):
        seal.seal(store, RUN, a_spec(dead_letters__tolerate="10%"), PLAN)
    assert seal.load_manifest(store, RUN) is None


def test_a_run_without_rows_is_sealed() -> None:
    manifest = seal.seal(MemoryStore(), RUN, a_spec(), a_plan(0))

    assert (manifest["rows"], manifest["chunks"]) == (0, [])


def test_the_merkle_root_depends_on_every_digest_and_its_place() -> None:
    digests = [hashlib.sha256(bytes([n])).hexdigest() for n in range(5)]

    assert seal.merkle_root(digests) != seal.merkle_root(digests[:4])
    assert seal.merkle_root(digests) != seal.merkle_root([digests[1], digests[0], *digests[2:]])
    assert seal.merkle_root(digests[:1]) == digests[0]
    pair = bytes.fromhex(digests[0]) + bytes.fromhex(digests[1])
    assert seal.merkle_root(digests[:2]) == hashlib.sha256(b"\x01" + pair).hexdigest()
