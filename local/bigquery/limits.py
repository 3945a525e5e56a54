"""BigQuery's limits. Sources: "Quotas and limits", and "Troubleshoot quota and limit errors" for the messages that it has.

A test can lower some of them for the tables of its own dataset: ``PUT /limits/DATASET`` with a JSON object of fields of
`TableLimits`. The counts live in this process: a restart begins at zero.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from fastapi import Request
from fastapi.responses import JSONResponse
from local_bigquery import errors
from local_bigquery.catalog import names, tables
from local_bigquery.errors import BigQueryError
from local_bigquery.jobs import query, runner
from local_bigquery.sql.translate import translate
from sqlglot import exp

from local.bigquery import partitions

URIS_PER_LOAD: Final = 10_000
QUERY_CHARACTERS: Final = 1 << 20
PARAMETERS: Final = 10_000
REQUEST_BYTES: Final = 10 << 20


@dataclass(frozen=True)
class TableLimits:
    """Limits for each table of a dataset.

    writes_per_day: load, copy and query jobs that write into it, failed ones included; DML does not count.
    partitions_per_job: into how many a load, a copy or the result of a query goes.
    dml_running, dml_queued: UPDATE, DELETE, MERGE and TRUNCATE outside of transactions.
    rows_sorted: of an EXPORT DATA with an ORDER BY that reads the table; BigQuery's limit is one of memory, and not a number.
    conflict_wait_s: the emulator's own: how long such a statement waits for a table that a transaction has changed.
    data_updates: whether the caller has ``bigquery.tables.updateData`` on them, which DML needs ("BigQuery roles and
        permissions"); the emulator has no other rights. That a dry run asks for it too is not documented (`local.smoke`).
    upserts: whether rows were written by UPSERT streams: then UPDATE, DELETE and MERGE are refused ("Change data capture").
    """

    writes_per_day: int = 1_500
    partitions_per_job: int = 4_000
    dml_running: int = 2
    dml_queued: int = 20
    rows_sorted: int | None = None
    conflict_wait_s: float = 60
    data_updates: bool = True
    upserts: bool = False


_lock = threading.Lock()
_lowered: dict[str, TableLimits] = {}
_writes: Counter[tuple[str, ...]] = Counter()


def install() -> None:
    """Call after `partitions.install` and `jobs.install`, whose corrections this one uses."""
    errors.STATUSES["quotaExceeded"] = (403, "RESOURCE_EXHAUSTED")
    errors.STATUSES["resourcesExceeded"] = (400, "RESOURCE_EXHAUSTED")
    write, submit, run = tables.write, runner.submit, query._run

    def run_what_can_be_sorted(cursor: Any, tree: Any, context: Any, *rest: Any) -> Any:
        _check_sorted(cursor, tree, context)
        _check_changes(tree, context)
        return run(cursor, tree, context, *rest)

    def write_few_partitions(
        cursor: Any, query: str, params: Any, reference: tuple[str, str, str], config: Any, *rest: Any, **options: Any
    ) -> Any:
        _check_partitions(cursor, query, params, reference, config)
        return write(cursor, query, params, reference, config, *rest, **options)

    def submit_within_limits(project_id: str, job_id: str, configuration: Any, upload: str | None = None) -> Any:
        _check_job(configuration)
        written = None if configuration.dryRun else _destination(configuration)
        if written is not None:
            _check_writes(written)
        job = submit(project_id, job_id, configuration, upload)
        if written is not None:
            with _lock:
                _writes[_today(written)] += 1
        return job

    tables.write = write_few_partitions
    runner.submit = submit_within_limits
    query._run = run_what_can_be_sorted


def of(table: Sequence[str]) -> TableLimits:
    """table: project, dataset and table."""
    with _lock:
        return _lowered.get(table[1], TableLimits()) if len(table) > 1 else TableLimits()


async def lower(dataset: str, request: Request) -> dict[str, Any]:
    """The handler of ``PUT /limits/DATASET``. Returns all limits of the dataset's tables."""
    limits = replace(TableLimits(), **await request.json())
    with _lock:
        _lowered[dataset] = limits
    return asdict(limits)


async def refuse_large_requests(request: Request, handle: Any) -> Any:
    """Middleware. An upload has no such limit."""
    if not request.url.path.startswith("/upload/") and int(request.headers.get("content-length", 0)) > REQUEST_BYTES:
        message = f"Request payload size exceeds the limit: {REQUEST_BYTES} bytes."
        return JSONResponse({"error": {"code": 413, "message": message, "status": "INVALID_ARGUMENT"}}, 413)
    return await handle(request)


def _check_job(configuration: Any) -> None:
    """Where BigQuery's words are not documented, the message is ours."""
    if configuration.load and len(configuration.load.sourceUris or []) > URIS_PER_LOAD:
        found = len(configuration.load.sourceUris)
        raise BigQueryError("invalid", f"Too many source URIs: the job has {found}, and the limit is {URIS_PER_LOAD}")
    if configuration.query and len(configuration.query.query or "") > QUERY_CHARACTERS:
        raise BigQueryError(
            "invalidQuery",
            f"The query is too large. The maximum standard SQL query length is {QUERY_CHARACTERS / 1024:.2f}K characters, "
            "including comments and white space characters.",
        )
    if configuration.query and len(configuration.query.queryParameters or []) > PARAMETERS:
        found = len(configuration.query.queryParameters)
        raise BigQueryError("invalidQuery", f"Too many query parameters: the query has {found}, and the limit is {PARAMETERS}")


def _destination(configuration: Any) -> tuple[str, str, str] | None:
    part = configuration.load or configuration.copy_ or configuration.query
    table = part and part.destinationTable
    return tables.reference(table) if table else None


def _today(table: tuple[str, str, str]) -> tuple[str, ...]:
    return datetime.now(UTC).date().isoformat(), *table


def _check_writes(table: tuple[str, str, str]) -> None:
    limit = of(table).writes_per_day
    with _lock:
        written = _writes[_today(table)]
    if written >= limit:
        raise BigQueryError(
            "quotaExceeded",
            "Quota exceeded: Your table exceeded quota for imports or query appends per table. For more information, see "
            "https://cloud.google.com/bigquery/docs/troubleshoot-quotas",
        )


def _check_sorted(cursor: Any, tree: Any, context: Any) -> None:
    """ "Troubleshoot queries": resources exceeded. Whoever has lowered no limit may sort as much as this machine can."""
    if not isinstance(tree, exp.Export) or tree.this.args.get("order") is None:
        return
    position = context.position
    sql, bound = translate(tree.this, context)
    context.position = position
    limits = [of(table).rows_sorted for table in context.referenced]
    most = min((limit for limit in limits if limit is not None), default=None)
    if most is not None and cursor.execute(f"SELECT count(*) FROM ({sql})", bound).fetchone()[0] > most:
        raise BigQueryError(
            "resourcesExceeded",
            "Resources exceeded during query execution: The query could not be executed in the allotted memory. Peak usage: "
            "130% of limit. Top memory consumer(s): ORDER BY operations: 99% other/unattributed: 1%",
        )


def _check_changes(tree: Any, context: Any) -> None:
    """Of DML, in a dry run too."""
    if not isinstance(tree, exp.Delete | exp.Insert | exp.Merge | exp.Update):
        return
    target = tree.this.this if isinstance(tree.this, exp.Schema) else tree.this
    if not isinstance(target, exp.Table) or (not target.db and target.name.casefold() in context.temporary):
        return
    table = names.reference(target, context.project_id, context.dataset_id)
    limits, named = of(table), f"{table[0]}:{table[1]}.{table[2]}"
    if not limits.data_updates:
        denied = f"Permission bigquery.tables.updateData denied on table {named} (or it may not exist)."
        raise BigQueryError("accessDenied", f"Access Denied: Table {named}: {denied}")
    if limits.upserts and not isinstance(tree, exp.Insert):
        raise BigQueryError("invalidQuery", "DELETE/UPDATE/MERGE DMLs are not supported over tables that had UPSERT streams.")


def _check_partitions(cursor: Any, query: str, params: Any, reference: tuple[str, str, str], config: Any) -> None:
    if isinstance(reference[2], partitions.PartitionedTable):
        return
    layout = tables.load(*reference) if tables.exists(*reference) else config
    key = partitions.key_of(layout)
    if key is None:
        return
    found = cursor.execute(f"SELECT count(DISTINCT {key}) FROM ({query})", params).fetchone()[0]
    limit = of(reference).partitions_per_job
    if found > limit:
        raise BigQueryError(
            "invalidQuery",
            f"Too many partitions produced by query, allowed {limit}, query produces at least {found} partitions",
        )
