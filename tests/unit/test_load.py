"""`make load`: which types a file's columns get, and what is said of a file that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from local.load import Wrong, read

pytestmark = pytest.mark.unit


def csv(folder: Path, text: str) -> Path:
    path = folder / "file.csv"
    path.write_text(text)
    return path


def test_types_are_those_of_the_values(tmp_path: Path) -> None:
    table = read(
        csv(
            tmp_path,
            "id,day,price,open,at,text,empty,zip\n"
            '1,2026-11-20,1.5,true,2026-11-20T08:00:00Z,"a\nb",,01234\n'
            '2,2026-11-21,2,false,2026-11-20T09:00:00.25Z,"x, ""y""",,99999\n',
        )
    )

    kinds = {field.name: str(field.type) for field in table.schema}
    assert kinds == {
        "id": "int64",
        "day": "date32[day]",
        "price": "double",
        "open": "bool",
        "at": "timestamp[us, tz=UTC]",
        "text": "string",
        "empty": "string",
        "zip": "string",
    }
    assert table["zip"].to_pylist() == ["01234", "99999"]
    assert table["text"].to_pylist() == ["a\nb", 'x, "y"']


def test_parquet_is_taken_as_it_is_whatever_its_name(tmp_path: Path) -> None:
    table = pa.table({"id": pa.array([1], pa.int32()), "tags": [["a"]]})
    pq.write_table(table, tmp_path / "file.csv")

    assert read(tmp_path / "file.csv").equals(table)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cannot be read as CSV or Parquet: Empty CSV file"),
        ("a,b\n", "has no rows"),
        ("a,b\n1,2,3\n", "Expected 2 columns, got 3: 1,2,3"),
        ("a b,c\n1,2\n", "has the column 'a b'"),
        ("1a,c\n1,2\n", "has the column '1a'"),
        ("id,ID\n1,2\n", "more than once"),
        ("a\n\xff\n", "has text that is not UTF-8"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "file.csv"
    path.write_bytes(text.encode("latin-1"))

    with pytest.raises(Wrong) as caught:
        read(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_or_not_named(tmp_path: Path) -> None:
    with pytest.raises(Wrong, match="There is no file"):
        read(tmp_path / "gone.csv")
    with pytest.raises(Wrong, match="FILE is not set"):
        read(Path())
