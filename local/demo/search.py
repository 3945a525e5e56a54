"""Searches the published table for the packages nearest to a question."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from google.cloud import bigquery

from local import hub
from local.environments import ROOT, python_of
from nightshift.spec import JobSpec

QUERY = """
SELECT name, version, 1 - COSINE_DISTANCE({column}, @question) AS similarity
FROM `{table}`
WHERE {partition_column} = (SELECT MAX({partition_column}) FROM `{table}`)
ORDER BY similarity DESC, name, version
LIMIT @count
"""


@dataclass(frozen=True)
class Hit:
    """One package; similarity is the cosine, 1 at most."""

    name: str
    version: str
    similarity: float


def embed(questions: list[str], spec: JobSpec) -> list[list[float]]:
    """The questions as vectors of the job's model. Raises RuntimeError with the reason if the model cannot run."""
    hub.ensure()
    command = [str(python_of("server")), str(Path(__file__).with_name("embed.py"))]
    command += [spec.model.uri.removeprefix("hf://"), spec.model.revision]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(hub.hub_dir()), "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, input=json.dumps(questions), capture_output=True, text=True, env=environment, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(f"the questions could not be embedded:\n{done.stderr[-2000:]}")
    vectors: list[list[float]] = json.loads(done.stdout)
    return vectors


def nearest(client: bigquery.Client, spec: JobSpec, vector: list[float], count: int = 3) -> list[Hit]:
    """The rows of the newest partition nearest to `vector`, best first. Raises google.api_core.exceptions.NotFound before
    anything is published."""
    to = spec.destination
    query = QUERY.format(table=to.table, column=to.column, partition_column=to.partition_column)
    parameters = [
        bigquery.ArrayQueryParameter("question", "FLOAT64", vector),
        bigquery.ScalarQueryParameter("count", "INT64", count),
    ]
    rows = client.query(query, job_config=bigquery.QueryJobConfig(query_parameters=parameters)).result()
    return [Hit(row.name, row.version, row.similarity) for row in rows]
