"""Keys of a query that stand in several rows: one count over the distinct keys, and what it scans.

A key is compared as its JSON, with all columns and NULLs: BigQuery groups by no struct, and NULL is equal to NULL there. NaN is
one key, and so are 0.0 and -0.0, which no join can tell apart. Keys that differ here also differ for a redo
(`nightshift.run.redo.redo_rows.key_bytes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nightshift.warehouse import query

if TYPE_CHECKING:
    from nightshift.spec import JobSpec
    from nightshift.warehouse.statements import Statements

NAMED: Final = 3
"""How many keys are named."""


@dataclass(frozen=True)
class Keys:
    """The keys of queries."""

    statements: Statements

    def bytes_scanned(self, spec: JobSpec, partition: str) -> int | None:
        """By `repeated`, from a dry run, which is free; None if BigQuery does not say."""
        job = self.statements.submit(statement(spec), query.parameters(spec, partition), dry_run=True)
        return None if job.total_bytes_processed is None else int(job.total_bytes_processed)

    def repeated(self, spec: JobSpec, partition: str) -> tuple[int, int, Sequence[str]]:
        """How many keys stand in several rows, how many rows these are, and the most frequent keys as JSON."""
        sql, parameters = statement(spec), query.parameters(spec, partition)
        (row,) = self.statements.rows(f"The keys of job {spec.job}", sql, parameters)
        return int(row["repeated"]), int(row["row_count"] or 0), tuple(row["named"] or ())


def statement(spec: JobSpec) -> str:
    columns = ", ".join(f"`{name}` AS `{name}`" for name in spec.source.key)
    return (
        "SELECT COUNT(*) AS repeated, SUM(times) AS row_count, "
        f"ARRAY_AGG(nightshift_key ORDER BY times DESC, nightshift_key LIMIT {NAMED}) AS named\n"
        "FROM (SELECT nightshift_key, COUNT(*) AS times\n"
        f"FROM (SELECT TO_JSON_STRING(STRUCT({columns})) AS nightshift_key FROM (\n{query.bare_query(spec.source.query)}\n))\n"
        "GROUP BY nightshift_key HAVING COUNT(*) > 1)"
    )
