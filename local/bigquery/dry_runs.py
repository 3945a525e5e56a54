"""A dry run reads no rows. To learn the columns of a query with parameters, local-bigquery computes it: that takes as long as
the query itself, and fails where only a row would make it fail.
"""

from __future__ import annotations

from typing import Any

from local_bigquery.jobs import query
from sqlglot import exp


def install() -> None:
    """Call after `transactions.install`, whose correction this one uses."""
    run = query._run

    def run_none(
        cursor: Any, tree: exp.Expression, context: Any, destination: Any, config: Any, dry_run: bool, *rest: Any
    ) -> Any:
        if dry_run and isinstance(tree, exp.Query):
            tree = tree.limit(0)
        return run(cursor, tree, context, destination, config, dry_run, *rest)

    query._run = run_none
