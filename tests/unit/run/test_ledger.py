"""The ledger on a memory store and on a folder: create-only commits, resume by listing, and the proof at the seal."""

import asyncio
import hashlib
import io
import math
import threading
import time
from array import array
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.store import MemoryStore, ObjectStore

from nightshift.run import chunks, parquet_rows, seal
from nightshift.run.chunks import Provenance, Result
from nightshift.run.ledger import Chunks, ForeignObject, Ledger
from nightshift.run.manifest import load_manifest
from nightshift.run.names import canonical_json
from nightshift.run.plan import PlanError, load_plan, new_uid, save_plan
from nightshift.run.tolerance import ToleranceExceeded
from nightshift.spec import columns
from nightshift.store import ObjectStorage, open_store
from tests.builders import RUN, WORK, a_chunk, a_plan, a_spec, with_rows

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
    assert list(await ledger.committed()) == []

    await ledger.commit(2, b"x")
    await ledger.commit(0, b"x")

    assert list(await ledger.committed()) == [0, 2]
    assert await ledger.read(1) is None


async def test_resume_lists_page_after_page() -> None:
    plan = a_plan(2500, 1)
    ledger = Ledger(ObjectStorage(MemoryStore()), RUN, plan)
    for chunk in range(plan.chunk_count):
        await ledger.commit(chunk, b"")

    assert list(await ledger.committed()) == list(range(2500))


@pytest.mark.parametrize("name", ["chunk-00000003.parquet", "chunk-1.parquet", "notes.txt"])
async def test_a_foreign_object_in_the_ledger_is_an_error(store: ObjectStore, ledger: Ledger, name: str) -> None:
    obstore.put(store, f"{WORK.prefix}/ledger/{name}", b"")

    with pytest.raises(ForeignObject, match=name):
        await ledger.committed()


async def test_a_range_is_learnt_without_the_rest(ledger: Ledger) -> None:
    for chunk in range(PLAN.chunk_count):
        await ledger.commit(chunk, b"x")
    known = Chunks(PLAN.chunk_count)

    await ledger.refresh(known, range(1, 2))

    assert list(known) == [1]


class LosesReplies:
    """A store that creates and then loses its reply, and whose client repeats by itself: only a fault like that shows it."""

    def __init__(self, store: ObjectStore) -> None:
        self._real = ObjectStorage(store)
        self.read, self.list = self._real.read, self._real.list

    async def create(self, path: str, body: bytes) -> bool:
        await self._real.create(path, body)
        return await self._real.create(path, body)


async def test_our_own_copy_after_a_lost_reply_is_ours(store: ObjectStore) -> None:
    ledger = Ledger(LosesReplies(store), RUN, PLAN)

    assert await ledger.commit(1, b"mine") is True
    assert await ledger.commit(1, b"another's") is False


async def test_partials_are_found_in_one_order(ledger: Ledger) -> None:
    await ledger.save_partial(2, "pod-b", b"b")
    await ledger.save_partial(2, "pod-a", b"a")
    await ledger.save_partial(0, "pod-a", b"c")

    found = await ledger.partials(2)

    assert list(found) == ["pod-a", "pod-b"]
    assert [await ledger.read_partial(path) for path in found.values()] == [b"a", b"b"]
    assert await ledger.partials(1) == {}
    assert list(await ledger.committed()) == [], "a partial commits nothing"


@pytest.mark.parametrize("name", ["notes.txt", "a.tmp", "a/b.parquet"])
async def test_what_is_no_partial_is_passed_over(store: ObjectStore, ledger: Ledger, name: str) -> None:
    obstore.put(store, f"{WORK.prefix}/partials/chunk-00000001/{name}", b"")
    await ledger.save_partial(1, "pod", b"x")

    assert await ledger.partials(1) == {"pod": f"{WORK.prefix}/partials/chunk-00000001/pod.parquet"}


async def test_dead_letters_are_added_up_until_there_are_enough(ledger: Ledger) -> None:
    assert await ledger.dead_letters_noted(10) == 0

    await ledger.note_dead(0, {"too_long": 2, "rejected": 1})
    await ledger.note_dead(0, {"too_long": 2, "rejected": 1})
    await ledger.note_dead(2, {"rejected": 1})
    await ledger.note_lost(1, "pod", 4)

    assert await ledger.dead_letters_noted(10) == 4
    assert await ledger.dead_letters_noted(3) == 4, "as many as are tolerated are not yet enough"
    assert await ledger.dead_letters_noted(2) == 3


def test_a_set_of_chunks() -> None:
    known = Chunks(6)
    known.add(4)
    known.add(1)

    assert (list(known), len(known), 4 in known, 3 in known) == ([1, 4], 2, True, False)
    assert list(known.missing(range(1, 6))) == [2, 3, 5]
    assert known.count_missing(range(1, 6)) == 3
    assert known.count_missing(range(0)) == 0


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


@pytest.mark.parametrize("mask", [0xFF, 0x01, 0x80])
def test_no_chunk_with_an_altered_byte_is_read(mask: int) -> None:
    body = bytearray(a_chunk(RUN, PLAN, 1, dead=[5]))
    for at in range(len(body)):
        body[at] ^= mask
        with pytest.raises(chunks.NotAChunk):
            chunks.decode(bytes(body))
        body[at] ^= mask


def test_no_torn_chunk_is_read() -> None:
    body = a_chunk(RUN, PLAN, 1)
    for size in range(len(body)):
        with pytest.raises(chunks.NotAChunk):
            chunks.decode(body[:size])


def test_no_bytes_after_or_inside_a_chunk_are_passed_over() -> None:
    body = a_chunk(RUN, PLAN, 1)
    for altered in (body + b"\0", b"\0" + body, body + body, body[:100] + b"\0" + body[100:], body[:100] + body[101:]):
        with pytest.raises(chunks.NotAChunk):
            chunks.decode(altered)


def test_the_body_of_one_chunk_does_not_go_with_the_footer_of_another() -> None:
    one, other = (a_chunk(RUN, PLAN, 1, dead=[row]) for row in (5, 6))
    assert len(one) == len(other), "both have their pages at the same places"
    size = int.from_bytes(one[-8:-4], "little") + 8

    with pytest.raises(chunks.NotAChunk, match="its body is not what was written"):
        chunks.decode(one[:-size] + other[-size:])


def test_a_chunk_without_digests_is_not_read() -> None:
    table, provenance = chunks.decode(a_chunk(RUN, PLAN, 1, dead=[5]))
    sink = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({chunks.METADATA_KEY: chunks.claims_of(provenance)}), sink)

    with pytest.raises(chunks.NotAChunk, match="its footer has no digest"):
        chunks.decode(sink.getvalue())


def of_predictions(predictions: pa.Array) -> bytes:
    """Chunk 0 with this column in place of its vectors, and digests that are right: what a worker can write that means ill."""
    table, _ = chunks.decode(a_chunk(RUN, PLAN, 0))
    at = table.column_names.index(columns.PREDICTION)
    said = {key: table.schema.metadata[key] for key in (chunks.METADATA_KEY, chunks.PARTS_KEY, chunks.FORMAT_KEY)}
    changed = table.set_column(at, columns.PREDICTION, predictions).replace_schema_metadata(said)
    return chunks.to_parquet(changed.schema, [changed])


def test_a_text_that_is_no_utf_8_is_no_chunk_whoever_reads_it() -> None:
    words = pa.array(["good", "words", "and", "more"]).buffers()
    body = of_predictions(pa.StringArray.from_buffers(4, words[1], pa.py_buffer(b"good\xffords" + b"andmore")))

    for read in (chunks.decode, lambda body: chunks.decode_results(body, chunks.results_of), chunks.decode_outcomes):
        with pytest.raises(chunks.NotAChunk, match="Invalid UTF8"):
            read(body)


def test_answers_with_a_text_are_read_few_at_a_time() -> None:
    """Also if they have numbers beside it: how long the texts are, a file does not say."""
    numbers = pa.array([{"score": 0.5, "rank": 1}] * 4)
    mixed = pa.array([{"score": 0.5, "label": "good"}] * 4)

    def at_once(predictions: pa.Array) -> int:
        return chunks._rows_at_once(pq.read_metadata(io.BytesIO(of_predictions(predictions))))

    assert at_once(mixed) == at_once(pa.array(["good"] * 4)) == chunks.OUTCOME_TEXTS == 512
    assert at_once(numbers) == chunks.OUTCOME_NUMBERS // 2


def test_sealing_proves_and_counts(store: ObjectStore, ledger: Ledger) -> None:
    asyncio.run(commit_all(ledger, dead=(0, 9)))

    manifest = seal.seal(store, RUN, a_spec(dead_letters__tolerate=2), with_rows(store, PLAN))

    assert (manifest.rows, manifest.predictions, manifest.dead_letters) == (10, 8, 2)
    assert manifest.dead_reasons == {"rejected": 2}
    assert [entry.rows for entry in manifest.chunks] == [4, 4, 2]
    first = obstore.get(store, manifest.chunks[0].path).bytes()
    assert manifest.chunks[0].sha256 == hashlib.sha256(bytes(first)).hexdigest()
    assert manifest.merkle_root == seal.merkle_root([entry.sha256 for entry in manifest.chunks])
    assert load_manifest(store, RUN) == manifest


def test_a_sealed_run_stays_as_it_was_sealed(store: ObjectStore, ledger: Ledger) -> None:
    """Also under other terms: whether it has too many dead letters was decided when it was sealed."""
    asyncio.run(commit_all(ledger, dead=(0,)))
    plan = with_rows(store, PLAN)
    manifest = seal.seal(store, RUN, a_spec(dead_letters__tolerate=1), plan)

    assert seal.seal(store, RUN, a_spec(), plan) == manifest


def test_a_manifest_that_is_there_is_compared_and_not_believed(store: ObjectStore, ledger: Ledger) -> None:
    asyncio.run(commit_all(ledger))
    plan = with_rows(store, PLAN)
    manifest = seal.seal(store, RUN, a_spec(), plan)
    stored = manifest.to_json()
    forgeries: list[dict[str, Any]] = [
        {"opening": "another"},
        {"plan": "0" * 16},
        {"rows": 11, "predictions": 11},
        {"chunks": stored["chunks"][:2]},
        {"chunks": [{**stored["chunks"][0], "sha256": "0" * 64}, *stored["chunks"][1:]]},
        {"merkle_root": "0" * 64},
        {"completes": [asdict(manifest.as_completed)]},
        {"dead_reasons": {"rejected": 1}},
    ]

    for forged in forgeries:
        obstore.put(store, RUN.manifest_path, canonical_json({**stored, **forged}))
        with pytest.raises(seal.ConservationError, match=f"does not say what the ledger proves now: {next(iter(forged))}"):
            seal.seal(store, RUN, a_spec(), plan)
    obstore.put(store, RUN.manifest_path, canonical_json({**stored, "sealed_at": "2026-11-20", "prompt_tokens": 7}))
    assert seal.seal(store, RUN, a_spec(), plan).prompt_tokens == 7, "what attempts claim is not proven"


def test_a_chunk_that_is_gone_after_the_seal_is_missed(store: ObjectStore, ledger: Ledger) -> None:
    asyncio.run(commit_all(ledger))
    plan = with_rows(store, PLAN)
    seal.seal(store, RUN, a_spec(), plan)
    obstore.delete(store, WORK.chunk_path(0))

    with pytest.raises(seal.ConservationError, match=r"1 of 3 chunks are not committed \(0\)"):
        seal.seal(store, RUN, a_spec(), plan)


def test_answers_to_other_rows_are_not_sealed(store: ObjectStore, ledger: Ledger) -> None:
    """A worker may create its chunks, but not say which rows there were."""
    asyncio.run(ledger.commit(0, a_chunk(RUN, PLAN, 0)))
    asyncio.run(ledger.commit(1, a_chunk(RUN, PLAN, 1, ids=[4, 5, 7, 6])))
    asyncio.run(ledger.commit(2, a_chunk(RUN, PLAN, 2)))

    with pytest.raises(seal.ConservationError, match=r"chunk-00000001.parquet has other keys than the rows .* \(id\)"):
        seal.seal(store, RUN, a_spec(), with_rows(store, PLAN))


@pytest.mark.parametrize("change", ["deleted", "replaced"])
def test_rows_that_are_gone_cannot_be_compared(store: ObjectStore, ledger: Ledger, change: str) -> None:
    asyncio.run(commit_all(ledger))
    plan = with_rows(store, PLAN)
    path = f"{RUN.prefix}/{plan.files[0].path}"
    if change == "deleted":
        obstore.delete(store, path)
    else:
        obstore.put(store, path, bytes(obstore.get(store, path).bytes()))

    with pytest.raises(seal.ConservationError, match=r"cannot be compared with their answers: .*overwritten or deleted"):
        seal.seal(store, RUN, a_spec(), plan)


@pytest.mark.parametrize("values", [[1.5, math.nan, None, -0.0], [None] * 4, [math.inf, -math.inf, 1e300, 5e-324]])
def test_keys_that_are_floating_point_numbers_are_compared_bit_for_bit(values: list[float | None]) -> None:
    column = pa.array(values, pa.float64())

    def differ(other: pa.ChunkedArray | pa.Array) -> list[str]:
        return parquet_rows.other_columns(pa.table({"id": column}), pa.table({"id": other}))

    assert differ(pa.chunked_array([column[:1], column[1:]])) == []
    for place in range(4):
        other = [*values[:place], 2.5, *values[place + 1 :]]
        assert differ(pa.array(other, pa.float64())) == ["id"]
    assert differ(column.cast(pa.float32(), safe=False)) == ["id"]


def test_a_plan_is_not_written_over_what_followed_another_one(store: ObjectStore, ledger: Ledger) -> None:
    obstore.put(store, RUN.manifest_path, b"{}")

    with pytest.raises(PlanError, match=r"plan.json is missing, but .*manifest.json followed it: .*Trigger the DAG with fresh"):
        save_plan(store, RUN, PLAN)
    obstore.delete(store, RUN.manifest_path)
    obstore.put(store, RUN.work("").chunk_path(3), b"committed by a worker of release 0.2.0")
    with pytest.raises(PlanError, match=r"chunk-00000003\.parquet followed it"):
        save_plan(store, RUN, PLAN)
    assert load_plan(store, RUN) is None


def test_missing_chunks_are_named(store: ObjectStore, ledger: Ledger) -> None:
    asyncio.run(ledger.commit(1, a_chunk(RUN, PLAN, 1)))

    with pytest.raises(seal.ConservationError, match=r"2 of 3 chunks are not committed \(0, 2\): 6 of 10 rows"):
        seal.seal(store, RUN, a_spec(), with_rows(store, PLAN))
    assert load_manifest(store, RUN) is None


@pytest.mark.parametrize("ordinals", [[4, 5, 6], [4, 5, 6, 6], [4, 5, 6, 8], [5, 4, 6, 7], [4, 5, 6, 7, 7]])
def test_wrong_ordinals_are_not_sealed(store: ObjectStore, ledger: Ledger, ordinals: list[int]) -> None:
    asyncio.run(ledger.commit(0, a_chunk(RUN, PLAN, 0)))
    asyncio.run(ledger.commit(1, a_chunk(RUN, PLAN, 1, ordinals=ordinals)))
    asyncio.run(ledger.commit(2, a_chunk(RUN, PLAN, 2)))

    with pytest.raises(seal.ConservationError, match=r"ordinals 4 to 7|it has 5 rows, and there are 4"):
        seal.seal(store, RUN, a_spec(), with_rows(store, PLAN))


def test_a_chunk_of_another_run_is_not_sealed(store: ObjectStore, ledger: Ledger) -> None:
    asyncio.run(commit_all(ledger))
    other = type(RUN)(RUN.job, RUN.partition, "f" * 16)
    obstore.put(store, WORK.chunk_path(2), a_chunk(other, PLAN, 2))

    with pytest.raises(seal.ConservationError, match="belongs to run ffff"):
        seal.seal(store, RUN, a_spec(), with_rows(store, PLAN))


def test_a_row_without_prediction_and_reason_is_not_sealed(store: ObjectStore, ledger: Ledger) -> None:
    asyncio.run(commit_all(ledger))
    table, provenance = chunks.decode(a_chunk(RUN, PLAN, 2))
    results = [chunks.Result(ordinal, None, None, None, 1) for ordinal in (8, 9)]
    body = chunks.encode(table.select(["id"]), results, table.schema.field("prediction").type, provenance)
    obstore.put(store, WORK.chunk_path(2), body)

    with pytest.raises(seal.ConservationError, match="neither a prediction nor a dead letter"):
        seal.seal(store, RUN, a_spec(), with_rows(store, PLAN))


def with_vectors(chunk: int, *widths: int) -> bytes:
    """The object of a chunk whose vectors have these widths; 0: a dead letter."""
    table, provenance = chunks.decode(a_chunk(RUN, PLAN, chunk))
    results = [
        chunks.Result(ordinal, [1.0] * width, None, None, 1) if width else chunks.Result(ordinal, None, "rejected", "no", 1)
        for ordinal, width in zip(PLAN.chunk_range(chunk), widths, strict=True)
    ]
    return chunks.encode(table.select(["id"]), results, table.schema.field("prediction").type, provenance)


@pytest.mark.parametrize("widths", [(3, 3), (2, 3), (0, 3)])
def test_vectors_of_two_models_are_not_sealed(store: ObjectStore, ledger: Ledger, widths: tuple[int, int]) -> None:
    """Each attempt's own vectors are of one width, but attempts do not see each other's."""
    asyncio.run(commit_all(ledger))
    obstore.put(store, WORK.chunk_path(2), with_vectors(2, *widths))

    message = rf"different numbers of dimensions \(2 in {WORK.chunk_path(0)}, 3 in {WORK.chunk_path(2)}\)"
    with pytest.raises(seal.ConservationError, match=message):
        seal.seal(store, RUN, a_spec(dead_letters__tolerate=1), with_rows(store, PLAN))
    assert load_manifest(store, RUN) is None


def test_answers_that_are_lists_of_any_length_are_sealed(store: ObjectStore, ledger: Ledger) -> None:
    """A reranker gives each row as many numbers as the row has documents."""
    asyncio.run(commit_all(ledger))
    obstore.put(store, WORK.chunk_path(2), with_vectors(2, 7, 1))
    request = {"query": "{{ text }}", "documents": "documents"}

    assert seal.seal(store, RUN, a_spec(task="rerank", request=request), with_rows(store, PLAN)).rows == 10


def test_too_many_dead_letters_are_not_sealed(store: ObjectStore, ledger: Ledger) -> None:
    asyncio.run(commit_all(ledger, dead=(0, 1)))

    with pytest.raises(ToleranceExceeded, match=r"2 of 10 rows are dead letters \(2 rejected\); the job tolerates 1"):
        seal.seal(store, RUN, a_spec(dead_letters__tolerate="10%"), with_rows(store, PLAN))
    assert load_manifest(store, RUN) is None


def test_a_run_without_rows_is_sealed() -> None:
    manifest = seal.seal(MemoryStore(), RUN, a_spec(), a_plan(0))

    assert (manifest.rows, manifest.chunks) == (0, ())


def test_the_merkle_root_depends_on_every_digest_and_its_place() -> None:
    digests = [hashlib.sha256(bytes([n])).hexdigest() for n in range(5)]

    assert seal.merkle_root(digests) != seal.merkle_root(digests[:4])
    assert seal.merkle_root(digests) != seal.merkle_root([digests[1], digests[0], *digests[2:]])
    assert seal.merkle_root(digests[:1]) == digests[0]
    pair = bytes.fromhex(digests[0]) + bytes.fromhex(digests[1])
    assert seal.merkle_root(digests[:2]) == hashlib.sha256(b"\x01" + pair).hexdigest()


def test_vectors_are_written_as_lists_are_and_read_as_arrays() -> None:
    """Compact in memory, and in the file what pyarrow makes of lists: the column, byte by byte."""
    vectors = [array("f", [0.5, -1.25, 3e38]), None, array("f", [7.0]), array("f")]
    made = Provenance(RUN.run_id, 0, "pod", "node", {}, "0", "", "", predictions=3, dead_letters=1, prompt_tokens=1)
    keys = pa.table({"id": pa.array(range(4), pa.int64())})

    def encoded(predictions: list[Any]) -> bytes:
        results = [Result(n, value, None if value is not None else "rejected", None, 1) for n, value in enumerate(predictions)]
        return chunks.encode(keys, results, pa.list_(pa.float32()), made)

    compact = encoded(vectors)
    assert compact == encoded([None if vector is None else vector.tolist() for vector in vectors])
    table, _ = chunks.decode(compact)
    assert [result.prediction for result in chunks.results_of(table)] == vectors
    assert [result.prediction for result in chunks.results_of(table.slice(2))] == vectors[2:]


def test_outcomes_tell_what_the_whole_chunk_tells() -> None:
    body = a_chunk(RUN, PLAN, 1, dead=[5])
    whole, made = chunks.decode(body)

    outcomes, same = chunks.decode_outcomes(body)

    assert same == made
    assert outcomes.column("ordinal") == whole.column("ordinal")
    assert outcomes.column("dead_reason") == whole.column("dead_reason")
    assert outcomes.column("prediction").to_pylist() == [value is not None for value in whole.column("prediction").to_pylist()]


async def test_a_plan_that_was_made_again_finds_nothing_of_the_first(store: ObjectStore) -> None:
    """It may have other rows: the workers of the first may still be at work."""
    first = replace(PLAN, uid=new_uid())
    await Ledger(ObjectStorage(store), RUN, first).commit(0, a_chunk(RUN, first, 0))
    await Ledger(ObjectStorage(store), RUN, first).save_partial(1, "pod", b"")
    await Ledger(ObjectStorage(store), RUN, first).note_dead(0, {"rejected": 4})
    again = Ledger(ObjectStorage(store), RUN, replace(PLAN, uid=new_uid()))

    assert (len(await again.committed()), await again.partials(1), await again.dead_letters_noted(1)) == (0, {}, 0)
    assert await again.commit(0, a_chunk(RUN, PLAN, 0))


def test_a_chunk_that_was_copied_from_another_plan_is_not_sealed(store: ObjectStore, ledger: Ledger) -> None:
    asyncio.run(commit_all(ledger))
    obstore.put(store, WORK.chunk_path(2), a_chunk(RUN, replace(PLAN, uid="0" * 16), 2))

    with pytest.raises(seal.ConservationError, match=f"belongs to run {RUN.run_id}, plan 0000000000000000, not to run"):
        seal.seal(store, RUN, a_spec(), with_rows(store, PLAN))


@pytest.mark.parametrize("times", [1, 2, 3])
def test_as_many_chunks_are_read_at_once_as_the_memory_is_to_hold(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """times: how many chunks READ_BYTES holds."""
    plan = with_rows(store, a_plan(48, 4))
    for chunk in range(plan.chunk_count):
        obstore.put(store, WORK.chunk_path(chunk), a_chunk(RUN, plan, chunk))
    size = min(meta["size"] for page in obstore.list(store, WORK.ledger_folder) for meta in page)
    monkeypatch.setattr(seal, "READ_BYTES", times * size)
    lock, now, seen = threading.Lock(), 0, [0]
    check = seal._check_chunk

    def counted(*arguments: Any) -> Any:
        nonlocal now
        with lock:
            now += 1
            seen.append(now)
        time.sleep(0.05)
        try:
            return check(*arguments)
        finally:
            with lock:
                now -= 1

    monkeypatch.setattr(seal, "_check_chunk", counted)
    assert len(seal.seal(store, RUN, a_spec(), plan).chunks) == 12
    assert max(seen) <= times
