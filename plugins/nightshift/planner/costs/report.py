"""What jobs cost over time: rows of the audit table added up by job. Pure.

A row's cost is of the whole run so far. So of each run only its latest row counts, however often it failed, was repaired or
was published again. A DAG run that failed before it had a run has a row without cost. The row of a redo has all rows of its
partition, which count once: with the run that it completes. Two deployments that share the table may have a run of one name,
each in its own bucket: these are two runs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from nightshift.fields.text import n
from nightshift.planner.costs.prices import no_price

MILLION: Final = 1_000_000
FAILED: Final = "failed"


@dataclass
class Sums:
    """runs: that were published. failed: those that were not, and DAG runs that failed before they had one.

    rows, tokens: that published runs deliver. costs, estimates: millionths by currency. unpriced: runs of unknown cost;
    priced_rows, priced_tokens: of published runs whose cost is known.
    """

    runs: int = 0
    failed: int = 0
    rows: int = 0
    tokens: int = 0
    machine_seconds: float = 0.0
    bigquery_bytes: int = 0
    costs: dict[str, int] = field(default_factory=dict)
    estimates: dict[str, int] = field(default_factory=dict)
    unpriced: int = 0
    priced_rows: int = 0
    priced_tokens: int = 0

    def add(self, row: Mapping[str, Any], *, counted: bool = False) -> None:
        """counted: its rows are, with the run that it completes."""
        rows, tokens = (
            0 if counted else row.get("input_rows") or 0,
            (row.get("prompt_tokens") or 0) + (row.get("output_tokens") or 0),
        )
        published = not is_failure(row)
        self.runs, self.failed = self.runs + published, self.failed + (not published)
        self.machine_seconds += _finite(row.get("machine_seconds")) or 0.0
        self.bigquery_bytes += row.get("bigquery_bytes") or 0
        cost, currency = _finite(row.get("cost")), row.get("currency") or ""
        if published:
            self.rows, self.tokens = self.rows + rows, self.tokens + tokens
        if cost is None:
            self.unpriced += bool(row.get("run_id"))
            return
        self.costs[currency] = self.costs.get(currency, 0) + round(cost * MILLION)
        if (estimated := _finite(row.get("cost_estimated"))) is not None:
            self.estimates[currency] = self.estimates.get(currency, 0) + round(estimated * MILLION)
        if published:
            self.priced_rows, self.priced_tokens = self.priced_rows + rows, self.priced_tokens + tokens

    def each(self, count: int, size: int) -> float | None:
        """What this many cost, if all costs are in one currency; those of failed runs are in it."""
        return sum(self.costs.values()) * size / count / MILLION if count and len(self.costs) == 1 else None

    def to_json(self) -> dict[str, Any]:
        return {
            "runs": self.runs,
            "failed": self.failed,
            "rows": self.rows,
            "tokens": self.tokens,
            "machine_seconds": round(self.machine_seconds, 3),
            "bigquery_bytes": self.bigquery_bytes,
            "cost": {currency: each / MILLION for currency, each in sorted(self.costs.items())},
            "estimated": {currency: each / MILLION for currency, each in sorted(self.estimates.items())},
            "runs_without_cost": self.unpriced,
            "per_million_tokens": self.each(self.priced_tokens, MILLION),
            "per_thousand_rows": self.each(self.priced_rows, 1000),
        }


def is_failure(row: Mapping[str, Any]) -> bool:
    return row.get("state") == FAILED


def latest(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of each run, and of each DAG run without one, what counts: a publication rather than a failure, then the last.

    A DAG run that failed before it had a run is left out if it was repaired and then had one, or failed with one.
    """
    rows = _with_buckets(rows)
    repaired = {(*_home(row), row.get("by_dag_run_id")) for row in rows if row.get("run_id")}
    found: dict[tuple[str, str, str], Mapping[str, Any]] = {}
    for row in sorted(rows, key=lambda row: (not is_failure(row), row.get("published_at") or row["failed_at"])):
        if not row.get("run_id") and (*_home(row), row.get("by_dag_run_id")) in repaired:
            continue
        found[*_home(row), _name(row)] = row
    return list(found.values())


def by_job(rows: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Sums], Sums]:
    """The sums of each job, in order of their names, and of all."""
    jobs: dict[str, Sums] = {}
    total = Sums()
    found = latest(rows)
    delivered = {(*_home(row), row.get("run_id")) for row in found if not is_failure(row)}
    for row in sorted(found, key=lambda row: str(row["job"])):
        counted = any((*_home(row), run) in delivered for run in str(row.get("completes") or "").split(", "))
        jobs.setdefault(row["job"], Sums()).add(row, counted=counted)
        total.add(row, counted=counted)
    return jobs, total


def lines(jobs: Mapping[str, Sums], total: Sums) -> Iterator[str]:
    """A table for a terminal."""
    head = ("job", "runs", "failed", "machine h", "cost", "estimated", "per million tokens", "per thousand rows")
    table: list[Sequence[str]] = [head, *(_cells(job, sums) for job, sums in jobs.items()), _cells("total", total)]
    wide = [max(len(row[column]) for row in table) for column in range(len(head))]
    for row in table:
        yield "  ".join([row[0].ljust(wide[0]), *(cell.rjust(width) for cell, width in zip(row[1:], wide[1:], strict=True))])
    if total.unpriced:
        yield f"Of {n(total.unpriced, 'run')} the cost is unknown: {no_price()}."


def _cells(name: str, sums: Sums) -> tuple[str, ...]:
    each = (sums.each(sums.priced_tokens, MILLION), sums.each(sums.priced_rows, 1000))
    return (
        name,
        f"{sums.runs:,}",
        f"{sums.failed:,}",
        f"{sums.machine_seconds / 3600:,.2f}",
        *("unknown" if sums.unpriced else _money(each) for each in (sums.costs, sums.estimates)),
        *("-" if found is None else f"{found:,.4f}" for found in each),
    )


def _money(sums: Mapping[str, int]) -> str:
    return " + ".join(f"{each / MILLION:,.2f} {currency}" for currency, each in sorted(sums.items())) or "-"


def _finite(value: float | None) -> float | None:
    """None for what BigQuery can hold and is not a price: NaN and infinities."""
    return value if value is not None and math.isfinite(value) else None


def _home(row: Mapping[str, Any]) -> tuple[str, str]:
    """The bucket and the job of a row; '' for an unknown bucket."""
    return row.get("bucket") or "", row["job"]


def _name(row: Mapping[str, Any]) -> str:
    return row.get("run_id") or f"DAG run {row.get('by_dag_run_id')}"


def _with_buckets(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Rows of an earlier release name no bucket: theirs is that of rows of the same run, else of the same job, that name one;
    the first by name of several."""
    rows = list(rows)
    of_run: dict[tuple[str, str], set[str]] = defaultdict(set)
    of_job: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        if bucket := row.get("bucket"):
            of_run[row["job"], _name(row)].add(bucket)
            of_job[row["job"]].add(bucket)

    def bucket_of(row: Mapping[str, Any]) -> str | None:
        known = of_run[row["job"], _name(row)] or of_job[row["job"]]
        return row.get("bucket") or (min(known) if known else None)

    return [{**row, "bucket": bucket_of(row)} for row in rows]
