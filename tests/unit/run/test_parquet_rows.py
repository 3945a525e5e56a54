"""`nightshift.run.parquet_rows`: parts of row groups, packed and decoded, and what is too large."""

from __future__ import annotations

import datetime
import io
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from local.bigquery import repeated
from nightshift.run import parquet_cost, parquet_rows
from nightshift.run.parquet_cost import TooLarge
from nightshift.run.parquet_rows import RowGroups, decoded, other_columns, pieces, whole

pytestmark = pytest.mark.unit

LIST = pa.list_(pa.field("element", pa.string(), nullable=False))
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("text", pa.string()),
        pa.field("raw", pa.binary()),
        pa.field("list", LIST, nullable=False),
        pa.field("struct", pa.struct([pa.field("a", pa.string()), pa.field("b", pa.float64())])),
        pa.field("list_of_structs", pa.list_(pa.struct([pa.field("a", pa.string())]))),
        pa.field("number", pa.decimal128(38, 9)),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us")),
        pa.field("vector", pa.list_(pa.float32())),
    ]
)


def a_row(number: int) -> dict[str, Any]:
    few = number % 5
    return {
        "id": number,
        "text": None if few == 3 else f"text {few}",
        "raw": bytes([255, few]),
        "list": [f"a{few}", f"b{number}"][:few],
        "struct": None if few == 4 else {"a": f"s{few}", "b": 0.5},
        "list_of_structs": [{"a": f"l{few}"}, {"a": None}],
        "number": Decimal(few) / 8,
        "day": datetime.date(2026, 1, 1 + few),
        "at": datetime.datetime(2026, 1, 1, few),
        "vector": [float(few)] * few,
    }


ROWS = [a_row(number) for number in range(1000)]


@pytest.fixture(params=["dictionaries", "plain", "repeated"])
def body(request: pytest.FixtureRequest, tmp_path: Path) -> bytes:
    """Three row groups. repeated: its list as BigQuery exports an ARRAY."""
    schema = SCHEMA.remove(SCHEMA.get_field_index("list_of_structs")) if request.param == "repeated" else SCHEMA
    schema = schema.remove(schema.get_field_index("vector")) if request.param == "repeated" else schema
    table = pa.Table.from_pylist([{name: row[name] for name in schema.names} for row in ROWS], schema)
    path = tmp_path / "rows.parquet"
    pq.write_table(table, path, row_group_size=400, store_schema=False, use_dictionary=request.param != "plain")
    if request.param == "repeated":
        repeated.rewrite(path)
    return path.read_bytes()


def read(groups: RowGroups, group: int, offsets: range) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = decoded(groups.rows(group, offsets)).to_pylist()
    return found


@pytest.mark.parametrize("batch_bytes", [parquet_rows.BATCH_BYTES, 20_000, 2_000])
def test_any_rows_in_any_order_are_what_pyarrow_reads(body: bytes, monkeypatch: pytest.MonkeyPatch, batch_bytes: int) -> None:
    monkeypatch.setattr(parquet_rows, "BATCH_BYTES", batch_bytes)
    groups = RowGroups(pa.BufferReader(body))
    plain = pq.ParquetFile(pa.BufferReader(body)).read().to_pylist()

    for group, offsets in [
        (0, range(7)),
        (0, range(7, 90)),
        (0, range(380, 400)),
        (0, range(3, 5)),
        (2, range(200)),
        (1, range(1)),
    ]:
        start = 400 * group
        assert read(groups, group, offsets) == plain[start + offsets.start : start + offsets.stop]
    assert whole(body).to_pylist() == plain
    assert decoded(groups.rows(0, range(3))).schema.types == pq.ParquetFile(pa.BufferReader(body)).read().schema.types


@pytest.mark.parametrize("value", [7, [7], {"a": 7}], ids=["number", "list", "struct"])
def test_a_part_of_a_large_group_is_all_that_is_held(monkeypatch: pytest.MonkeyPatch, value: Any) -> None:
    monkeypatch.setattr(parquet_rows, "BATCH_BYTES", 20_000)
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": range(10_000), "value": [value] * 10_000}), sink)
    groups = RowGroups(pa.BufferReader(sink.getvalue()), ["value"])

    sizes = [len(groups.rows(*part)) for part in groups.parts()]
    assert sum(sizes) == 10_000
    assert max(sizes) * parquet_rows.VALUE_BYTES <= 20_000


def test_rows_that_could_not_be_read_are_read_again(body: bytes) -> None:
    file = _Unsteady(body)
    groups = RowGroups(file)
    file.lost = True
    with pytest.raises(OSError, match="lost"):
        groups.rows(1, range(5))
    file.lost = False
    assert [row["id"] for row in read(groups, 1, range(5))] == list(range(400, 405))


class _Unsteady(io.BytesIO):
    """A file that cannot be read for a while, as one in a store."""

    lost = False

    def read(self, size: int | None = -1) -> bytes:
        if self.lost:
            raise OSError("lost")
        return super().read(size)


def packed_texts(rows: int, size: int) -> pa.Table:
    places = pa.array([row % 3 for row in range(rows)], pa.int32())
    texts = pa.array(["a" * size, "b" * size, "c" * size])
    return pa.table({"id": range(rows), "text": pa.DictionaryArray.from_arrays(places, texts)})


def test_what_is_too_large_when_it_is_decoded_is_refused_with_the_column_and_how_many_rows_fit() -> None:
    table = packed_texts(60_000, 40_000)

    with pytest.raises(
        TooLarge, match="the column text has 2,400,000,000 bytes in 60,000 rows, more than 536,870,912"
    ) as found:
        decoded(table)
    assert found.value.fit == 13_421
    assert decoded(table.slice(0, 5)).column("text").to_pylist() == table.slice(0, 5).column("text").to_pylist()


def test_pieces_are_all_rows_in_order_and_each_is_small() -> None:
    table = packed_texts(1_001, 1_000)

    found = list(pieces(table, 50_000))

    assert pa.concat_tables(found).column("id").to_pylist() == list(range(1_001))
    assert max(part.nbytes for part in found) < 55_000
    assert len(list(pieces(packed_texts(4, 100_000), 50_000))) == 4  # A row is not divided.


def test_more_packed_rows_than_the_memory_is_to_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_rows, "BATCH_BYTES", 10_000)
    monkeypatch.setattr(parquet_rows, "UNPACKED_BYTES_MOST", 20_000)
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": range(10_000)}), sink)

    with pytest.raises(TooLarge, match="of 10,000 rows take"):
        RowGroups(pa.BufferReader(sink.getvalue())).rows(0, range(10_000))


def test_a_small_file_has_no_more_rows_than_it_may() -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": range(21)}).replace_schema_metadata({"a": "b"}), sink)

    assert whole(sink.getvalue(), 21).schema.metadata[b"a"] == b"b"
    with pytest.raises(TooLarge, match="it has 21 rows, more than 20"):
        whole(sink.getvalue(), 20)


def test_packed_columns_are_compared_by_their_values() -> None:
    table = packed_texts(100, 10)
    other = table.set_column(1, "text", table.column("text").cast(pa.string()))

    assert other_columns(table, other) == []
    changed = other.column("text").to_pylist()
    changed[70] = "x"
    assert other_columns(table, other.set_column(1, "text", pa.array(changed))) == ["text"]
    assert other_columns(table, other.slice(1)) == ["id", "text"]


@pytest.mark.parametrize(
    ("bound", "problem"),
    [
        ("TEXT_BYTES_MOST", "text has texts of more than 100 bytes"),
        ("OBJECT_BYTES_MOST", "bytes, more than 100"),
        ("FOOTER_BYTES_MOST", "its footer has"),
    ],
)
def test_a_chunk_is_asked_before_it_is_stored_what_its_readers_ask(
    monkeypatch: pytest.MonkeyPatch, bound: str, problem: str
) -> None:
    sink = io.BytesIO()
    pq.write_table(decoded(packed_texts(600, 1_000)), sink, compression="zstd")
    parquet_cost.check_own(sink.getvalue())

    monkeypatch.setattr(parquet_cost, bound, 100)
    with pytest.raises(TooLarge, match=problem):
        parquet_cost.check_own(sink.getvalue())
