"""The transaction that makes a partition show a run: pure SQL text and its parameters.

The script asserts everything that the manifest says about the staged rows before it changes anything, and again about the
partition before it commits. A failed assertion ends the script; BigQuery then rolls the transaction back, and the
partition stays as it was.

BigQuery cancels one of two transactions that update or delete rows of one table at the same time. The destination's rows are
always deleted first, even if there are none, so that two runs that publish one partition at once cannot both add their
rows. Days of a backfill may collide too, and then another try of the cancelled job finishes the work. The dead letter table
is shared by all jobs of a night, so the script deletes there only if there is something to delete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from nightshift.warehouse import schema
from nightshift.warehouse.schema import ORDINAL_COLUMN, RUN_ID_COLUMN, quoted

if TYPE_CHECKING:
    from google.cloud.bigquery import ScalarQueryParameter

    from nightshift.run.names import RunRef
    from nightshift.settings import Settings
    from nightshift.spec import JobSpec

URIS_PER_LOAD: Final = 10_000
"""BigQuery's limit on the source URIs of one load job."""


def staging_tables(run: RunRef, manifest: Mapping[str, Any], settings: Settings) -> list[tuple[str, list[str]]]:
    """The staging tables of a run (``project.dataset.table``), each with the URIs of its chunks.

    One table for each load job, so that every job truncates the table that it loads and a repeat changes nothing.
    There is always at least one, so a run without rows is published like any other.
    """
    uris = [f"gs://{settings.bucket}/{chunk['path']}" for chunk in manifest["chunks"]]
    stem = f"staging_{run.run_id.replace('-', '_')}"
    starts = range(0, max(len(uris), 1), URIS_PER_LOAD)
    return [
        (schema.own_table(settings, stem if number == 0 else f"{stem}_{number}"), uris[start : start + URIS_PER_LOAD])
        for number, start in enumerate(starts)
    ]


def publish_script(spec: JobSpec, columns: Mapping[str, str], staging: Sequence[str], settings: Settings) -> str:
    """The whole script. Parameters: see `publish_parameters`. columns: the query's columns and types."""
    destination = quoted(schema.destination_table(spec, settings))
    dead_letters = quoted(schema.own_table(settings, "dead_letters"))
    partition = quoted(spec.destination.partition_column)
    keys = ", ".join(quoted(name) for name in spec.source.key)
    key_json = ", ".join(f"{quoted(name)} AS {quoted(name)}" for name in spec.source.key)
    staged = "(" + " UNION ALL ".join(f"SELECT * FROM {quoted(table)}" for table in staging) + ")"
    return f"""\
{_create_tables(spec, columns, settings)}
BEGIN TRANSACTION;
ASSERT (SELECT COUNT(*) FROM {staged}) = @rows
  AS 'The number of staged rows differs from the manifest';
ASSERT (SELECT COUNT(DISTINCT ordinal) FROM {staged} WHERE ordinal >= 0 AND ordinal < @rows) = @rows
  AS 'The staged rows do not hold every ordinal once';
ASSERT (SELECT COUNTIF(dead_reason IS NULL) FROM {staged}) = @predictions
  AS 'The number of staged predictions differs from the manifest';
DELETE FROM {destination} WHERE {partition} = @partition;
INSERT INTO {destination} ({keys}, {quoted(spec.destination.column)}, {partition}, {RUN_ID_COLUMN}, {ORDINAL_COLUMN})
SELECT {keys}, prediction, @partition, @run_id, ordinal
FROM {staged}
WHERE dead_reason IS NULL
ORDER BY ordinal;
IF EXISTS (SELECT 1 FROM {dead_letters} WHERE job = @job AND partition_date = @partition) THEN
  DELETE FROM {dead_letters} WHERE job = @job AND partition_date = @partition;
END IF;
IF @rows > @predictions THEN
  INSERT INTO {dead_letters} (job, partition_date, run_id, ordinal, key, reason, message, attempts)
  SELECT @job, @partition, @run_id, ordinal, TO_JSON_STRING(STRUCT({key_json})), dead_reason, dead_message, attempts
  FROM {staged}
  WHERE dead_reason IS NOT NULL
  ORDER BY ordinal;
END IF;
ASSERT (SELECT COUNT(*) FROM {destination} WHERE {partition} = @partition) = @predictions
  AS 'The partition would not hold every prediction of the run once';
COMMIT TRANSACTION;
"""


def _create_tables(spec: JobSpec, columns: Mapping[str, str], settings: Settings) -> str:
    destination = schema.create_table(
        schema.destination_table(spec, settings),
        schema.destination_fields(spec, columns),
        spec.destination.partition_column,
    )
    dead_letters = schema.create_table(
        schema.own_table(settings, "dead_letters"), schema.dead_letter_fields(), "partition_date", cluster_by="job"
    )
    return f"{destination}\n{dead_letters}"


def count_statement(spec: JobSpec, settings: Settings) -> str:
    """Counts what destination and dead letter table show: all rows of the partition, and those of the run."""
    partition = quoted(spec.destination.partition_column)
    return f"""\
SELECT
  (SELECT COUNT(*) FROM {quoted(schema.destination_table(spec, settings))} WHERE {partition} = @partition) AS shown,
  (SELECT COUNT(*) FROM {quoted(schema.destination_table(spec, settings))}
   WHERE {partition} = @partition AND {RUN_ID_COLUMN} = @run_id) AS predictions,
  (SELECT COUNT(*) FROM {quoted(schema.own_table(settings, "dead_letters"))}
   WHERE job = @job AND partition_date = @partition) AS dead_shown,
  (SELECT COUNT(*) FROM {quoted(schema.own_table(settings, "dead_letters"))}
   WHERE job = @job AND partition_date = @partition AND run_id = @run_id) AS dead_letters
"""


def publish_parameters(run: RunRef, manifest: Mapping[str, Any]) -> list[ScalarQueryParameter]:
    from google.cloud.bigquery import ScalarQueryParameter

    return [
        ScalarQueryParameter("job", "STRING", run.job),
        ScalarQueryParameter("partition", "DATE", run.partition),
        ScalarQueryParameter("run_id", "STRING", run.run_id),
        ScalarQueryParameter("rows", "INT64", manifest["rows"]),
        ScalarQueryParameter("predictions", "INT64", manifest["predictions"]),
    ]
