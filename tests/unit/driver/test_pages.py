"""Files of some KiB that stand for GiB: found out before anything of them is unpacked."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.store import MemoryStore

from nightshift.driver.codec import ParquetCodec
from nightshift.run import chunks, parquet_cost
from nightshift.run.chunks import METADATA_KEY, PARTS_KEY, NotAChunk
from nightshift.run.ledger import Ledger
from nightshift.run.seal import ConservationError, seal
from nightshift.spec import columns
from nightshift.store import ObjectStorage
from tests.builders import RUN, a_chunk, a_plan, a_spec

pytestmark = pytest.mark.unit

VALUES = 1 << 20


def metadata(rows: int) -> dict[bytes, bytes]:
    """What a real chunk of the run says of itself."""
    found = pq.ParquetFile(pa.BufferReader(a_chunk(RUN, a_plan(rows, rows), 0))).metadata.metadata
    return {key: value for key, value in found.items() if key.startswith(b"nightshift") and b"sha256" not in key}


def written(
    table: pa.Table, *, rows: int | None = None, groups: int = 1, said: dict[bytes, bytes] | None = None, **options: Any
) -> bytes:
    """A file with all its digests right. groups: the table so many times."""
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, table.schema, compression="zstd", **options) as writer:
        for _ in range(groups):
            writer.write_table(table)
        writer.add_key_value_metadata(metadata(rows or len(table) * groups) | (said or {}) | chunks._PLACES)
    with sink.getbuffer() as body:
        chunks._put_digests(body)
    return sink.getvalue()


def rows_of(number: int, **changes: Any) -> pa.Table:
    """Rows that were answered with vectors of one number."""
    table = {
        columns.ORDINAL: pa.array(range(number), pa.int64()),
        "id": pa.array([f"id-{each}" for each in range(number)]),
        columns.PREDICTION: pa.array([[0.5]] * number, chunks.VECTORS),
        columns.DEAD_REASON: pa.nulls(number, pa.string()),
        columns.DEAD_MESSAGE: pa.nulls(number, pa.string()),
        columns.ATTEMPTS: pa.array([1] * number, pa.int32()),
    }
    return pa.table(table | changes)


def repeated(text: str, rows: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([text]))


def refused(body: bytes, why: str, *, rows: int | None = None) -> None:
    """By both who decode what workers wrote: the seal, and a driver that takes over."""
    with pytest.raises(NotAChunk, match=why):
        chunks.decode_outcomes(body, rows=rows)
    codec = ParquetCodec(
        run_id=RUN.run_id,
        attempt="a",
        node="n",
        model={},
        engine_version="0",
        prediction_type=chunks.VECTORS,
        chunk_rows=rows,
    )
    with pytest.raises(NotAChunk, match=why):
        codec.decode(body, 0, 0, pa.table({}))


def test_the_helper_writes_chunks() -> None:
    table, _ = chunks.decode_outcomes(written(rows_of(4)), rows=4)

    assert table.column(columns.PREDICTION).to_pylist() == [True] * 4


def test_more_rows_than_the_plan_has_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    body = written(rows_of(4), rows=8, groups=2)
    monkeypatch.setattr(pq.ParquetFile, "read", lambda *_, **__: pytest.fail("it was read"))
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda *_, **__: pytest.fail("it was read"))

    refused(body, "it has 8 rows, and there are 4", rows=4)


def test_one_column_with_too_many_numbers() -> None:
    """70 million zeros in 70 rows, in a file of 100 KiB."""
    zeros = pa.array([0.0], pa.float32()).take(pa.array([0] * VALUES, pa.int32()))
    vector = pa.ListArray.from_arrays(pa.array([0, VALUES], pa.int32()), zeros, type=chunks.VECTORS)
    body = written(rows_of(1, **{columns.PREDICTION: vector}), groups=70)

    assert len(body) < 1 << 18
    refused(body, "values, more than", rows=70)


@pytest.mark.parametrize("column", [columns.PREDICTION, columns.DEAD_REASON, columns.DEAD_MESSAGE, "id"])
def test_one_text_in_every_row(column: str) -> None:
    """600 MiB of texts in a file of some KiB."""
    body = written(rows_of(600, **{column: repeated("x" * VALUES, 600)}), store_schema=False)

    assert len(body) < 1 << 18
    refused(body, "texts of more than", rows=600)


def test_texts_in_structs_and_lists_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_cost, "TEXT_BYTES_MOST", 1 << 16)
    inner = repeated("x" * 1000, 100)
    struct = pa.StructArray.from_arrays([inner, pa.array(range(100))], names=["label", "n"])
    lists = pa.ListArray.from_arrays(pa.array(range(0, 101, 2), pa.int32()), inner)

    refused(written(rows_of(100, **{columns.PREDICTION: struct}), store_schema=False), "texts of more than", rows=100)
    refused(written(rows_of(50, **{columns.PREDICTION: lists}), store_schema=False), "texts of more than", rows=50)


def test_a_few_texts_that_repeat_are_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound that is quick to see is passed, the real one is not."""
    monkeypatch.setattr(parquet_cost, "TEXT_BYTES_MOST", 1 << 16)
    texts = pa.array(["x" * 10_000, *["y"] * 99])

    table, _ = chunks.decode_outcomes(written(rows_of(100, **{columns.PREDICTION: texts})), rows=100)
    assert len(table) == 100


def test_a_page_that_unpacks_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_cost, "PAGE_BYTES_MOST", 1 << 16)

    refused(written(rows_of(1, **{columns.DEAD_MESSAGE: ["x" * (1 << 17)]}), use_dictionary=False), "has a page of")


def test_pages_that_unpack_too_large_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_cost, "UNPACKED_BYTES_MOST", 1 << 16)
    body = written(rows_of(1, **{columns.DEAD_MESSAGE: ["x" * (1 << 14)]}), groups=5, use_dictionary=False)

    refused(body, "its pages unpack to")


def test_values_that_repeat_the_one_before_them() -> None:
    """DELTA_BYTE_ARRAY: no dictionary, and each text may be as long as all before it."""
    body = written(rows_of(4), use_dictionary=False, column_encoding={columns.DEAD_MESSAGE: "DELTA_BYTE_ARRAY"})

    refused(body, "in encoding 7")


def test_lists_of_a_fixed_size_are_large_where_they_are_null() -> None:
    nulls = pa.nulls(4, pa.list_(pa.float32(), 1000))

    refused(written(rows_of(4, **{columns.PREDICTION: nulls})), "has no columns of the type fixed_size_list")


@pytest.mark.parametrize("kind", [pa.dictionary(pa.int32(), pa.string()), pa.json_(pa.string())])
def test_types_that_the_files_own_note_asks_for(kind: pa.DataType) -> None:
    refused(written(rows_of(4, id=pa.nulls(4, pa.string()).cast(kind))), "has no columns of the type")


def test_a_large_footer_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    body = written(rows_of(1), said={b"note": b"x" * (5 << 20)})
    monkeypatch.setattr(pq, "ParquetFile", lambda *_, **__: pytest.fail("it was parsed"))

    refused(body, "its footer has")


def test_too_many_columns() -> None:
    wide = rows_of(1, **{f"c{number}": [0] for number in range(parquet_cost.COLUMNS_MOST)})

    refused(written(wide), "columns, more than")


def test_a_reason_is_a_name() -> None:
    body = written(rows_of(2, **{columns.DEAD_REASON: ["x" * 101, None], columns.PREDICTION: [None, [0.5]]}))

    with pytest.raises(NotAChunk, match="dead_reason of more than 100 bytes"):
        chunks.decode_outcomes(body)


def _provenance(**changes: Any) -> bytes:
    return json.dumps(json.loads(metadata(1)[METADATA_KEY]) | changes).encode()


def _parts(**changes: Any) -> bytes:
    return json.dumps([json.loads(metadata(1)[PARTS_KEY])[0] | changes]).encode()


@pytest.mark.parametrize(
    "said",
    [
        {PARTS_KEY: _parts(rows="many")},
        {PARTS_KEY: _parts(rows=-1)},
        {PARTS_KEY: _parts(truncated=10**400)},
        {PARTS_KEY: _parts(truncated=1.5)},
        {PARTS_KEY: _parts(truncated=True)},
        {PARTS_KEY: _parts(truncated=float("nan"))},
        {PARTS_KEY: _parts(node="n" * 5000)},
        {PARTS_KEY: b"[" * 100_000},
        {PARTS_KEY: b"[" + b"9" * 5000 + b"]"},
        {METADATA_KEY: _provenance(prompt_tokens=None)},
        {METADATA_KEY: _provenance(prompt_tokens=[1])},
        {METADATA_KEY: _provenance(model={"name": ["m"]})},
        {METADATA_KEY: _provenance(run_id=None)},
        {METADATA_KEY: b'{"a":' * 100_000},
    ],
)
def test_what_a_chunk_says_of_itself_must_fit_a_manifest(said: dict[bytes, bytes]) -> None:
    refused(written(rows_of(1), said=said), "not a chunk")


@dataclass
class Column:
    """What pyarrow says of a column; the footer is the writer's to choose."""

    num_values: int
    total_compressed_size: int
    data_page_offset: int = 4
    has_dictionary_page: bool = False
    dictionary_page_offset: int | None = None
    path_in_schema: str = "c"


class TestHeaders:
    """Bytes that are not what the footer says of them."""

    BODY = written(pa.table({columns.ORDINAL: pa.array([1, 2], pa.int64())}), rows=2, use_dictionary=False)

    @pytest.fixture
    def column(self) -> Column:
        real = pq.ParquetFile(pa.BufferReader(self.BODY)).metadata.row_group(0).column(0)
        return Column(real.num_values, real.total_compressed_size, real.data_page_offset)

    def test_they_are_read_as_they_are(self, column: Column) -> None:
        assert parquet_cost._Pages(self.BODY, column).unpacked > 16

    @pytest.mark.parametrize(
        "lie",
        [
            {"num_values": 1},
            {"num_values": 3},
            {"total_compressed_size": 10**9},
            {"total_compressed_size": -1},
            {"total_compressed_size": 10},
            {"data_page_offset": -5},
            {"data_page_offset": 10**12},
            {"data_page_offset": 5},
            {"has_dictionary_page": True, "dictionary_page_offset": -1},
            {"has_dictionary_page": True, "dictionary_page_offset": 0},
        ],
    )
    def test_a_lie_is_found(self, column: Column, lie: dict[str, Any]) -> None:
        for name, value in lie.items():
            setattr(column, name, value)
        with pytest.raises(chunks._ODD):
            parquet_cost._Pages(self.BODY, column)

    @pytest.mark.parametrize(
        "head", [b"", b"\x15", b"\x15" + b"\xff" * 20, b"\x1c" * 50, b"\x19\x00", b"\x18\xff\xff\xff\xff\x0f"]
    )
    def test_a_header_that_is_none_ends_in_an_error_that_is_known(self, head: bytes) -> None:
        with pytest.raises(chunks._ODD):
            parquet_cost._Header(head, 0)


def test_a_large_file_is_decoded_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_cost, "HEAVY_BYTES", 0)
    assert not parquet_cost._heavy.locked()
    with parquet_cost.turn(1):
        assert parquet_cost._heavy.locked()
    with parquet_cost.turn(0):
        assert not parquet_cost._heavy.locked()


def test_the_seal_says_which_chunk_it_is() -> None:
    plan = a_plan(4, 4)
    store = MemoryStore()
    asyncio.run(Ledger(ObjectStorage(store), RUN, plan).commit(0, written(rows_of(4), rows=8, groups=2)))

    with pytest.raises(ConservationError, match=r"chunk-00000000\.parquet: not a chunk: it has 8 rows, and there are 4"):
        seal(store, RUN, a_spec(), plan)


class TestSizes:
    """Objects that are larger than any chunk are not read."""

    def test_the_seal_refuses(self, monkeypatch: pytest.MonkeyPatch) -> None:
        plan, store = a_plan(4, 4), MemoryStore()
        asyncio.run(Ledger(ObjectStorage(store), RUN, plan).commit(0, b"x" * 5000))
        monkeypatch.setattr("nightshift.run.seal.ObjectStorage", lambda store, most=4999: ObjectStorage(store, most))

        with pytest.raises(
            ConservationError, match=r"chunk-00000000\.parquet has 5000 bytes, more than 4999: it is not a chunk"
        ):
            seal(store, RUN, a_spec(), plan)

    async def test_a_driver_goes_on_without_it(self) -> None:
        plan, store = a_plan(4, 4), MemoryStore()
        await Ledger(ObjectStorage(store), RUN, plan).save_partial(0, "theirs", b"x" * 5000)
        assert await Ledger(ObjectStorage(store), RUN, plan).commit(0, b"x" * 5000)
        ledger = Ledger(ObjectStorage(store, 4999), RUN, plan)

        (path,) = (await ledger.partials(0)).values()
        assert await ledger.read_partial(path) is None
        assert await ledger.read(0) is None
        assert await ledger.commit(0, b"ours") is False
