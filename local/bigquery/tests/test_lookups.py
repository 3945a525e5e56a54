"""What the emulator finds in the lake's catalogue is what DuckDB itself would list."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.integration.emulators import PYTHON, ROOT

pytestmark = [pytest.mark.integration, pytest.mark.gate]

COMPARE = """
import sys
from pathlib import Path
from local.bigquery import sources
sources.install()
from local.bigquery import extensions, lookups
extensions.install()
from local_bigquery.catalog import tables
from local_bigquery.engine import database
from local_bigquery.errors import BigQueryError
from local_bigquery.settings import settings
from local_bigquery.sql.rules import partitions
from sqlglot import exp

def columns_by(look, *table):
    try:
        return [field.dump() for field in look(*table)]
    except BigQueryError:
        return None

settings.data_dir = Path(sys.argv[1])
settings.default_project_id = "a-project"
statements = [
    'CREATE SCHEMA "a-project".d',
    'CREATE SCHEMA "a-project".other',
    'CREATE TABLE "a-project".d.kept (a BIGINT)',
    'CREATE TABLE "a-project".d.dropped (a BIGINT)',
    'CREATE TABLE "a-project".d.before (a BIGINT)',
    'CREATE TABLE "a-project".other.kept (a BIGINT)',
    'CREATE VIEW "a-project".d.seen AS SELECT 1 AS a',
    'CREATE VIEW "a-project".d.unseen AS SELECT 1 AS a',
    'DROP TABLE "a-project".d.dropped',
    'DROP VIEW "a-project".d.unseen',
    'ALTER TABLE "a-project".d.before RENAME TO after',
    'CREATE OR REPLACE TABLE "a-project".other.kept (b BIGINT)',
    'DROP SCHEMA "a-project".other CASCADE',
    'CREATE SCHEMA "a-project".other',
    'CREATE TABLE emulator._results."p:job" (a BIGINT NOT NULL, "_PARTITIONTIME" TIMESTAMPTZ)',
]
of_columns = [
    'CREATE TABLE "a-project".d.strict (a BIGINT NOT NULL, s STRUCT(x INT, y VARCHAR[]), "Ä" DATE NOT NULL)',
    'CREATE TABLE "a-project".d.ingested (a BIGINT NOT NULL, "_PARTITIONTIME" TIMESTAMPTZ)',
    'CREATE VIEW "a-project".d.over AS SELECT * FROM "a-project".d.strict',
    'ALTER TABLE "a-project".d.strict ALTER a DROP NOT NULL',
]
names = [None, "kept", "dropped", "before", "after", "seen", "unseen", "p:job"]
places = [("a-project", "d"), ("a-project", "other"), ("a-project", "absent"), ("absent", "d"), ("emulator", "_results")]
listed = described = hidden = 0
for statement in [None, *statements]:
    if statement:
        database.execute(statement)
    else:
        database.connection()
    for place in places:
        for name in names:
            theirs = [row[:2] for row in lookups._objects(*place, name)]
            ours = [row[:2] for row in lookups.objects(*place, name)]
            assert ours == theirs, (statement, place, name, ours, theirs)
            listed += len(ours)
        assert lookups.dataset_exists(*place) == lookups._dataset_exists(*place), (statement, place)
described_tables = [
    *(("a-project", "d", name) for name in ("after", "dropped", "seen", "strict", "ingested", "over", "types")),
    ("p", "_results", "job"),
    ("p", "_results", "none"),
]
for statement in of_columns:
    database.execute(statement)
    for table in described_tables:
        theirs, ours = columns_by(tables.columns, *table), columns_by(lookups.columns, *table)
        assert ours == theirs, (statement, table, ours, theirs)
        described += len(ours or [])
        parsed = exp.table_(*reversed(tables.physical(*table)))
        partitioned = lookups.is_ingestion_partitioned(parsed)
        assert partitioned == partitions._hidden(parsed), (statement, table, partitioned)
        hidden += partitioned
print(listed, described, hidden)
"""


def test_every_dataset_table_view_and_column_is_found_by_its_name_and_nothing_else(tmp_path: Path) -> None:
    done = subprocess.run([str(PYTHON), "-c", COMPARE, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    listed, described, hidden = (int(each) for each in done.stdout.split())
    assert listed > 50
    assert described > 20
    assert hidden > 0
