"""One night's surroundings for each test: a dataset, a bucket, a source table, and the warehouse under test."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import obstore
import pyarrow as pa
import pytest
from google.cloud import bigquery
from google.cloud.storage import Client as StorageClient  # type: ignore[import-untyped]
from obstore.store import ObjectStore

from nightshift.run import chunks
from nightshift.run.chunks import Provenance, Result
from nightshift.run.names import RunRef, run_digest
from nightshift.run.seal import merkle_root
from nightshift.settings import Settings
from nightshift.spec import JobSpec
from nightshift.store import open_store
from nightshift.tasks.base import load
from nightshift.warehouse import JobState, Warehouse
from tests.builders import a_spec
from tests.integration.emulators import PROJECT, StorageEmulator

PARTITION = "2026-11-20"
OTHER = "2026-11-19"
JOB_TIMEOUT_S = 120.0
TEXTS: dict[str, str | None] = {
    "alpha": "plain",
    "beta": None,
    "gamma": "smile \N{GRINNING FACE} <b>html</b>",
    "delta": "nul \x00 inside",
    "epsilon": "",
}


@dataclass
class Night:
    """A job on a source table of its own, in a dataset and a bucket of its own."""

    client: bigquery.Client
    store: ObjectStore
    settings: Settings
    spec: JobSpec
    warehouse: Warehouse

    @property
    def run(self) -> RunRef:
        return self.run_of(PARTITION)

    def run_of(self, partition: str, generation: int = 1) -> RunRef:
        return RunRef(self.spec.job, partition, run_digest(self.spec.job, partition, self.spec.semantic()), generation)

    @property
    def destination(self) -> str:
        return f"{PROJECT}.{self.spec.destination.table}"

    def finished(self, job_id: str) -> JobState:
        """Waits for a job and says how it ended."""
        deadline = time.monotonic() + JOB_TIMEOUT_S
        while not (state := self.warehouse.job(job_id)).done:
            assert time.monotonic() < deadline, f"{job_id} does not end"
            time.sleep(0.02)
        return state

    def succeed(self, job_id: str) -> JobState:
        state = self.finished(job_id)
        assert (state.done, state.error) == (True, None)
        return state

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.client.query(sql).result()]

    def shown(self, partition: str = PARTITION) -> list[tuple[Any, ...]]:
        """Everything that the destination's partition holds, in order."""
        return self.rows(
            f"SELECT * FROM `{self.destination}` WHERE snapshot_date = DATE '{partition}' ORDER BY nightshift_ordinal"
        )

    def dead_letters(self) -> list[tuple[Any, ...]]:
        return self.rows(f"SELECT * FROM `{PROJECT}.{self.settings.dataset}.dead_letters` ORDER BY partition_date, ordinal")

    def tables(self) -> set[str]:
        return {table.table_id for table in self.client.list_tables(f"{PROJECT}.{self.settings.dataset}")}

    def seal(
        self,
        run: RunRef,
        names: Sequence[str],
        *,
        dead: Sequence[int] = (),
        per_chunk: int = 2,
        bias: float = 0.0,
        predictions: Sequence[Any] | None = None,
    ) -> dict[str, Any]:
        """Writes the chunks of a run whose rows have these names, and returns the manifest of it."""
        values = [prediction(ordinal, bias) for ordinal in range(len(names))] if predictions is None else predictions
        entries: list[dict[str, Any]] = []
        for number, start in enumerate(range(0, len(names), per_chunk)):
            ordinals = range(start, min(start + per_chunk, len(names)))
            gone = [ordinal for ordinal in ordinals if ordinal in dead]
            body = _chunk(self.spec, run, number, names, ordinals, gone, values)
            path = f"{run.prefix}/ledger/chunk-{number:08d}.parquet"
            obstore.put(self.store, path, body)
            sizes = {"rows": len(ordinals), "predictions": len(ordinals) - len(gone), "dead_letters": len(gone)}
            entries.append({"chunk": number, "path": path, "sha256": hashlib.sha256(body).hexdigest(), **sizes})
        return {
            "version": 1,
            "run_id": run.run_id,
            "job": run.job,
            "partition": run.partition,
            "generation": run.generation,
            "rows": len(names),
            "predictions": len(names) - len(dead),
            "dead_letters": len(dead),
            "dead_reasons": {"too_long": len(dead)} if dead else {},
            "duplicates": 0,
            "prompt_tokens": 10 * len(names),
            "attempts": ["pod-0"],
            "merkle_root": merkle_root([entry["sha256"] for entry in entries]),
            "chunks": entries,
            "sealed_at": "2026-11-21T02:00:00+00:00",
        }

    def publish(self, run: RunRef, manifest: dict[str, Any]) -> dict[str, Any]:
        """All three steps, waited for."""
        for job_id in self.warehouse.start_staging(self.spec, run, manifest):
            self.succeed(job_id)
        self.succeed(self.warehouse.start_publish(self.spec, run, run.partition, manifest))
        return self.warehouse.finish_publish(self.spec, run, run.partition, manifest)


def prediction(ordinal: int, bias: float = 0.0) -> list[float]:
    """A vector of values that float32 holds exactly."""
    return [ordinal + 0.5 + bias, -0.25]


def _chunk(
    spec: JobSpec, run: RunRef, number: int, names: Sequence[str], ordinals: range, gone: Sequence[int], values: Sequence[Any]
) -> bytes:
    results = [
        Result(ordinal, None, "too_long", f"row {ordinal} is too long", 2)
        if ordinal in gone
        else Result(ordinal, values[ordinal], None, None, 1)
        for ordinal in ordinals
    ]
    keys = pa.table(
        {
            "name": pa.array([names[ordinal] for ordinal in ordinals], pa.string()),
            "version": pa.array(list(ordinals), pa.int64()),
        }
    )
    provenance = Provenance(
        run_id=run.run_id,
        chunk=number,
        attempt="pod-0",
        node="node",
        model={"name": "m", "uri": "hf://org/m", "revision": "r1"},
        engine_version="0",
        started="2026-11-21T01:00:00+00:00",
        finished="2026-11-21T01:00:01+00:00",
        predictions=len(ordinals) - len(gone),
        dead_letters=len(gone),
        prompt_tokens=10 * len(ordinals),
    )
    return chunks.encode(keys, results, load(spec).prediction_type, provenance)


def make_night(client: bigquery.Client, storage: StorageClient, monkeypatch: pytest.MonkeyPatch, storage_url: str) -> Night:
    name = f"wh{uuid.uuid4().hex[:10]}"
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_url)
    storage.create_bucket(name)
    client.create_dataset(name)
    fields = [
        bigquery.SchemaField("name", "STRING"),
        bigquery.SchemaField("version", "INT64"),
        bigquery.SchemaField("text", "STRING"),
        bigquery.SchemaField("day", "DATE"),
        bigquery.SchemaField("parts", "STRING", "REPEATED"),
    ]
    rows: list[dict[str, Any]] = [
        {"name": key, "version": number, "text": text, "day": PARTITION, "parts": []}
        for number, (key, text) in enumerate(TEXTS.items())
    ]
    rows.append({"name": "other day", "version": 0, "text": "other day", "day": OTHER, "parts": []})
    config = bigquery.LoadJobConfig(schema=fields)
    client.load_table_from_json(rows, f"{PROJECT}.{name}.source", job_config=config).result()
    spec = a_spec(
        source={"query": f"SELECT * FROM `{name}.source` WHERE day = @partition", "key": ["name", "version"]},
        destination={"table": f"{name}.vectors", "column": "vector", "partition_column": "snapshot_date"},
    )
    settings = Settings(bucket=name, project=PROJECT, dataset=f"{name}_own")
    return Night(client, open_store(f"gs://{name}"), settings, spec, Warehouse(client, settings))


@pytest.fixture
def night(
    bigquery_client: bigquery.Client,
    storage_client: StorageClient,
    storage_emulator: StorageEmulator,
    monkeypatch: pytest.MonkeyPatch,
) -> Night:
    return make_night(bigquery_client, storage_client, monkeypatch, storage_emulator.url)
