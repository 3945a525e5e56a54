"""Rows of a table as the task kinds see them."""

import datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from nightshift.driver.feeder import BATCH_ROWS, names_of, rows_of
from nightshift.tasks.base import BadInput

pytestmark = pytest.mark.unit


def test_rows_come_in_order_and_only_with_their_columns() -> None:
    table = pa.table({"id": range(2 * BATCH_ROWS + 1), "text": [str(n) for n in range(2 * BATCH_ROWS + 1)]})

    rows = list(rows_of(table, ("text",)))

    assert rows == [{"text": str(n)} for n in range(2 * BATCH_ROWS + 1)]


def test_bytes_that_are_no_text_concern_their_own_row_alone() -> None:
    text = pa.Array.from_buffers(pa.string(), 3, pa.array([b"good", b"\xff\xfe", b"\xc3\xa9"], pa.binary()).buffers())

    first, broken, last = rows_of(pa.table({"text": text, "n": [1, 2, 3]}), ("text", "n"))

    assert (first["text"], last["text"], dict(last)) == ("good", "é", {"text": "é", "n": 3})
    assert broken["n"] == 2
    with pytest.raises(BadInput, match="the column text has a value that cannot be read: 'utf-8' codec"):
        broken["text"]


def test_a_date_beyond_the_calendar_concerns_its_own_row_alone() -> None:
    days = pa.array([0, 2_000_000_000], pa.int32()).cast(pa.date32())

    good, broken = rows_of(pa.table({"day": days}), ("day",))

    assert good["day"] == datetime.date(1970, 1, 1)
    with pytest.raises(BadInput, match="day"):
        broken["day"]


def test_a_row_is_named_by_its_key_wherever_it_stands() -> None:
    """As seeds are made from the names, each of these is for ever."""
    values = [("a", 1, b"\xff", Decimal("1.50"), datetime.date(2026, 11, 22), None), ("b", 2, None, None, None, 0.5)]
    table = pa.table(dict(zip("nvbdtf", map(list, zip(*values, strict=True)), strict=True)))
    names = list(names_of(table, range(7, 9)))

    assert names == ['["a", 1, "ff", "1.50", "2026-11-22", null]', '["b", 2, null, null, null, 0.5]']
    assert list(names_of(table.take([1, 0]), range(2))) == names[::-1]


def test_a_key_that_cannot_be_held_is_named_by_its_ordinal_and_its_neighbours_by_their_keys() -> None:
    days = pa.array([0, 2_000_000_000, 1], pa.int32()).cast(pa.date32())

    assert list(names_of(pa.table({"day": days}), range(4, 7))) == ['["1970-01-01"]', 5, '["1970-01-02"]']
