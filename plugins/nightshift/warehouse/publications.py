"""The table of publications, and the rules that decide whether a run may replace what a partition shows. Pure SQL text.

Each publication adds a row in the transaction that changes the partition. So the table has for each row of a destination the
job that has published it, and for each partition the run that was asked for last:

- **A destination belongs to one job.** A run replaces only rows that its own job, of its own deployment, has published there.
- **A newer run is never overwritten by an older one.** A run is asked for when it is opened, and again when a
  user triggers the DAG with ``republish``.
- **A redo replaces what the partition showed when it was opened**, and the run that it completes, and no other one that was
  published since: it would take away that one's answers. A user who asks for it with ``republish`` gets it all the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from nightshift.warehouse import schema
from nightshift.warehouse.schema import RUN_ID_COLUMN, quoted

if TYPE_CHECKING:
    from google.cloud.bigquery import ScalarQueryParameter

    from nightshift.run.names import RunRef
    from nightshift.run.redo.redo import Redo
    from nightshift.settings import Settings
    from nightshift.spec import JobSpec

TABLE: Final = "publications"
COLUMNS: Final[Mapping[str, str]] = {
    "destination": "STRING",
    "partition_date": "DATE",
    "bucket": "STRING",
    "job": "STRING",
    "run_id": "STRING",
    "asked_at": "TIMESTAMP",
    "published_at": "TIMESTAMP",
    "merkle_root": "STRING",
    "partition_time": "TIMESTAMP",
}
"""One row for each time that a partition was replaced. bucket: of the deployment. asked_at: see the module.
partition_time: NULL for a day. A redo has a row for each run that it completes, too, without asked_at: the partition shows
their rows, and the table may never have shown these runs themselves."""

FOREIGN: Final = (
    "The partition holds rows that this job has not published, and a destination belongs to one job. Nothing was changed. "
    "Repeat the task plan: it names them"
)
LATER: Final = (
    "The partition shows a run that was asked for later than this one. Nothing was changed. To show this run again, trigger "
    "the DAG with republish"
)
OVERTAKEN: Final = (
    "The partition shows a run that was published after this redo was asked for. Nothing was changed. To compute what "
    "is a dead letter now, trigger the DAG with redo"
)

_OWN_BUCKET: Final = "bucket = @bucket"
_LATER_ROWS: Final = "known WHERE asked_at > @asked_at OR (asked_at = @asked_at AND run_id != @run_id)"
# Without a redo, @completes is NULL. If the partition showed no run, @shown is '', and any other run has overtaken it. Another
# table than that of then may not know the run: MAX finds nothing, and nothing is later than NULL.
_OVERTAKING_ROWS: Final = (
    f"known WHERE @completes IS NOT NULL AND asked_at IS NOT NULL\n"
    f"AND NOT (run_id IN (@run_id, @completes, @shown) AND {_OWN_BUCKET}) AND (@shown = '' OR published_at > (\n"
    f"SELECT MAX(published_at) FROM known WHERE run_id = @shown AND asked_at IS NOT NULL AND {_OWN_BUCKET}))"
)


def table(settings: Settings) -> str:
    """``project.dataset.table``."""
    return schema.own_table(settings, TABLE)


def known(settings: Settings) -> str:
    """A WITH clause. ``known`` holds this job's publications of this partition.

    Its columns: job, run_id, bucket, asked_at (NULL for a run that a redo completes) and published_at.
    Parameters: `parameters`.
    """
    here = f"destination = @destination AND {schema.OWN_PARTITION} AND job = @job"
    return f"WITH known AS (\nSELECT job, run_id, bucket, asked_at, published_at FROM {quoted(table(settings))} WHERE {here})"


def refusals(spec: JobSpec, settings: Settings) -> dict[str, str]:
    """The rows that forbid the run to replace the partition, each a FROM clause by its error message.

    They refer to `known`. Parameters: `parameters`.
    """
    return {FOREIGN: _foreign(spec, settings), LATER: _LATER_ROWS, OVERTAKEN: _OVERTAKING_ROWS}


def of_run(settings: Settings) -> str:
    """A FROM clause: the publications of the run, or of redos that complete it, in any table.

    Parameters: bucket, job, run_id and those of `nightshift.warehouse.schema.partition_parameters`.
    """
    return f"{quoted(table(settings))} WHERE job = @job AND {schema.OWN_PARTITION} AND {_OWN_BUCKET} AND run_id = @run_id"


def insert(settings: Settings, suffix: str = "") -> str:
    """Records the publication, or with the suffix of a `nightshift.warehouse.publish.Part` that it completes this run.

    Parameters: `parameters`, and ``merkle_root`` and ``run_id``, each with the suffix.
    """
    return (
        f"INSERT INTO {quoted(table(settings))} ({', '.join(COLUMNS)})\n"
        f"VALUES (@destination, @partition_date, @bucket, @job, @run_id{suffix}, {'NULL' if suffix else '@asked_at'},\n"
        f"  CURRENT_TIMESTAMP(), @merkle_root{suffix}, @partition_time);"
    )


def latest(settings: Settings) -> str:
    """The run that this job of this deployment published last in the partition: run_id. Parameters: `parameters`."""
    return (
        f"{known(settings)}\n"
        f"SELECT run_id FROM known WHERE asked_at IS NOT NULL AND {_OWN_BUCKET}\n"
        "ORDER BY published_at DESC LIMIT 1"
    )


def asked_last(settings: Settings) -> str:
    """When the run was asked for that was asked for last, of this job and partition: asked_at, NULL if there is none.

    Parameters: `parameters`.
    """
    return f"{known(settings)}\nSELECT MAX(asked_at) FROM known"


def has_published(settings: Settings) -> str:
    """Whether this job of this deployment has published the run in the partition: BOOL. Parameters: `parameters`."""
    return (
        f"{known(settings)}\nSELECT COUNT(*) > 0 FROM known WHERE run_id = @run_id AND asked_at IS NOT NULL AND {_OWN_BUCKET}"
    )


def obstacles(spec: JobSpec, settings: Settings) -> str:
    """What stands in the way of the run, a row each: problem (``foreign``, ``later``, ``overtaken``), job, run_id,
    asked_at (of ``overtaken``: when it was published), row_count."""
    return (
        f"{known(settings)}\n"
        "SELECT 'foreign' AS problem, ANY_VALUE(published.job) AS job, there.run_id AS run_id,\n"
        "  CAST(NULL AS TIMESTAMP) AS asked_at, COUNT(*) AS row_count\n"
        f"FROM {_foreign(spec, settings)} AS there\n"
        f"LEFT JOIN (SELECT run_id, ANY_VALUE(job) AS job FROM {quoted(table(settings))} GROUP BY run_id) AS published\n"
        "ON published.run_id = there.run_id\n"
        "GROUP BY there.run_id\n"
        "UNION ALL\n"
        f"SELECT 'later', job, run_id, asked_at, 0 FROM {_LATER_ROWS}\n"
        "UNION ALL\n"
        f"SELECT 'overtaken', job, run_id, published_at, 0 FROM {_OVERTAKING_ROWS}\n"
        "ORDER BY problem, asked_at DESC\n"
        "LIMIT 5"
    )


def parameters(
    spec: JobSpec, run: RunRef, settings: Settings, asked_at: str, completes: Redo | None = None
) -> list[ScalarQueryParameter]:
    """asked_at: ISO 8601. completes: what a redo is; None for any other run, and if a user asks for it."""
    return schema.partition_parameters(run.partition) + schema.scalar_parameters(
        ("destination", "STRING", schema.destination_table(spec, settings)),
        ("bucket", "STRING", settings.bucket),
        ("job", "STRING", run.job),
        ("run_id", "STRING", run.run_id),
        ("asked_at", "TIMESTAMP", asked_at),
        ("completes", "STRING", completes and completes.run_id),
        ("shown", "STRING", completes and completes.shown),
    )


def describe(
    spec: JobSpec,
    run: RunRef,
    settings: Settings,
    asked_at: str,
    found: Sequence[Mapping[str, Any]],
    completes: Redo | None = None,
) -> str | None:
    """A sentence about `obstacles`, None if there are none. completes: as in `parameters`."""
    destination = schema.destination_table(spec, settings)
    partition = f"Partition {run.partition} of {destination}"
    foreign = [row for row in found if row["problem"] == "foreign"]
    if foreign:
        whose = "; ".join(
            f"{row['row_count']} of {_run_named(row)}" if row["run_id"] else f"{row['row_count']} without a run"
            for row in foreign
        )
        value = f"{schema.partition_type(run.partition)} '{schema.partition_value(run.partition)}'"
        delete = f"DELETE FROM {quoted(destination)} WHERE {quoted(spec.destination.partition_column)} = {value}"
        return (
            f"{partition} holds rows that job {run.job} has not published ({whose}). A destination belongs to one job, so they "
            f"are not replaced. Write another destination.table. Or, if these rows are not needed, delete them: {delete}"
        )
    if found and found[0]["problem"] == "overtaken":
        shown = found[0]
        return (
            f"{partition} shows run {shown['run_id']}, published at {shown['asked_at'].isoformat()}. "
            f"Run {run.run_id}, a redo of run {completes and completes.run_id}, was asked for before that, and a redo takes "
            "away no other run's answers. To compute what is a dead letter now, trigger the DAG with redo. To show this run "
            f"all the same, trigger it with republish: {run.run_id}"
        )
    if found:
        shown = found[0]
        return (
            f"{partition} shows run {shown['run_id']}, asked for at {shown['asked_at'].isoformat()}. Run {run.run_id} was "
            f"asked for at {asked_at}, and an earlier run never replaces a later one by itself. To compute it again, "
            f"trigger the DAG with fresh. To show run {run.run_id} again, trigger it with republish: {run.run_id}"
        )
    return None


def _run_named(row: Mapping[str, Any]) -> str:
    return f"run {row['run_id']}" + (f" of job {row['job']}" if row["job"] else "")


def _foreign(spec: JobSpec, settings: Settings) -> str:
    """The rows of the partition that another job, another deployment or a user has put there: their run_id, NULL if none.

    Two deployments may give one id to runs of a job: then the rows are those of the one that published the id last.
    """
    return (
        f"(SELECT {RUN_ID_COLUMN} AS run_id FROM {quoted(schema.destination_table(spec, settings))}\n"
        f"WHERE {quoted(spec.destination.partition_column)} = @partition\n"
        f"AND ({RUN_ID_COLUMN} IS NULL OR {RUN_ID_COLUMN} NOT IN (\n"
        f"SELECT run_id FROM known GROUP BY run_id\n"
        f"HAVING MAX(IF({_OWN_BUCKET}, published_at, NULL)) = MAX(published_at))))"
    )
