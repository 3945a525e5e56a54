"""The transaction that makes a partition show a run: pure SQL text and its parameters.

The script asserts everything that the manifest says about the staged rows before the transaction begins. Inside it are only
queries and DML, which BigQuery's documentation allows there. A query that calls ``ERROR`` ends the script; BigQuery then rolls
the transaction back, and the partition stays as it was.

BigQuery cancels one of two transactions that update or delete rows of one table at the same time. The destination's rows are
always deleted first, even if there are none, so that two runs that publish one partition at once cannot both add their
rows. Days of a backfill may collide too, and then another try of the cancelled job finishes the work. The dead letter table
is shared by all jobs of a night, so the script deletes there only if there was something to delete when it was written; if that
has changed when the transaction begins, the script fails, and another try writes it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nightshift.run.names import PUBLISHED
from nightshift.warehouse import audit, dead_letters, publications, schema
from nightshift.warehouse.errors import CHANGED_MEANWHILE, NOT_INSERTED, NOT_STAGED
from nightshift.warehouse.schema import ORDINAL_COLUMN, RUN_ID_COLUMN, quoted

if TYPE_CHECKING:
    from google.cloud.bigquery import ScalarQueryParameter, Table

    from nightshift.run.manifest import RunManifest
    from nightshift.run.names import RunRef
    from nightshift.run.redo.redo import Redo
    from nightshift.settings import Settings
    from nightshift.spec import JobSpec

URIS_PER_LOAD: Final = 10_000
"""BigQuery's limit on the source URIs of one load job."""


@dataclass(frozen=True)
class Part:
    """What one run adds to a partition: the published run itself, or one that it completes (`nightshift.run.redo.redo`).

    suffix: of its parameters; none for the published run. tables: staging tables (``project.dataset.table``), each with the
    URIs of its chunks.
    """

    suffix: str
    manifest: RunManifest
    tables: tuple[tuple[str, list[str]], ...]

    @property
    def staged(self) -> str:
        """A FROM clause."""
        return schema.union(name for name, _ in self.tables)


def parts(run: RunRef, manifest: RunManifest, settings: Settings) -> list[Part]:
    """The published run, then those that it completes, if any (`RunManifest.earlier`), the latest first.

    One table for each load job, so that every job truncates the table that it loads and a repeat changes nothing. A run has at
    least one, so one without rows is published like any other. Tables are named by the published run, whose own they are.
    """
    found: list[Part] = []
    number = 0
    for position, each in enumerate((manifest, *manifest.earlier)):
        uris = [f"gs://{settings.bucket}/{chunk.path}" for chunk in each.chunks]
        tables = []
        for start in range(0, max(len(uris), 1), URIS_PER_LOAD):
            name = schema.staging_table(settings, run, f"_{number}" if number else "")
            tables.append((name, uris[start : start + URIS_PER_LOAD]))
            number += 1
        found.append(Part(f"_{position}" if position else "", each, tuple(tables)))
    return found


def staging_tables(run: RunRef, manifest: RunManifest, settings: Settings) -> list[tuple[str, list[str]]]:
    """The staging tables of all `parts`, in order: their numbers are those of their load jobs."""
    return [table for part in parts(run, manifest, settings) for table in part.tables]


def publish_script(
    spec: JobSpec,
    staging: Sequence[str],
    settings: Settings,
    *,
    dead: bool,
    stale: bool,
    earlier: Sequence[Part] = (),
    prompts: str | None = None,
) -> str:
    """The whole script, for tables that exist. Parameters: see `publish_parameters`.

    staging: the run's own tables. dead: whether the run has dead letters. stale: whether the dead letter table has rows of the
    job for this partition, in any state. earlier: the runs that it completes, whose predictions stay. prompts: the staging
    table with the prompts of its dead letters, if there are some.
    """
    destination = quoted(schema.destination_table(spec, settings))
    partition = quoted(spec.destination.partition_column)
    staged = schema.union(staging)
    cleared = dead_letters.of_partition(settings)
    refusals = publications.refusals(spec, settings) | ({} if stale else {CHANGED_MEANWHILE: cleared})
    shares = [(staged, ""), *((part.staged, part.suffix) for part in earlier)]
    checks = "\n".join(assertions(each, suffix) for each, suffix in shares)
    inserts = "\n".join(_insert_predictions(spec, settings, each, suffix) for each, suffix in shares)
    recorded = "\n".join(publications.insert(settings, suffix) for _, suffix in shares)
    return f"""\
{checks}
{dead_letters.prompts_assertion(prompts) if dead and prompts else ""}
BEGIN TRANSACTION;
{_guards(refusals, settings)}
DELETE FROM {destination} WHERE {partition} = @partition;
{f"DELETE FROM {cleared};" if stale else ""}
{_insert_dead_letters(spec, settings, staged, prompts) if dead else ""}
{recorded}
{inserts}
COMMIT TRANSACTION;
"""


def trials(spec: JobSpec, settings: Settings, columns: Sequence[str]) -> tuple[str, str]:
    """Statements that need of the destination what the script needs there, and change nothing. columns: its own."""
    destination, names = quoted(schema.destination_table(spec, settings)), ", ".join(map(quoted, columns))
    # A table may ask for a filter over its partitions.
    day = f"{quoted(spec.destination.partition_column)} = {'TIMESTAMP' if spec.every else 'DATE'} '2000-01-01'"
    return (
        f"DELETE FROM {destination} WHERE {day}",
        f"INSERT INTO {destination} ({names}) SELECT {names} FROM {destination} WHERE {day} AND FALSE",
    )


def _insert_predictions(spec: JobSpec, settings: Settings, staged: str, suffix: str) -> str:
    """staged: a FROM clause. suffix: of the parameters run_id and predictions."""
    from nightshift.spec.columns import REASONING

    carried, written = ", ".join(map(quoted, spec.source.carried)), quoted(spec.destination.column)
    partition = quoted(spec.destination.partition_column)
    reasoning = f", {REASONING}" if spec.request.keeps_reasoning else ""
    return f"""\
INSERT INTO {quoted(schema.destination_table(spec, settings))}
({carried}, {written}{reasoning}, {partition}, {RUN_ID_COLUMN}, {ORDINAL_COLUMN})
SELECT {carried}, prediction{reasoning}, @partition, @run_id{suffix}, ordinal FROM {staged} WHERE dead_reason IS NULL;
{_inserted(f"@predictions{suffix}")}"""


def _guards(refusals: Mapping[str, str], settings: Settings) -> str:
    """A query that fails inside the transaction if one of the rows exists. refusals: FROM clauses, by error message."""
    answers = [f"IF(EXISTS (SELECT 1 FROM {rows}), ERROR('{said}'), NULL)" for said, rows in refusals.items()]
    return f"{publications.known(settings)}\nSELECT {', '.join(answers)};"


def assertions(staged: str, suffix: str = "") -> str:
    """A query that fails unless the staged rows (a FROM clause) are those of the manifest, or of a closing.

    Parameters: rows (of the chunks), planned (of the run) and predictions, each with the suffix of its `Part`.

    One statement, so that the staging tables are scanned once.

    Each ordinal sets one bit of the word that it shares with 31 neighbours, so the set bits count distinct ordinals exactly.
    COUNT(DISTINCT ordinal) would have to keep every ordinal rather than one word for 32 of them.
    """
    return f"""\
SELECT CASE
  WHEN staged_rows != @rows{suffix} THEN ERROR('{NOT_STAGED}')
  WHEN ordinals != @rows{suffix} OR least < 0 OR most >= @planned{suffix}
    THEN ERROR('The staged rows do not hold every ordinal once')
  WHEN staged_predictions != @predictions{suffix} THEN ERROR('The number of staged predictions differs from the manifest')
END
FROM (
  SELECT IFNULL(SUM(word_rows), 0) AS staged_rows, IFNULL(SUM(word_predictions), 0) AS staged_predictions,
    IFNULL(SUM(BIT_COUNT(word)), 0) AS ordinals, MIN(word_least) AS least, MAX(word_most) AS most
  FROM (
    SELECT COUNT(*) AS word_rows, COUNTIF(dead_reason IS NULL) AS word_predictions,
      BIT_OR(CAST(1 AS INT64) << (ordinal & 31)) AS word, MIN(ordinal) AS word_least, MAX(ordinal) AS word_most
    FROM {staged}
    GROUP BY ordinal >> 5
  )
);"""


def _insert_dead_letters(spec: JobSpec, settings: Settings, staged: str, prompts: str | None) -> str:
    return f"""\
{dead_letters.insert(spec, settings, staged, prompts, PUBLISHED)}
{_inserted("@rows - @predictions")}"""


def _inserted(rows: str) -> str:
    """A query that fails unless the INSERT before it has added N rows: it may see other staged rows than `assertions`."""
    return f"SELECT IF(@@row_count = {rows}, NULL, ERROR('{NOT_INSERTED}'));"


def own_tables(settings: Settings) -> list[Table]:
    """The tables of nightshift's own dataset that publishing reads and writes, as they are created."""
    return [
        schema.own_day_table(settings, dead_letters.TABLE, dead_letters.COLUMNS, cluster_by="job"),
        schema.own_day_table(settings, publications.TABLE, publications.COLUMNS, cluster_by="destination"),
        schema.own_day_table(settings, audit.TABLE, audit.COLUMNS, cluster_by="job"),
    ]


def count_statement(spec: JobSpec, settings: Settings, earlier: int = 0) -> str:
    """Counts what destination and dead letter table show as published: all rows of the partition, and those of the run.

    earlier: how many runs it completes; the predictions of each are counted too, in columns earlier_1, earlier_2, ...
    """
    partition = quoted(spec.destination.partition_column)
    names = [f"earlier_{number}" for number in range(1, earlier + 1)]
    counts = [f", COUNTIF({RUN_ID_COLUMN} = @run_id_{number}) AS {name}" for number, name in enumerate(names, 1)]
    return f"""\
SELECT {", ".join(["shown", "predictions", "dead_shown", "dead_letters", *names])}
FROM (
  SELECT COUNT(*) AS shown, COUNTIF({RUN_ID_COLUMN} = @run_id) AS predictions{"".join(counts)}
  FROM {quoted(schema.destination_table(spec, settings))} WHERE {partition} = @partition
) CROSS JOIN (
  SELECT COUNT(*) AS dead_shown, COUNTIF(run_id = @run_id) AS dead_letters
  FROM {dead_letters.of_partition(settings)} AND {dead_letters.IS_PUBLISHED}
)
"""


def publish_parameters(
    spec: JobSpec,
    run: RunRef,
    manifest: RunManifest,
    settings: Settings,
    asked_at: str,
    completes: Redo | None = None,
    prompts: int = 0,
) -> list[ScalarQueryParameter]:
    """asked_at, completes: as in `nightshift.warehouse.publications.parameters`. prompts: how many are staged."""
    return publications.parameters(spec, run, settings, asked_at, completes) + schema.scalar_parameters(
        ("rows", "INT64", manifest.rows),
        ("planned", "INT64", manifest.rows),
        ("predictions", "INT64", manifest.predictions),
        ("prompts", "INT64", prompts),
        ("merkle_root", "STRING", manifest.merkle_root),
        *_earlier_ids(manifest),
        *(
            (f"{name}_{number}", kind, value)
            for number, each in enumerate(manifest.earlier, 1)
            for name, kind, value in (
                ("predictions", "INT64", each.predictions),
                ("merkle_root", "STRING", each.merkle_root),
                ("rows", "INT64", each.committed_rows),
                ("planned", "INT64", each.rows),
            )
        ),
    )


def _earlier_ids(manifest: RunManifest) -> list[tuple[str, str, str]]:
    return [(f"run_id_{number}", "STRING", each.run_id) for number, each in enumerate(manifest.earlier, 1)]


def count_parameters(run: RunRef, settings: Settings, manifest: RunManifest | None = None) -> list[ScalarQueryParameter]:
    return schema.partition_parameters(run.partition) + schema.scalar_parameters(
        ("bucket", "STRING", settings.bucket),
        ("job", "STRING", run.job),
        ("run_id", "STRING", run.run_id),
        *(_earlier_ids(manifest) if manifest else ()),
    )
