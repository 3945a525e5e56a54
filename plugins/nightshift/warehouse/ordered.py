"""The export of a query's rows in an order, and what is counted to decide whether it is worth it.

One ORDER BY over all rows would not hold: BigQuery sorts the end of it in one worker. So the rows go into buckets first, by a
hash of the columns that decide it, into the partitions of a temporary table; each bucket is sorted and exported by itself, and
the names of its files sort by its number. Few rows are one bucket, and need no such table. BigQuery's pages: "Export
statements" (an ORDER BY holds across files), "Multi-statement queries" (temporary tables, one child job a statement), "Create
partitioned tables" (integer ranges).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from nightshift.run.order import Order
from nightshift.warehouse.query import bare_query, export_statement

if TYPE_CHECKING:
    from nightshift.spec import JobSpec

BUCKET: Final = "nightshift_bucket"
"""The column of the temporary table that says in which bucket a row is, unless the query has one of this name."""
TABLE: Final = "nightshift_buckets"
COUNT: Final = "nightshift_rows"
"""The variable of the script that counts the rows in the buckets. Its result: the files must hold as many."""
_SORTED_AS_JSON: Final = ("ARRAY", "STRUCT", "JSON")
"""Types that BigQuery does not sort by."""


def ordered_export(
    spec: JobSpec, bucket: str, pattern: Callable[[int | None], str], order: Order, types: Mapping[str, str]
) -> str:
    """The statement, or the script, that exports the query in this order. Its first line says which (`Order.remark`).

    bucket: of Cloud Storage. pattern: the files of one of the order's buckets, or of all rows. types: GoogleSQL types of the
    query's columns. Within the order, rows whose prompts are about as long are neighbours.
    """
    keys = [_sortable(name, types[name]) for name in order.columns]
    sort = f"\nORDER BY {', '.join([*keys, *_lengths(spec, order.columns, types)])}"
    if order.buckets == 1:
        rows = f"SELECT * FROM (\n{bare_query(spec.source.query)}\n)"
        return order.remark + export_statement(bucket, pattern(None), rows + sort)
    own = BUCKET
    while own.lower() in {name.lower() for name in types}:
        own += "_"
    hashed = f"ABS(MOD({_fingerprint(order.columns[: order.spread])}, {order.buckets}))"
    create = (
        f"CREATE TEMP TABLE {TABLE} PARTITION BY RANGE_BUCKET({own}, GENERATE_ARRAY(0, {order.buckets}, 1)) AS\n"
        f"SELECT *, {hashed} AS {own} FROM (\n{bare_query(spec.source.query)}\n)"
    )
    exports = [
        export_statement(bucket, pattern(number), f"SELECT * EXCEPT ({own}) FROM {TABLE} WHERE {own} = {number}{sort}")
        for number in range(order.buckets)
    ]
    # A temporary table would be paid for until BigQuery deletes it, a day later.
    count = [f"DECLARE {COUNT} INT64", create, f"SET {COUNT} = (SELECT COUNT(*) FROM {TABLE})"]
    return order.remark + ";\n".join([*count, *exports, f"DROP TABLE {TABLE}", f"SELECT {COUNT} AS exported_rows"]) + ";"


def prefix_counts(spec: JobSpec, columns: Sequence[str]) -> str:
    """How many rows the query has, and of each leading part of these columns what `nightshift.run.order.Counts` says, in one
    row: the rows, then for each part how many values, and how many rows of the most frequent one."""
    parts = [columns[:length] for length in range(1, len(columns) + 1)]
    counted = [
        f"APPROX_COUNT_DISTINCT({_fingerprint(part)}) AS distinct_{length}, "
        f"APPROX_TOP_COUNT({_fingerprint(part)}, 1)[SAFE_OFFSET(0)].count AS largest_{length}"
        for length, part in enumerate(parts, 1)
    ]
    return f"SELECT {', '.join(['COUNT(*) AS total', *counted])} FROM (\n{bare_query(spec.source.query)}\n)"


def _fingerprint(columns: Iterable[str]) -> str:
    return f"FARM_FINGERPRINT(TO_JSON_STRING(STRUCT({', '.join(f'`{name}`' for name in columns)})))"


def _sortable(name: str, type_: str) -> str:
    return f"TO_JSON_STRING(`{name}`)" if type_.startswith(_SORTED_AS_JSON) else f"`{name}`"


def _lengths(spec: JobSpec, besides: Sequence[str], types: Mapping[str, str]) -> list[str]:
    """How long the other columns of a prompt are, as one expression; none if there are no others."""
    from nightshift.tasks import base

    read = base.union(*(names for field, names in base.read_columns(spec.request) if field != "image"))
    texts = [
        f"IFNULL(LENGTH({f'`{name}`' if types[name] in ('STRING', 'BYTES') else f'TO_JSON_STRING(`{name}`)'}), 0)"
        for name in read
        if name not in besides
    ]
    return [" + ".join(texts)] if texts else []
