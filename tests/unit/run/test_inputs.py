"""The input of a run: every range is of the version that was planned, and what is not Parquet is said to be so."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.store import ObjectStore

from local.bigquery import repeated
from nightshift.run import parquet_rows
from nightshift.run.inputs import DECLARED, InputBroken, InputChanged, InputReader
from nightshift.run.plan import ExportedSource, InputFile, Plan, PlanError
from nightshift.store import StoreUnavailable, open_store
from nightshift.warehouse.extract import build_plan
from tests.builders import RUN, a_fix, a_plan, a_spec, write_input

pytestmark = pytest.mark.unit

TEXTS = [f"text {n:02}" for n in range(12)]
PATH = f"{RUN.prefix}/inputs/part-000.parquet"


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return open_store("memory:///" if request.param == "memory" else f"file://{tmp_path}/bucket")


@pytest.fixture
def plan(store: ObjectStore) -> Plan:
    """One file with a row group for each chunk."""
    return a_plan(12, files=write_input(store, RUN, TEXTS, per_file=12, per_group=4))


def reader_of(store: ObjectStore, plan: Plan) -> InputReader:
    return InputReader(store, RUN, plan, ("id", "text"))


def texts(reader: InputReader, chunk: int) -> list[str]:
    found: list[str] = reader.read(chunk).column("text").to_pylist()
    return found


def overwrite(store: ObjectStore, _: Plan) -> None:
    """With other texts, but the same layout and size."""
    size = obstore.head(store, PATH)["size"]
    write_input(store, RUN, [text.upper() for text in TEXTS], per_file=12, per_group=4)
    assert obstore.head(store, PATH)["size"] == size


def delete(store: ObjectStore, _: Plan) -> None:
    obstore.delete(store, PATH)


@pytest.mark.parametrize("change", [overwrite, delete])
@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_file_that_changes_is_noticed_at_whatever_range(
    store: ObjectStore, plan: Plan, before: int, change: Callable[[ObjectStore, Plan], None]
) -> None:
    reader = reader_of(store, plan)
    for chunk in range(before):
        assert texts(reader, chunk) == TEXTS[4 * chunk : 4 * chunk + 4]

    change(store, plan)
    with pytest.raises(InputChanged, match=r"part-000.parquet was overwritten or deleted after it was planned"):
        reader.read(before)


def rewritten(store: ObjectStore, plan: Plan, change: Callable[[bytearray], bytes]) -> Plan:
    """The plan of a file with other bytes: its version is right, its content is not."""
    body = bytearray(obstore.get(store, PATH).bytes())
    obstore.put(store, PATH, change(body))
    meta = obstore.head(store, PATH)
    return replace(plan, files=(replace(plan.files[0], size=meta["size"], etag=str(meta["e_tag"])),))


def no_parquet(_: bytearray) -> bytes:
    return b"<html>" * 50


def empty(_: bytearray) -> bytes:
    return b""


def cut(body: bytearray) -> bytes:
    return bytes(body[: len(body) // 2])


def broken_footer(body: bytearray) -> bytes:
    return bytes(body[:-60]) + b"\xff" * 40 + bytes(body[-20:])


def broken_pages(body: bytearray) -> bytes:
    return bytes(body[:4]) + b"\xff" * 100 + bytes(body[104:])


@pytest.mark.parametrize("change", [no_parquet, empty, cut, broken_footer, broken_pages])
def test_a_planned_file_that_is_not_parquet_cannot_be_read_for_good(
    store: ObjectStore, plan: Plan, change: Callable[[bytearray], bytes]
) -> None:
    broken = rewritten(store, plan, change)

    with pytest.raises(InputBroken, match=r"part-000.parquet is the file that was planned, but not readable Parquet: .+"):
        reader_of(store, broken).read(0)


def test_a_store_that_cannot_be_reached_is_another_matter(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, store: ObjectStore
) -> None:
    """A mock: neither a folder nor memory can be out of reach."""

    def away(*_: object, **__: object) -> None:
        raise obstore.exceptions.GenericError("connection refused")

    reader = reader_of(store, plan)
    reader.read(0)
    monkeypatch.setattr(obstore, "get", away)
    with pytest.raises(StoreUnavailable, match="connection refused"):
        reader.read(1)
    monkeypatch.undo()
    assert texts(reader, 1) == TEXTS[4:8]


def test_a_file_that_lacks_a_column_is_not_the_planned_one(store: ObjectStore, plan: Plan) -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": list(range(12))}), sink)

    with pytest.raises(InputChanged, match=r"lacks the columns \['text'\]"):
        reader_of(store, rewritten(store, plan, lambda _: sink.getvalue())).read(0)


EXPORTED = f"{RUN.prefix}/inputs/1-part-000000000000.parquet"


def planned(store: ObjectStore) -> Plan:
    return build_plan(store, RUN, a_spec(), ExportedSource({}, ()), fix=a_fix(a_spec()), attempt=1)


def test_an_export_that_is_not_parquet_is_no_plan(store: ObjectStore) -> None:
    obstore.put(store, EXPORTED, b"<html>" * 50)

    with pytest.raises(PlanError, match=r"1-part-000000000000.parquet is not readable Parquet"):
        planned(store)


def test_an_export_with_a_row_group_that_no_worker_has_room_for_is_no_plan(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the columns that are read, as they are in the file."""
    texts = [f"{number} " * 50 for number in range(1_000)]
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": range(1_000), "text": texts, "other": texts}), sink, use_dictionary=False)
    obstore.put(store, EXPORTED, sink.getvalue())
    group = pq.read_metadata(io.BytesIO(sink.getvalue())).row_group(0)
    read = sum(group.column(number).total_compressed_size for number in (0, 1))

    monkeypatch.setattr(parquet_rows, "GROUP_BYTES_MOST", read - 1)
    with pytest.raises(PlanError, match=rf"000000.parquet: row group 0 has {read:,} bytes, more than .* of text\. Leave"):
        planned(store)
    monkeypatch.setattr(parquet_rows, "GROUP_BYTES_MOST", read)
    assert planned(store).rows == 1_000


def test_the_version_whose_rows_are_counted_is_the_one_that_is_recorded(
    store: ObjectStore, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mock, for an overwrite at that very moment."""
    obstore.put(store, EXPORTED, obstore.get(store, PATH).bytes())
    head = obstore.head

    def and_then_overwrite(store: ObjectStore, path: str) -> obstore.ObjectMeta:
        found = head(store, path)
        obstore.put(store, path, obstore.get(store, path).bytes())
        return found

    monkeypatch.setattr(obstore, "head", and_then_overwrite)
    with pytest.raises(PlanError, match="was overwritten or deleted while it was read"):
        planned(store)
    monkeypatch.undo()
    assert planned(store).rows == 12


NOON = datetime(2026, 1, 1, 12, 0, 0, 1, tzinfo=UTC)
COLUMNS = {
    "ts": "TIMESTAMP",
    "dt": "DATETIME",
    "n": "NUMERIC",
    "f": "FLOAT64",
    "i": "INT64",
    "j": "JSON",
    "v": "ARRAY<FLOAT64>",
}
ROW = {
    "ts": NOON,
    "dt": NOON.replace(tzinfo=None),
    "n": Decimal("1.5"),
    "f": 0.5,
    "i": 1,
    "j": '{"a": 1}',
    "v": [0.5, 1.5],
}


def exported_table(mark: str | None) -> pa.Table:
    """One row for `COLUMNS`. mark: the time zone that the file shows for both kinds of timestamps."""
    schema = pa.schema(
        [
            ("ts", pa.timestamp("us", mark)),
            ("dt", pa.timestamp("us", mark)),
            ("n", pa.decimal128(38, 9)),
            ("f", pa.float32() if mark else pa.float64()),
            ("i", pa.int32() if mark else pa.int64()),
            ("j", pa.string()),
            pa.field("v", pa.list_(pa.field("element", pa.float64(), nullable=False)), nullable=False),
        ]
    )
    return pa.Table.from_pylist([dict(ROW, ts=NOON.replace(tzinfo=None))], schema)


@pytest.mark.parametrize("mark", [None, "UTC"])
@pytest.mark.parametrize("bare", [False, True])
def test_rows_have_the_types_of_the_query_however_the_file_was_written(
    store: ObjectStore, tmp_path: Path, mark: str | None, bare: bool
) -> None:
    """bare: lists are repeated fields, as BigQuery exports them, instead of the three levels that pyarrow writes."""
    file = tmp_path / "exported.parquet"
    pq.write_table(exported_table(mark), file, store_schema=False)
    if bare:
        repeated.rewrite(file)
    assert ("v" in [column.path for column in pq.ParquetFile(file).schema]) == bare
    obstore.put(store, PATH, file.read_bytes())
    meta = obstore.head(store, PATH)
    inputs = InputFile("inputs/part-000.parquet", 1, (1,), meta["size"], str(meta["e_tag"]))
    plan = replace(a_plan(1, files=(inputs,)), source=ExportedSource(COLUMNS, ()))

    table = InputReader(store, RUN, plan, tuple(COLUMNS)).read(0)

    types = {name: table.schema.field(name).type for name in COLUMNS if name != "v"}
    assert types == {name: DECLARED[COLUMNS[name]] for name in types}
    assert table.to_pylist() == [ROW]
