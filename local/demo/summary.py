"""The result of a night, in words and counts. Counts come from the data itself, not from what was intended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from google.cloud import bigquery
from obstore.store import ObjectStore

from local.demo.night import Night
from local.stack import Stack
from nightshift.run.manifest import RunManifest, load_manifest
from nightshift.spec import JobSpec

COUNTS = """
SELECT COUNT(*) AS published, COUNT(*) - COUNT(DISTINCT nightshift_ordinal) AS duplicates
FROM `{table}` WHERE {partition_column} = @day
"""


@dataclass(frozen=True)
class Told:
    """whole: every row is accounted for in the published table."""

    whole: bool
    dead_letters: int


def tell(night: Night, spec: JobSpec, client: bigquery.Client, store: ObjectStore, say: Callable[[str], None]) -> Told:
    """Prints the summary."""
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
    return Told(whole, manifest.dead_letters)


def lead_on(spec: JobSpec, told: Told, stack: Stack) -> list[str]:
    """What to look at next, with the command for each, once the demo has left the stack."""
    up = stack.healthy()
    enter = f'eval "$({stack.make("env")})"' if up else f'{stack.make("up")} && eval "$({stack.make("env")})"'
    lines = [
        ("your own question", f'{stack.make("search")} Q="parse yaml"'),
        ("the pages in Airflow", f"{stack.make('status')}   # their address; the stack is up" if up else stack.make("up")),
    ]
    if told.dead_letters:
        many = "its dead letter" if told.dead_letters == 1 else f"its {told.dead_letters} dead letters"
        lines.append((many, f"{enter} && .venv/bin/nightshift status {spec.job} --dead-letters"))
    lines.append(("a table of your own", "docs/use/tutorial.md"))
    first = (
        "The stack is up, with what the night has published." if up else "The stack is down again; it keeps what was published."
    )
    return [first, *(f"  {name:<21} {command}" for name, command in lines)]


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
