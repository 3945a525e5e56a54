"""A query with parameters is computed once, and by a dry run not at all.

DuckDB computes such a query whenever it is asked for its columns. local-bigquery asks twice before it stores a result, and once
in a dry run, which then takes as long as the query and fails where only a row would make it fail.
"""

from __future__ import annotations

import contextlib
from typing import Any

import duckdb
from local_bigquery.catalog import tables
from local_bigquery.jobs import query
from sqlglot import exp

RESULT = "temp.main._result"


def install() -> None:
    """Call after `partitions.install` and `transactions.install`, whose corrections these use."""
    run, write = query._run, tables.write

    def run_none(cursor: Any, tree: Any, context: Any, destination: Any, config: Any, dry_run: bool, isolated: bool) -> Any:
        if dry_run and isinstance(tree, exp.Query):
            tree = tree.limit(0)
        return run(cursor, tree, context, destination, config, dry_run, isolated)

    def write_once(cursor: Any, query: str, params: dict[str, Any] | None, *rest: Any, **options: Any) -> Any:
        if not params:
            return write(cursor, query, params, *rest, **options)
        cursor.execute(f"CREATE OR REPLACE TEMP TABLE {RESULT} AS {query}", params)
        try:
            return write(cursor, f"SELECT * FROM {RESULT}", None, *rest, **options)
        finally:
            # A transaction that has failed takes no more statements; the table then goes with its cursor.
            with contextlib.suppress(duckdb.Error):
                cursor.execute(f"DROP TABLE {RESULT}")

    query._run = run_none
    tables.write = write_once
