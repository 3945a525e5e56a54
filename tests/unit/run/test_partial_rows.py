"""What a driver takes over of a partial: rows of its own chunk, as the seal will accept them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from nightshift.driver.codec import ParquetCodec
from nightshift.run import chunks
from nightshift.run.chunks import NotAChunk, Saved
from nightshift.spec import columns
from tests.builders import PLAN_UID, RUN
from tests.unit.driver.test_pages import rows_of, written

pytestmark = pytest.mark.unit

FIRST = 100
"""The ordinal of the chunk's first row."""
ROWS = 6
NAN = float("nan")
KEYS = pa.table({"id": [f"id-{n}" for n in range(ROWS)]})


def taken(keys: pa.Table = KEYS, **changes: Any) -> Saved:
    """Rows 1 to 3 of the chunk, as a partial has them."""
    codec = ParquetCodec(
        run_id=RUN.run_id,
        plan_uid=PLAN_UID,
        attempt="b",
        node="n",
        model={},
        engine_version="0",
        prediction_type=chunks.VECTORS,
        chunk_rows=ROWS,
    )
    own = {columns.ORDINAL: pa.array(range(FIRST + 1, FIRST + 4), pa.int64()), "id": KEYS["id"].slice(1, 3)}
    return codec.decode(written(rows_of(3, **{**own, **changes})), 0, FIRST, keys)


def test_rows_of_the_chunk_are_taken() -> None:
    assert [result.ordinal for result in taken().results] == [FIRST + 1, FIRST + 2, FIRST + 3]


def test_a_key_that_is_not_a_number_is_the_same_key() -> None:
    keys = pa.table({"id": [0.5, NAN, 1.5, NAN, 2.5, 3.5]})

    assert len(taken(keys, id=keys["id"].slice(1, 3)).results) == 3


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"id": pa.array(["id-1", "id-2", "id-4"])}, r"other keys than the rows that it answers \(id\)"),
        ({"id": pa.array(["id-1", "id-3", "id-2"])}, "other keys"),
        ({"id": pa.array(["id-1", None, "id-3"])}, "other keys"),
        ({"id": pa.array([1, 2, 3])}, "other keys"),
        ({columns.ORDINAL: pa.array([FIRST + 1, FIRST + 2, FIRST + ROWS], pa.int64())}, "not between 100 and 105"),
        ({columns.ORDINAL: pa.array([FIRST - 1, FIRST + 2, FIRST + 3], pa.int64())}, "not between"),
        ({columns.ORDINAL: pa.array([FIRST + 1, None, FIRST + 3], pa.int64())}, "not between"),
        ({columns.ORDINAL: pa.array(["a", "b", "c"])}, "not a chunk"),
        ({columns.PREDICTION: pa.nulls(3, chunks.VECTORS)}, "neither a prediction nor a dead letter"),
        ({columns.DEAD_REASON: pa.array(["rejected"] * 3)}, "or both"),
        ({columns.PREDICTION: pa.array(["a", "b", "c"])}, "its predictions are of type string, and the job's of type list"),
    ],
)
def test_a_partial_with_another_row_is_not_one_of_the_chunk(changes: dict[str, pa.Array], why: str) -> None:
    with pytest.raises(NotAChunk, match=why):
        taken(**changes)


def test_a_partial_without_the_keys_is_not_one_of_the_chunk() -> None:
    with pytest.raises(NotAChunk, match=r"lacks the columns \['day'\]"):
        taken(KEYS.append_column("day", pa.array(["x"] * ROWS)))
