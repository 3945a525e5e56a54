"""The DAG nightshift_redrive in a real Airflow: its form's values, its connections, and what is in the database afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from nightshift.stream.messages import Dead
from tests.integration.emulators import ANONYMOUS_CONNECTION, PostgresServer, PubSubEmulator
from tests.integration.pubsub import PubSub
from tests.integration.stream.tables import Place, a_death

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Airflow's, with the DAG and no stream."""
    (tmp_path / "dags" / "streams").mkdir(parents=True)
    shutil.copy(ROOT / "dags" / "nightshift_redrive.py", tmp_path / "dags")
    return tmp_path


def airflow(home: Path, *words: str, **variables: str) -> str:
    own = {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "PYTHONPATH": str(ROOT / "plugins"),
    }
    done = subprocess.run(
        [sys.executable, "-m", "airflow", *words],
        env={**os.environ, **own, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


async def died(place: Place, dead: list[Dead]) -> None:
    async with place.opened() as sink:
        await sink.write_dead_letters(dead)


def test_a_run_publishes_what_its_form_selects(
    home: Path, pubsub_emulator: PubSubEmulator, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    pubsub, place = PubSub(pubsub_emulator), Place(postgres_server, tmp_path)
    topic, subscription = pubsub.pair()
    text = next(tmp_path.glob("*.yaml")).read_text()
    (home / "dags" / "streams" / "texts.yaml").write_text(text.replace("subscription: texts", f"subscription: {subscription}"))
    asyncio.run(died(place, [a_death(f"{n}", "too_long" if n < 3 else "rejected") for n in range(5)]))
    parts = psycopg.conninfo.conninfo_to_dict(postgres_server.url)
    named = {"host": "host", "user": "login", "password": "password", "dbname": "schema"}
    connection = {name: parts[part] for part, name in named.items()} | {
        "conn_type": "postgres",
        "port": int(str(parts["port"])),
    }
    deployment = {
        "NIGHTSHIFT_BUCKET": "runs",
        "NIGHTSHIFT_PROJECT": "local",
        "PUBSUB_EMULATOR_HOST": pubsub_emulator.target,
        "AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT": ANONYMOUS_CONNECTION,
        "AIRFLOW_CONN_POSTGRES_DEFAULT": json.dumps(connection),
    }
    airflow(home, "db", "migrate")
    form = {"stream": "texts", "reasons": ["too_long"], "since": "2026-01-01T00:00:00Z", "most": 2}
    said = airflow(home, "dags", "test", "nightshift_redrive", "--conf", json.dumps(form), **deployment)

    assert f"published 2 dead letters of {place.table}_dead_letters (2 too_long) on {topic}; run it again for 1 more" in said
    marked = place.ask("SELECT redriven_as FROM {}_dead_letters WHERE redriven_at IS NOT NULL ORDER BY 1")
    assert marked == [("0.r1",), ("1.r1",)]
    assert pubsub.statistics(subscription)["num_undelivered_messages"] == 2
    pubsub.close()
