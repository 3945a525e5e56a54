"""The result of a night, in words and counts. Counts come from the data itself, not from what was intended."""

from __future__ import annotations

from collections.abc import Callable

from google.cloud import bigquery
from obstore.store import ObjectStore

from local.demo.night import Night
from nightshift.run.manifest import RunManifest, load_manifest
from nightshift.spec import JobSpec

COUNTS = """
SELECT COUNT(*) AS published, COUNT(*) - COUNT(DISTINCT nightshift_ordinal) AS duplicates
FROM `{table}` WHERE {partition_column} = @day
"""


def tell(night: Night, spec: JobSpec, client: bigquery.Client, store: ObjectStore, say: Callable[[str], None]) -> bool:
    """Prints the summary; returns whether every row is accounted for in the published table."""
    manifest = load_manifest(store, night.run)
    assert manifest is not None, "a successful run is sealed"
    published, duplicates = _published(client, spec, night.run.partition)
    reasons = ", ".join(f"{count} {reason}" for reason, count in manifest.dead_reasons.items())
    whole = published == manifest.predictions and not duplicates
    rows: list[tuple[str, str]] = [
        ("rows in", f"{manifest.rows}"),
        ("predictions", f"{manifest.predictions}"),
        ("dead letters", f"{manifest.dead_letters}" + (f" ({reasons})" if reasons else "")),
        ("published", f"{published} rows in {spec.destination.table}, partition {night.run.partition}"),
        ("duplicates", f"{duplicates}"),
        ("computed now", _computed(night, manifest)),
        ("Merkle root", manifest.merkle_root),
        ("time", ", ".join(f"{name} {seconds:.0f} s" for name, seconds in night.seconds.items())),
    ]
    for name, value in rows:
        say(f"  {name:<13} {value}")
    if not whole:
        say("  NOT WHOLE: the published table does not match the manifest")
    return whole


def _computed(night: Night, manifest: RunManifest) -> str:
    now = night.rows_after - night.rows_before
    if not now:
        return "0 rows: the run was computed before, no engine was started"
    already = f", {night.rows_before} were committed before" if night.rows_before else ""
    return f"{now} rows by {len(manifest.attempts)} attempts in all{already}"


def _published(client: bigquery.Client, spec: JobSpec, partition: str) -> tuple[int, int]:
    to = spec.destination
    parameters = [bigquery.ScalarQueryParameter("day", "DATE", partition)]
    query = COUNTS.format(table=to.table, partition_column=to.partition_column)
    row = next(iter(client.query(query, job_config=bigquery.QueryJobConfig(query_parameters=parameters)).result()))
    return int(row["published"]), int(row["duplicates"])
