"""Some rows of a job's query, for a preview, and what it costs to read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nightshift.warehouse import query
from nightshift.warehouse.errors import WarehouseError, translated
from nightshift.warehouse.statements import Statements

if TYPE_CHECKING:
    import pyarrow as pa
    from google.cloud.bigquery import Client, QueryJob

    from nightshift.settings import Settings
    from nightshift.spec import JobSpec


class Samples:
    """BigQuery for one deployment: `nightshift.trial.world.Source`. Raises as `nightshift.warehouse.Warehouse`."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._statements = Statements(client, settings)

    def query_bytes(self, spec: JobSpec, partition: str) -> int | None:
        """Bytes that the query reads, by a dry run, which is free; None if BigQuery does not say.

        Raises WarehouseError for SQL that BigQuery rejects and for a key or template column that the query lacks.
        """
        job = dry_run(self._statements, spec, partition)
        query.check_columns(spec, job.schema or ())
        return int(job.total_bytes_processed) if job.total_bytes_processed else None

    def some_rows(self, spec: JobSpec, partition: str, rows: int) -> tuple[int, pa.Table]:
        """How many rows the query has, and some of them, always the same ones. Reads, and costs, as much as the query."""
        import pyarrow as pa

        sql, parameters = query.some_rows_statement(spec, rows), query.parameters(spec, partition)
        with query.hinted(spec):
            found = self._statements.table(f"Some rows of job {spec.job}", sql, parameters)
        sampled = found.column("sampled").combine_chunks().flatten()
        return int(found.column("total")[0].as_py()), pa.Table.from_batches([pa.RecordBatch.from_struct_array(sampled)])


def dry_run(statements: Statements, spec: JobSpec, partition: str) -> QueryJob:
    """The query's job, without reading anything. Raises WarehouseError for what is not one SELECT that BigQuery accepts."""
    with query.hinted(spec), translated(f"The query of job {spec.job} (source.query)"):
        job = statements.submit(query.bare_query(spec.source.query), query.parameters(spec, partition), dry_run=True)
    if job.statement_type not in (None, "SELECT"):
        raise WarehouseError(f"source.query is a {job.statement_type} statement. Write one SELECT.")
    return job
