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
from local_bigquery.engine import database
from local_bigquery.settings import settings

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
    'CREATE TABLE emulator._results."p:job" (a BIGINT)',
]
names = [None, "kept", "dropped", "before", "after", "seen", "unseen", "p:job"]
places = [("a-project", "d"), ("a-project", "other"), ("a-project", "absent"), ("absent", "d"), ("emulator", "_results")]
listed = 0
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
print(listed)
"""


def test_every_table_and_view_is_found_by_its_name_and_in_its_dataset(tmp_path: Path) -> None:
    done = subprocess.run([str(PYTHON), "-c", COMPARE, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50
