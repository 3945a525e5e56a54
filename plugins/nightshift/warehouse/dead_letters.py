"""The table of dead letters: its columns, and the statements that write and count its rows. Pure SQL text.

Its rows have two states:

- `PUBLISHED`, which NULL stands for too: of the run that the partition shows. The transaction that publishes a run replaces all
  dead letters of the partition by those of this run (`nightshift.warehouse.publish`).
- `FAILED`: of a run whose night ended without publishing it. They replace those that the same run had left before, and never
  touch published ones. A publication of the partition removes them; and once the run, or a redo that completes it, has been
  published, it leaves none: what is still dead then, the publication says.

So whoever reads only published rows sees what they always saw, and a run never has rows of both states for long: whichever of
the two transactions ends later removes the failed ones (`delete_failed`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nightshift.run.names import FAILED, PUBLISHED
from nightshift.warehouse import publications, schema
from nightshift.warehouse.errors import NOT_STAGED
from nightshift.warehouse.schema import quoted

if TYPE_CHECKING:
    from nightshift.run.names import RunRef
    from nightshift.settings import Settings
    from nightshift.spec import JobSpec

TABLE: Final = "dead_letters"
COLUMNS: Final[Mapping[str, str]] = {
    "job": "STRING",
    "partition_date": "DATE",
    "run_id": "STRING",
    "ordinal": "INT64",
    "key": "STRING",
    "reason": "STRING",
    "message": "STRING",
    "attempts": "INT64",
    "bucket": "STRING",
    "partition_time": "TIMESTAMP",
    "state": "STRING",
    "prompt": "STRING",
}
"""key: a JSON object of the key columns, as text. attempts: requests that the row was part of. bucket: the deployment's.
partition_time: NULL for a day. state: see the module. prompt: what the row was asked, as far as it is kept (`Prompts`); NULL
otherwise, and for a row that could not be rendered: message says why."""

PROMPT_FIELDS: Final = {"ordinal": "INT64", "prompt": "STRING"}
"""What an object of `Prompts` holds."""
IS_PUBLISHED: Final = f"IFNULL(state, '{PUBLISHED}') = '{PUBLISHED}'"
_OF_RUN: Final = "run_id = @run_id"
TWICE: Final = "A chunk of the run has a dead letter twice: another program wrote it"


@dataclass(frozen=True)
class Prompts:
    """What the first dead letters of a run were asked. path: of a Parquet object with `PROMPT_FIELDS`. rows: of this object."""

    path: str
    rows: int


def table(settings: Settings) -> str:
    """``project.dataset.table``."""
    return schema.own_table(settings, TABLE)


def of_partition(settings: Settings) -> str:
    """A FROM clause: the dead letters of the partition by this job of this deployment, in any state.

    Parameters: job, bucket and those of `nightshift.warehouse.schema.partition_parameters`.
    """
    return f"{quoted(table(settings))} WHERE job = @job AND {schema.OWN_PARTITION} AND bucket = @bucket"


def prompts_table(run: RunRef, settings: Settings) -> str:
    """The staging table of a run's prompts."""
    return schema.staging_table(settings, run, "_prompts")


def insert(spec: JobSpec, settings: Settings, staged: str, prompts: str | None, state: str) -> str:
    """Adds the dead letters among the staged rows (a FROM clause). Parameters: those of `of_partition`, and run_id.

    prompts: the staging table with some of their prompts, if there is one.
    """
    key = ", ".join(f"chunk.{quoted(name)} AS {quoted(name)}" for name in spec.source.key)
    joined = f" LEFT JOIN {quoted(prompts)} AS rendered ON rendered.ordinal = chunk.ordinal" if prompts else ""
    return f"""\
INSERT INTO {quoted(table(settings))}
({", ".join(COLUMNS)})
SELECT @job, @partition_date, @run_id, chunk.ordinal, TO_JSON_STRING(STRUCT({key})), chunk.dead_reason, chunk.dead_message,
  chunk.attempts, @bucket, @partition_time, '{state}', {"rendered.prompt" if prompts else "CAST(NULL AS STRING)"}
FROM {staged} AS chunk{joined}
WHERE chunk.dead_reason IS NOT NULL;"""


def prompts_assertion(prompts: str) -> str:
    """A query that fails unless the staging table holds all prompts. Parameter: prompts."""
    return f"SELECT IF((SELECT COUNT(*) FROM {quoted(prompts)}) = @prompts, NULL, ERROR('{NOT_STAGED}'));"


def failed_script(spec: JobSpec, settings: Settings, staged: str | None, prompts: str | None) -> str:
    """Replaces what a run has left in the state `FAILED` by the dead letters among the staged rows; none if nothing is staged.

    It always deletes, so that of two such scripts at once BigQuery cancels one, and may run twice. Parameters: those of
    `insert`; rows, and prompts if there are some.
    """
    inserted = "" if staged is None else insert(spec, settings, staged, prompts, FAILED)
    return f"""\
{_staged_assertion(staged) if staged else ""}
{prompts_assertion(prompts) if staged and prompts else ""}
BEGIN TRANSACTION;
DELETE FROM {_failed_of_run(settings)};
{inserted}
COMMIT TRANSACTION;
"""


def _staged_assertion(staged: str) -> str:
    """A query that fails unless all rows are staged, and no dead letter twice. Parameter: rows."""
    return f"""\
SELECT CASE
  WHEN staged_rows != @rows THEN ERROR('{NOT_STAGED}')
  WHEN dead != ordinals THEN ERROR('{TWICE}')
END
FROM (
  SELECT COUNT(*) AS staged_rows, COUNTIF(dead_reason IS NOT NULL) AS dead,
    COUNT(DISTINCT IF(dead_reason IS NULL, NULL, ordinal)) AS ordinals
  FROM {staged}
);"""


def delete_failed(settings: Settings) -> str:
    """Removes the rows that a run has left in the state `FAILED`. Parameters: those of `of_partition`, and run_id."""
    return f"BEGIN TRANSACTION;\nDELETE FROM {_failed_of_run(settings)};\nCOMMIT TRANSACTION;\n"


def _failed_of_run(settings: Settings) -> str:
    return f"{of_partition(settings)} AND {_OF_RUN} AND state = '{FAILED}'"


def count_of_run(settings: Settings) -> str:
    """How many rows the run has: published, failed; and how often it was published, by itself or by a redo that completes it.
    Parameters: those of `of_partition`, and run_id."""
    return (
        f"SELECT published, failed, publications FROM (SELECT COUNTIF({IS_PUBLISHED}) AS published, "
        f"COUNTIF(state = '{FAILED}') AS failed FROM {of_partition(settings)} AND {_OF_RUN}) "
        f"CROSS JOIN (SELECT COUNT(*) AS publications FROM {publications.of_run(settings)})"
    )
