"""The audit table: one row for each publication, which says what was published, from what, by which model, and for whom."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from nightshift.formats import AUDIT
from nightshift.run.names import canonical_json
from nightshift.run.redo import COMPLETES, digest_of, totals
from nightshift.warehouse import schema
from nightshift.warehouse.errors import WarehouseError
from nightshift.warehouse.schema import own_table, quoted

if TYPE_CHECKING:
    from google.cloud.bigquery import ScalarQueryParameter, Table

    from nightshift.run.names import RunRef
    from nightshift.run.plan import Plan
    from nightshift.settings import Settings
    from nightshift.spec import JobSpec

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
    "completes": "STRING",
}
"""run_id and published_at identify the row. input_rows = predictions + dead_letters. source_tables: comma-separated.
dead_reasons: JSON object. spec_digest: sha256 of `JobSpec.semantic`. manifest_digest: sha256 of manifest.json.
attempts: lives of workers that committed chunks. partition_time: NULL for a day.
completes: ids of the earlier runs whose predictions the partition shows too, comma-separated, the latest first, else NULL.
Then input_rows, predictions and dead_letters are those of the whole partition, and all else is about this run.
seconds: the length of the night as measured by the caller, or null. version: `nightshift.formats.AUDIT`; NULL is version 1."""


def audit_row(
    spec: JobSpec,
    run: RunRef,
    plan: Plan,
    manifest: Mapping[str, Any],
    published: Mapping[str, Any],
    *,
    dag_run_id: str,
    seconds: float | None = None,
) -> dict[str, Any]:
    """The row of a published run, for `Warehouse.record_audit`. published: what `Warehouse.finish_publish` returned.

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
        **{column: totals(manifest)[name] for column, name in _COUNTS.items()},
        "dead_reasons": canonical_json(manifest["dead_reasons"]).decode(),
        "prompt_tokens": manifest["prompt_tokens"],
        "chunks": len(manifest["chunks"]),
        "workers": plan.workers,
        "attempts": len(manifest["attempts"]),
        "model_name": spec.model.name,
        "model_uri": spec.model.uri,
        "model_revision": spec.model.revision,
        "spec_digest": digest(spec.semantic()),
        "manifest_digest": digest_of(manifest),
        "merkle_root": manifest["merkle_root"],
        "sealed_at": manifest["sealed_at"],
        "published_at": published["published_at"],
        "seconds": seconds,
        "version": AUDIT.version,
        "completes": ", ".join(each["run_id"] for each in manifest.get(COMPLETES, ())) or None,
    }


_COUNTS: Final = {"input_rows": "rows", "predictions": "predictions", "dead_letters": "dead_letters"}


def digest(value: Any) -> str:
    """sha256, in hex, of a JSON value in canonical form."""
    import hashlib

    return hashlib.sha256(canonical_json(value)).hexdigest()


def table(settings: Settings) -> str:
    """``project.dataset.table``."""
    return own_table(settings, "audit")


def as_created(settings: Settings) -> Table:
    return schema.day_table(table(settings), schema.scalar_fields(COLUMNS), "partition_date", cluster_by="job")


def insert(settings: Settings) -> str:
    """Adds the row of a publication unless it is there. Parameters: one for each column.

    An INSERT never conflicts with another one, so all jobs of a night may write their rows at the same time.
    """
    name = quoted(table(settings))
    return (
        f"INSERT INTO {name} ({', '.join(map(quoted, COLUMNS))})\n"
        f"SELECT {', '.join(f'@{column}' for column in COLUMNS)} FROM UNNEST([1])\n"
        f"WHERE NOT EXISTS (SELECT 1 FROM {name} WHERE run_id = @run_id AND published_at = @published_at)"
    )


def audit_parameters(row: Mapping[str, Any]) -> list[ScalarQueryParameter]:
    """Raises WarehouseError for a row without run_id or published_at, or with a column that the table lacks."""
    from google.cloud.bigquery import ScalarQueryParameter

    unknown = sorted(set(row) - set(COLUMNS))
    absent = [name for name in ("run_id", "published_at") if not row.get(name)]
    if unknown or absent:
        wrong = f"the columns {', '.join(unknown)}, which the table lacks" if unknown else f"no {absent[0]}"
        raise WarehouseError(f"The audit row has {wrong}. Its columns are {', '.join(COLUMNS)}.")
    return [ScalarQueryParameter(name, kind, row.get(name)) for name, kind in COLUMNS.items()]
