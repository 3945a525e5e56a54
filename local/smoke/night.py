"""A night of a thousand rows: all six tasks, on the deployment's own cluster, by Airflow's ``dags test``."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from local.smoke.deployment import Deployment
from local.smoke.place import Place
from nightshift.planner import speeds
from nightshift.run.names import WORKERS
from nightshift.spec import load

ROWS: Final = 1000
LIMIT_S: Final = 3600.0
"""Longer than the job's deadline, with the wait for a node before it and the warehouse after it."""
SETUP_S: Final = 300.0


@dataclass(frozen=True)
class Night:
    """published, keys: rows of the destination and distinct keys among them. seconds: of the whole DAG run."""

    published: int
    keys: int
    seconds: float

    @property
    def whole(self) -> bool:
        return self.published == self.keys == ROWS


@contextmanager
def prepared(place: Place, deployment: Deployment, like: Path, profile: str) -> Iterator[Mapping[str, Any]]:
    """A job over `ROWS` rows of its own, written down for the deployment. Removes the objects of its runs at the end.

    like: a job file, for model and engine. profile: of its compute.
    """
    day = (datetime.now(UTC) - timedelta(days=1)).date().isoformat()
    spec = load(like)
    place.query(
        f"CREATE TABLE `{place.table('rows')}` AS SELECT n, FORMAT('Row %d of a smoke test.', n) AS text, DATE '{day}' AS day "
        f"FROM UNNEST(GENERATE_ARRAY(1, {ROWS})) AS n"
    )
    name = f"smoke-{uuid.uuid4().hex[:12]}"
    job = {
        "job": name,
        "owner": "smoke",
        "schedule": None,
        "start_date": day,
        "source": {"query": f"SELECT n, text FROM `{place.table('rows')}` WHERE day = @partition", "key": ["n"]},
        "task": "embedding",
        "request": {"input": "{{ text }}"},
        "model": spec.model.model_dump(mode="json"),
        "engine": spec.engine.model_dump(mode="json"),
        "destination": {"table": place.table("vectors"), "column": "vector", "partition_column": "day"},
        "dead_letters": {"tolerate": 0},
        "deadline": "30m",
        "compute": {"profile": profile, "workers": 1},
        "chunk_rows": 100,
    }
    deployment.add_job(job)
    try:
        yield job
    finally:
        _delete_traces(place, deployment.bucket, name)


def _delete_traces(place: Place, bucket: str, job: str) -> None:
    """The folders of its runs, and the records of their speed, from which no real job is to be planned."""
    records = [blob for blob in place.storage.list_blobs(bucket, prefix=f"{speeds.FOLDER}/") if job in blob.name]
    runs = [blob for folder in (f"{job}/", f"{WORKERS}/{job}/") for blob in place.storage.list_blobs(bucket, prefix=folder)]
    for blob in [*records, *runs]:
        blob.delete()


def spend(place: Place, deployment: Deployment, job: Mapping[str, Any]) -> Night:
    """Runs the job for its first day. Raises `local.smoke.deployment.CommandFailed` and GoogleAPICallError."""
    deployment.run("airflow", "db", "migrate", limit_s=SETUP_S)
    began = time.monotonic()
    conf = f'{{"partition": "{job["start_date"]}"}}'
    deployment.run("airflow", "dags", "test", job["job"], "--conf", conf, limit_s=LIMIT_S)
    seconds = time.monotonic() - began
    [(published, keys)] = place.query(f"SELECT COUNT(*), COUNT(DISTINCT n) FROM `{job['destination']['table']}`")
    return Night(int(published), int(keys), seconds)
