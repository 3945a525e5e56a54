"""One night's surroundings for each test: a dataset, a bucket, a source table, and the warehouse under test."""

from __future__ import annotations

import io
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.cloud import bigquery
from google.cloud.storage import Client as StorageClient  # type: ignore[import-untyped]
from obstore.store import ObjectStore

from nightshift import exits
from nightshift.operators import bigquery_jobs
from nightshift.planner.bills import seal_measured
from nightshift.run import chunks
from nightshift.run.chunks import Provenance, Result
from nightshift.run.manifest import RunManifest
from nightshift.run.names import WORKERS, RunRef, Work, run_digest
from nightshift.run.plan import ExportedSource, InputFile, Plan, save_plan
from nightshift.settings import Settings
from nightshift.spec import JobSpec
from nightshift.store import create_or_read, open_store
from nightshift.tasks.base import load_kind
from nightshift.warehouse import JobState, Warehouse
from nightshift.warehouse.extract import build_plan
from tests.builders import a_fix, a_spec, bound, opening_of
from tests.integration.driver.canned import CannedEngine
from tests.integration.driver.runs import DriverProcess, PreparedRun
from tests.integration.emulators import ANONYMOUS_CONNECTION, PROJECT, StorageEmulator

PARTITION = "2026-11-20"
OTHER = "2026-11-19"
JOB_TIMEOUT_S = 600.0
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

    @property
    def warehouse(self) -> Warehouse:
        """A new one for each step, as each task is a process of its own."""
        return Warehouse(self.client, self.settings)

    @property
    def run(self) -> RunRef:
        return self.run_of(PARTITION)

    def run_of(self, partition: str, generation: int = 1) -> RunRef:
        return RunRef(
            self.spec.job,
            partition,
            run_digest(self.spec.job, partition, self.spec.semantic(), self.settings.project),
            generation,
        )

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
        """Those that are published, of all deployments that share the dataset, without the columns that tell them and periods
        apart."""
        table = f"`{PROJECT}.{self.settings.dataset}.dead_letters`"
        columns = "* EXCEPT (bucket, partition_time, state, prompt)"
        return self.rows(f"SELECT {columns} FROM {table} WHERE state = 'published' ORDER BY partition_date, ordinal")

    def tables(self) -> set[str]:
        return {table.table_id for table in self.client.list_tables(f"{PROJECT}.{self.settings.dataset}")}

    @cached_property
    def source(self) -> ExportedSource:
        return self.warehouse.read_source(self.spec, PARTITION)

    def extract(self, run: RunRef) -> Plan:
        """The task 'extract', waited for."""
        job = self.warehouse.start_extract(self.spec, run)
        self.succeed(job)
        return self.plan(run, attempt=self.warehouse.job(job).attempt)

    def plan(self, run: RunRef, *, rows: int | None = None, attempt: int = 0) -> Plan:
        """The plan of what an attempt exported. rows: how many rows BigQuery says these were."""
        opening = opening_of(self.store, run)
        return build_plan(
            self.store, run, self.spec, self.source, fix=a_fix(self.spec), opening=opening, rows=rows, attempt=attempt
        )

    def compute(self, run: RunRef, plan: Plan) -> None:
        """The task 'infer': a real driver process, with vectors of `vector_of` from an engine that never fails."""
        with CannedEngine() as engine:
            driver = DriverProcess(PreparedRun(f"gs://{self.settings.bucket}", run, self.spec, plan), engine.url)
            assert driver.finish() == exits.DONE, driver.log

    def seal(
        self,
        run: RunRef,
        names: Sequence[str],
        *,
        dead: Sequence[int] = (),
        per_chunk: int = 2,
        bias: float = 0.0,
        predictions: Sequence[Any] | None = None,
    ) -> RunManifest:
        """Commits the chunks of a run whose rows have these names, and seals it. A sealed run stays as it is."""
        files = self._exported(run, names) if names else ()
        plan = save_plan(
            self.store, run, bound(self.store, run, Plan(run.run_id, len(names), per_chunk, 1, files, source=self.source))
        )
        values = [prediction(ordinal, bias) for ordinal in range(len(names))] if predictions is None else predictions
        for chunk in range(plan.chunk_count):
            self.commit(run, plan.uid, chunk, names, plan.chunk_range(chunk), values=values, dead=dead)
        tolerant = self.spec.dead_letters.model_copy(update={"tolerate": len(dead)})
        return seal_measured(self.store, run, self.spec.model_copy(update={"dead_letters": tolerant}), plan)

    def _exported(self, run: RunRef, names: Sequence[str]) -> tuple[InputFile, ...]:
        path, body = "inputs/0-part-0.parquet", io.BytesIO()
        pq.write_table(_keys(names, range(len(names))), body)
        create_or_read(self.store, f"{run.prefix}/{path}", body.getvalue())
        meta = obstore.head(self.store, f"{run.prefix}/{path}")
        return (InputFile(path, len(names), (len(names),), meta["size"], str(meta["e_tag"])),)

    def commit(
        self,
        run: RunRef,
        plan_uid: str,
        chunk: int,
        names: Sequence[str],
        ordinals: range,
        *,
        values: Sequence[Any],
        dead: Sequence[int] = (),
    ) -> None:
        """Writes one object of the ledger, which holds these ordinals of the run's rows."""
        gone = [ordinal for ordinal in ordinals if ordinal in dead]
        work = run.work(plan_uid)
        create_or_read(
            self.store, work.chunk_path(chunk), _chunk(self.spec, work, chunk, _keys(names, ordinals), ordinals, gone, values)
        )

    def forget(self, run: RunRef) -> None:
        """Deletes everything of the run."""
        for folder in (run.prefix, f"{WORKERS}/{run.prefix}"):
            obstore.delete(self.store, [meta["path"] for meta in obstore.list(self.store, folder).collect()])

    def stage(self, run: RunRef, manifest: RunManifest, *, asked_at: str | None = None) -> list[str]:
        """The load jobs, not waited for."""
        return self.warehouse.start_staging(self.spec, run, manifest, self.source, asked_at=asked_at or opened_at(run))

    def replace_partition(self, run: RunRef, manifest: RunManifest, *, asked_at: str | None = None) -> str:
        """The transaction's job, not waited for. Everything must be staged."""
        return self.warehouse.start_publish(self.spec, run, manifest, self.source, asked_at=asked_at or opened_at(run))

    def verify(self, run: RunRef, manifest: RunManifest, *, asked_at: str | None = None) -> dict[str, Any]:
        return self.warehouse.finish_publish(self.spec, run, manifest, self.source, asked_at=asked_at or opened_at(run))

    def publish(self, run: RunRef, manifest: RunManifest, *, asked_at: str | None = None) -> dict[str, Any]:
        """All three steps, waited for."""
        self.staged(run, manifest, asked_at=asked_at)
        self.succeed(self.replace_partition(run, manifest, asked_at=asked_at))
        return self.verify(run, manifest, asked_at=asked_at)

    def staged(self, run: RunRef, manifest: RunManifest, *, asked_at: str | None = None) -> None:
        """Stages and waits for it."""
        for job_id in self.stage(run, manifest, asked_at=asked_at):
            self.succeed(job_id)


def opened_at(run: RunRef) -> str:
    """When a test's run was opened: each generation a second after the one before."""
    return f"2026-11-21T01:00:{run.generation:02d}+00:00"


def prediction(ordinal: int, bias: float = 0.0) -> list[float]:
    """A vector of values that float32 holds exactly."""
    return [ordinal + 0.5 + bias, -0.25]


def _chunk(
    spec: JobSpec, work: Work, number: int, keys: pa.Table, ordinals: range, gone: Sequence[int], values: Sequence[Any]
) -> bytes:
    results = [
        Result(ordinal, None, "too_long", f"row {ordinal} is too long", 2)
        if ordinal in gone
        else Result(ordinal, values[ordinal], None, None, 1)
        for ordinal in ordinals
    ]
    provenance = Provenance(
        run_id=work.run.run_id,
        plan_uid=work.plan_uid,
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
    return chunks.encode(keys, results, load_kind(spec).prediction_type, provenance)


def _keys(names: Sequence[str], ordinals: range) -> pa.Table:
    of_rows = pa.array([names[ordinal] for ordinal in ordinals], pa.string())
    return pa.table({"name": of_rows, "version": pa.array(list(ordinals), pa.int64())})


def make_night(client: bigquery.Client, storage: StorageClient, monkeypatch: pytest.MonkeyPatch, storage_url: str) -> Night:
    name = f"wh{uuid.uuid4().hex[:10]}"
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_url)
    monkeypatch.setenv("AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT", ANONYMOUS_CONNECTION)
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
        # There is no such model, so nothing says how fast a worker is but the job.
        compute__rows_per_worker_per_second=20,
    )
    settings = Settings(bucket=name, project=PROJECT, dataset=f"{name}_own")
    return Night(client, open_store(f"gs://{name}"), settings, spec)


@pytest.fixture
def night(
    bigquery_client: bigquery.Client,
    storage_client: StorageClient,
    storage_emulator: StorageEmulator,
    monkeypatch: pytest.MonkeyPatch,
) -> Night:
    # Operators are called without a triggerer, so however slow the machine is, none may defer.
    monkeypatch.setattr(bigquery_jobs, "SHORT_WAIT_S", 600.0)
    return make_night(bigquery_client, storage_client, monkeypatch, storage_emulator.url)
