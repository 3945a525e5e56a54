"""The audit table: one row for each publication, which says what was published, from what, by which model, for whom, and what
it cost; and one for each DAG run that failed, by the task that failed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from nightshift.formats import AUDIT
from nightshift.run.names import FAILED, PUBLISHED, canonical_json
from nightshift.warehouse import schema
from nightshift.warehouse.errors import WarehouseError
from nightshift.warehouse.schema import own_table, quoted

if TYPE_CHECKING:
    from google.cloud.bigquery import ScalarQueryParameter

    from nightshift.run.manifest import RunManifest
    from nightshift.run.names import RunRef
    from nightshift.run.plan import Plan
    from nightshift.settings import Settings
    from nightshift.spec import JobSpec

TABLE: Final = "audit"
COLUMNS: Final[Mapping[str, str]] = {
    "run_id": "STRING",
    "job": "STRING",
    "partition_date": "DATE",
    "generation": "INT64",
    "dag_run_id": "STRING",
    "owner": "STRING",
    "source_tables": "STRING",
    "destination": "STRING",
    "input_rows": "INT64",
    "predictions": "INT64",
    "dead_letters": "INT64",
    "dead_reasons": "STRING",
    "prompt_tokens": "INT64",
    "chunks": "INT64",
    "workers": "INT64",
    "attempts": "INT64",
    "model_name": "STRING",
    "model_uri": "STRING",
    "model_revision": "STRING",
    "spec_digest": "STRING",
    "manifest_digest": "STRING",
    "merkle_root": "STRING",
    "sealed_at": "TIMESTAMP",
    "published_at": "TIMESTAMP",
    "seconds": "FLOAT64",
    "partition_time": "TIMESTAMP",
    "version": "INT64",
    "state": "STRING",
    "by_dag_run_id": "STRING",
    "output_tokens": "INT64",
    "cost": "FLOAT64",
    "cost_estimated": "FLOAT64",
    "currency": "STRING",
    "costs": "STRING",
    "machine_seconds": "FLOAT64",
    "bigquery_bytes": "INT64",
    "failed_task": "STRING",
    "failed_at": "TIMESTAMP",
    "error": "STRING",
    "completes": "STRING",
    "bucket": "STRING",
    "truncated": "INT64",
    "empty_answers": "INT64",
    "equal_answers": "INT64",
    "engine_versions": "STRING",
    "prompt_digest": "STRING",
}
"""state: `PUBLISHED`, which NULL stands for too, or `FAILED`. Only a publication has published_at; run_id and published_at
identify it. bucket, job, by_dag_run_id and failed_task identify a failure (Airflow names the DAG runs of all jobs alike, and
so do two deployments that share the table), with error and machine_seconds: a task that fails again has another row if its
error or its cost differs. Other columns of a failure are NULL if they were not known by then; failed_at: when its row was
written first; error: what the task reported, NULL if only its log has it. dag_run_id: the DAG run that opened the run.
by_dag_run_id: the one that published it, or that failed. input_rows = predictions + dead_letters. source_tables, completes:
comma-separated. completes: the earlier runs whose predictions the partition shows too, the latest first, else NULL; then
input_rows, predictions and dead_letters are those of the whole partition, and all else is of this run. dead_reasons: JSON
object. spec_digest: sha256 of `JobSpec.semantic`. manifest_digest: sha256 of manifest.json. attempts: of workers that
committed chunks. partition_time: NULL for a day. seconds: from when the run was asked for (opened, or asked for again with
``republish``) to when it was published, pauses and repairs included. cost: of the whole run so far, in currency: machines,
storage operations and bigquery_bytes; NULL if something has no price. cost_estimated: of the machines, as the plan had it.
costs: JSON object, `nightshift.planner.costs.bill.Bill.to_json`. machine_seconds: paid. bigquery_bytes: billed. bucket: that
has the run, which is the deployment's; NULL in rows of 0.2.0 and before. version: `nightshift.formats.AUDIT`; NULL is version
1. Of a failure, predictions to attempts are of the chunks that were committed by then, and input_rows is what was exported.
truncated: answers that were cut at ``max_tokens``. empty_answers, equal_answers: `nightshift.run.manifest.RunManifest`, empty
and equal; NULL if they were not counted. engine_versions: JSON object, rows by the engine's version. prompt_digest: sha256 of
the templates that made the prompts (`prompt_digest`)."""

ERROR_CHARS: Final = 2000
"""Of an error that are kept."""

_KEYS: Final = {PUBLISHED: ("run_id", "published_at"), FAILED: ("by_dag_run_id", "failed_task", "job", "state", "bucket")}
_MAY_BE_NULL: Final = {PUBLISHED: (), FAILED: ("error", "machine_seconds")}
"""Also identify a row, whether they are known or not."""


def audit_row(
    spec: JobSpec,
    run: RunRef,
    plan: Plan,
    manifest: RunManifest,
    published: Mapping[str, Any],
    *,
    dag_run_id: str,
    by_dag_run_id: str | None = None,
    asked_at: str | None = None,
    costs: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The row of a published run, for `Warehouse.record_audit`. published: what `Warehouse.finish_publish` returned.

    dag_run_id, by_dag_run_id: that opened it, and that published it. asked_at: when the run was asked for, ISO 8601.
    costs: `nightshift.planner.costs.bill.Bill.to_json`; None if they are not known.

    Made only from recorded facts, never from the clock, so a repeat writes the same row.
    """
    from nightshift.spec import periods

    return {
        "run_id": run.run_id,
        "job": run.job,
        **periods.columns(run.partition),
        "generation": run.generation,
        "dag_run_id": dag_run_id,
        "owner": spec.owner,
        "source_tables": ", ".join(published["source_tables"]),
        "destination": published["table"],
        **{column: getattr(manifest.totals, name) for column, name in _COUNTS.items()},
        "dead_reasons": canonical_json(manifest.dead_reasons).decode(),
        "prompt_tokens": manifest.prompt_tokens,
        "chunks": len(manifest.chunks),
        "workers": plan.workers,
        "attempts": len(manifest.attempts),
        "model_name": spec.model.name,
        "model_uri": spec.model.uri,
        "model_revision": spec.model.revision,
        "spec_digest": digest(spec.semantic()),
        "manifest_digest": manifest.digest,
        "merkle_root": manifest.merkle_root,
        "sealed_at": manifest.sealed_at,
        "published_at": published["published_at"],
        "seconds": None if asked_at is None else _seconds(asked_at, published["published_at"]),
        "version": AUDIT.version,
        "state": PUBLISHED,
        "by_dag_run_id": by_dag_run_id,
        "output_tokens": manifest.output_tokens,
        "completes": ", ".join(each.run_id for each in manifest.completes) or None,
        "truncated": manifest.truncated,
        "empty_answers": manifest.empty,
        "equal_answers": manifest.equal,
        "engine_versions": canonical_json(dict(manifest.engine_versions)).decode(),
        "prompt_digest": prompt_digest(spec),
        **money(costs),
    }


def failure_row(
    spec: JobSpec,
    partition: str,
    *,
    failed_task: str,
    failed_at: str,
    by_dag_run_id: str,
    error: str | None,
    known: Mapping[str, Any],
) -> dict[str, Any]:
    """The row of a DAG run that failed. known: other columns, as far as the DAG run got."""
    from nightshift.spec import periods

    return {
        "job": spec.job,
        **periods.columns(partition),
        "owner": spec.owner,
        "model_name": spec.model.name,
        "model_uri": spec.model.uri,
        "model_revision": spec.model.revision,
        "spec_digest": digest(spec.semantic()),
        "prompt_digest": prompt_digest(spec),
        **known,
        "version": AUDIT.version,
        "state": FAILED,
        "by_dag_run_id": by_dag_run_id,
        "failed_task": failed_task,
        "failed_at": failed_at,
        "error": error and error[:ERROR_CHARS],
    }


def money(costs: Mapping[str, Any] | None) -> dict[str, Any]:
    """The columns about costs. costs: as in `audit_row`."""
    if costs is None:
        return {}
    return {
        "cost": costs["total"],
        "cost_estimated": costs["machines_estimated"],
        "currency": costs["currency"],
        "costs": canonical_json(costs).decode(),
        "machine_seconds": sum(rung["actual"]["seconds"]["paid"] for rung in costs["rungs"] if rung["actual"]),
        "bigquery_bytes": costs["bigquery"]["bytes_billed"],
    }


def _seconds(begin: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()


def state_of(row: Mapping[str, Any]) -> str:
    return row.get("state") or PUBLISHED


_COUNTS: Final = {"input_rows": "rows", "predictions": "predictions", "dead_letters": "dead_letters"}


def digest(value: Any) -> str:
    """sha256, in hex, of a JSON value in canonical form."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def prompt_digest(spec: JobSpec) -> str:
    """sha256, in hex, of the templates of the job's request by their fields, and of the names of the columns that it sends.

    Two runs with the same digest made the same prompts of the same rows, if one release rendered them.
    """
    request = spec.request
    return digest({name: getattr(request, name) for name in (*request.TEMPLATES, *request.COLUMNS)})


def table(settings: Settings) -> str:
    """``project.dataset.table``."""
    return own_table(settings, TABLE)


def insert(settings: Settings, state: str) -> str:
    """Adds the row of a publication, or of a failure, unless it is there. Parameters: one for each column.

    An INSERT never conflicts with another one, so all jobs of a night may write their rows at the same time.
    """
    name = quoted(table(settings))
    same = [f"{key} = @{key}" for key in _KEYS[state]]
    same += [f"{key} IS NOT DISTINCT FROM @{key}" for key in _MAY_BE_NULL[state]]
    return (
        f"INSERT INTO {name} ({', '.join(map(quoted, COLUMNS))})\n"
        f"SELECT {', '.join(f'@{column}' for column in COLUMNS)} FROM UNNEST([1])\n"
        f"WHERE NOT EXISTS (SELECT 1 FROM {name} WHERE {' AND '.join(same)})"
    )


def selection(settings: Settings, *, of_job: bool) -> str:
    """The rows of partitions from a day on. Parameters: since, and job if it is of one job.

    All columns, because a table that an earlier release has made may lack some.
    """
    job = " AND job = @job" if of_job else ""
    return f"SELECT * FROM {quoted(table(settings))} WHERE partition_date >= @since{job}"


def audit_parameters(row: Mapping[str, Any]) -> list[ScalarQueryParameter]:
    """Raises WarehouseError for a row without what identifies it, or with a column that the table lacks."""
    unknown = sorted(set(row) - set(COLUMNS))
    absent = [name for name in _KEYS[state_of(row)] if not row.get(name)]
    if unknown or absent:
        wrong = f"the columns {', '.join(unknown)}, which the table lacks" if unknown else f"no {absent[0]}"
        raise WarehouseError(f"The audit row has {wrong}. Its columns are {', '.join(COLUMNS)}.")
    return schema.scalar_parameters(*((name, kind, row.get(name)) for name, kind in COLUMNS.items()))
