"""Several clients change one table at once."""

from __future__ import annotations

import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from local.bigquery.tests.support import Warehouse
from tests.integration.emulators import PYTHON, ROOT, BigQueryEmulator

pytestmark = [pytest.mark.integration, pytest.mark.gate]

RACERS, ROUNDS = 4, 8

SAVE_ONE_RECORD = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from local.bigquery import sources
sources.install()
from local.bigquery import extensions, table_locks
extensions.install()
table_locks.install()
from local_bigquery.catalog import metadata
from local_bigquery.engine import database
from local_bigquery.models import Table
from local_bigquery.settings import settings

settings.data_dir = Path(sys.argv[1])
database.connection()

def save(racer):
    for number in range(100):
        metadata.save(Table(description=f"{racer} {number}"), "p", "d", "t")

with ThreadPoolExecutor(8) as pool:
    list(pool.map(save, range(8)))
print(metadata.load(Table, "p", "d", "t").description.split()[1])
"""


def test_records_are_saved_in_turn(tmp_path: Path) -> None:
    """In the emulator's process: over HTTP two of them meet too rarely."""
    run = subprocess.run([PYTHON, "-c", SAVE_ONE_RECORD, tmp_path], cwd=ROOT, capture_output=True, text=True, check=False)

    assert (run.returncode, run.stdout) == (0, "99\n"), run.stderr


def test_a_table_that_several_clients_create_and_delete_at_once(
    warehouse: Warehouse, bigquery_emulator: BigQueryEmulator
) -> None:
    """Straight to the API: the client library would try some answers again."""
    tables = url_of_tables(warehouse, bigquery_emulator)
    body = {
        "tableReference": {"projectId": warehouse.client.project, "datasetId": warehouse.dataset, "tableId": "t"},
        "schema": {"fields": [{"name": "id", "type": "INTEGER"}]},
    }

    def race(_: int) -> list[requests.Response]:
        with requests.Session() as session:
            return [
                answer for _ in range(ROUNDS) for answer in (session.post(tables, json=body), session.delete(f"{tables}/t"))
            ]

    with ThreadPoolExecutor(RACERS) as pool:
        answers = [answer for found in pool.map(race, range(RACERS)) for answer in found]

    assert [answer.text for answer in answers if answer.status_code not in (200, 204, 404, 409)] == []
    statuses = Counter(answer.status_code for answer in answers)
    assert min(statuses[409], statuses[404]) > 0, "they did meet"
    assert len(list(warehouse.client.list_tables(warehouse.dataset))) == statuses[200] - statuses[204]


def test_a_table_is_seen_with_its_partitioning_or_not_at_all(warehouse: Warehouse, bigquery_emulator: BigQueryEmulator) -> None:
    """One client creates tables, and others read each until it is there."""
    tables = url_of_tables(warehouse, bigquery_emulator)
    names = [f"t{number}" for number in range(ROUNDS)]

    def create(name: str) -> None:
        body = {
            "tableReference": {"projectId": warehouse.client.project, "datasetId": warehouse.dataset, "tableId": name},
            "schema": {"fields": [{"name": "day", "type": "DATE"}]},
            "timePartitioning": {"type": "DAY", "field": "day"},
        }
        requests.post(tables, json=body, timeout=60).raise_for_status()

    def first_seen(name: str) -> dict[str, Any]:
        with requests.Session() as session:
            while (answer := session.get(f"{tables}/{name}", timeout=60)).status_code == 404:
                pass
        answer.raise_for_status()
        seen: dict[str, Any] = answer.json()
        return seen

    with ThreadPoolExecutor(RACERS) as pool:
        for name in names:
            looks = [pool.submit(first_seen, name) for _ in range(RACERS - 1)]
            create(name)
            assert [look.result()["timePartitioning"]["field"] for look in looks] == ["day"] * (RACERS - 1)


def url_of_tables(warehouse: Warehouse, emulator: BigQueryEmulator) -> str:
    return f"{emulator.url}/bigquery/v2/projects/{warehouse.client.project}/datasets/{warehouse.dataset}/tables"
