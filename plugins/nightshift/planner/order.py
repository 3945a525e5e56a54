"""Whether the rows of a run are sorted before they are computed, and by which columns. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from nightshift.run.order import Counts, Order

if TYPE_CHECKING:
    from nightshift.planner.speed import Known
    from nightshift.spec import JobSpec

BUCKET_ROWS: Final = 2_000_000
"""Rows that are sorted together. The end of a sort is one worker's."""
BUCKETS_MAX: Final = 1_000
"""Each is a statement of the export's script, which has a megabyte."""


def candidates(spec: JobSpec, types: Mapping[str, str]) -> tuple[str, ...]:
    """The columns by which it may pay to order the rows; of their leading parts the values are counted.

    types: GoogleSQL types of the query's columns.
    """
    asked = spec.source.order
    return asked if isinstance(asked, tuple) else ()


def order_of(spec: JobSpec, rows: int, known: Known) -> Order | None:
    """What becomes of the rows; None if there is nothing to say."""
    asked = spec.source.order
    if not rows or not isinstance(asked, tuple):
        return None
    return _sorted(asked, rows, known.counts, f"ordered by {', '.join(asked)} (source.order)")


def _sorted(columns: tuple[str, ...], rows: int, counts: Counts | None, why: str) -> Order:
    buckets = min(BUCKETS_MAX, math.ceil(rows / BUCKET_ROWS))
    return Order(columns, buckets, _spread(columns, counts), why)


def _spread(columns: tuple[str, ...], counts: Counts | None) -> int:
    """The fewest leading columns of which no value fills a bucket: rows that share fewer stay together, too."""
    largest = counts.largest if counts else ()
    return next((length for length, most in enumerate(largest, 1) if most <= BUCKET_ROWS), len(columns))
