"""P12: the tasks around `infer` on ten million rows, compared with the plain jobs that move the same bytes."""

from __future__ import annotations

import itertools
import multiprocessing
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import obstore
from google.cloud import bigquery

from benchmarks.emulated import emulated_bucket
from benchmarks.report import Report
from nightshift.run import chunks
from nightshift.run import seal as sealing
from nightshift.run.chunks import Provenance, Result
from nightshift.run.inputs import InputReader
from nightshift.run.manifest import load_manifest
from nightshift.run.names import RunRef, run_digest
from nightshift.run.plan import load_plan
from nightshift.run.sealed_objects import check_sealed
from nightshift.settings import Settings
from nightshift.spec import JobSpec
from nightshift.store import open_store
from nightshift.tasks.base import load_kind
from nightshift.warehouse import Warehouse
from nightshift.warehouse.extract import build_plan
from tests.builders import a_fix, a_spec
from tests.integration.emulators import ANONYMOUS, PROJECT, start_bigquery

ROWS: Final = 10_000_000
FEWER: Final = 2_000_000
PER_CHUNK: Final = 50_000
DAYS: Final = ("2026-11-20", "2026-11-21")
"""Two nights over the same rows: ours goes first on one, the raw copy on the other."""
ASKED_AT: Final = "2026-11-21T01:00:00+00:00"
MIB: Final = 1 << 20
METHOD: Final = """
Extract, seal and publish run as in the tasks, against the project's emulators on this machine: export, plan from the files'
footers, proof over every chunk, comparison of object versions before and after the load, staging, assertions, transaction,
count. The peer is a raw copy of the same bytes by the same emulators: EXPORT DATA of the same query, a load job of the same
chunk objects, and one transaction that deletes the partition and inserts the same columns. It proves nothing. The rows have
two key columns and a score each, in chunks of 50,000 rows. What `infer` does (the chunks) is made before and not timed. Each
side does two nights and goes first on one of them, after an export that is not timed; the times are the sums. Both sides poll
their jobs every 50 ms. BigQuery itself is not measured: its emulator runs on DuckDB, on the same two cores. Each task has a
process of its own. The time of its imports does not count; its memory is the peak RSS (VmHWM).
"""


@dataclass(frozen=True)
class Place:
    """The two emulators, as any process reaches them, and a run there."""

    bigquery_url: str
    bucket: str
    rows: int
    day: str

    @property
    def spec(self) -> JobSpec:
        return a_spec(
            task="score",
            request={"text_1": "{{ name }}", "text_2": "{{ text }}"},
            source={
                "query": f"SELECT name, version, text FROM `bench.source_{self.rows}` WHERE day <= @partition",
                "key": ["name", "version"],
            },
            destination={"table": f"bench.scores_{self.rows}", "column": "score", "partition_column": "snapshot_date"},
            chunk_rows=PER_CHUNK,
        )

    @property
    def run(self) -> RunRef:
        return RunRef(self.spec.job, self.day, run_digest(self.spec.job, self.day, self.spec.semantic()))

    @cached_property
    def client(self) -> bigquery.Client:
        return bigquery.Client(project=PROJECT, credentials=ANONYMOUS, client_options={"api_endpoint": self.bigquery_url})

    @cached_property
    def warehouse(self) -> Warehouse:
        return Warehouse(self.client, Settings(bucket=self.bucket, project=PROJECT, dataset="bench_own"))

    def finish(self, job: str) -> None:
        """Waits for a job of either side. The client's own wait pauses for a random time, of a second at first."""
        while not (state := self.warehouse.job(job)).done:
            time.sleep(0.05)
        assert state.error is None, state.error


def measure(report: Report, folder: Path, quick: bool) -> None:
    sizes = (100_000, 200_000) if quick else (FEWER, ROWS)
    peaks: list[dict[str, float]] = []
    with _emulators(folder) as (url, bucket):
        for rows in sizes:
            _source(Place(url, bucket, rows, DAYS[0]))
            # The first reading of a table takes longer, and would be ours.
            _in_a_process(export_raw, Place(url, bucket, rows, DAYS[0]))
            done = [_night(Place(url, bucket, rows, day), ours_first=day == DAYS[0]) for day in DAYS]
            seconds = {task.__name__: sum(night[task.__name__][0] for night in done) for task in (*OURS, *RAW)}
            peaks.append({task.__name__: max(night[task.__name__][1] for night in done) for task in OURS})
            ours, raw = (sum(seconds[task.__name__] for task in side) for side in (OURS, RAW))
            last = rows == sizes[-1]
            report.add(
                f"extract + seal + publish of {rows:,} rows / raw copy",
                f"{ours / raw:.2f} ({ours:.1f} / {raw:.1f} s)",
                "<= 1.3" if last else "",
                ours <= 1.3 * raw if last else None,
            )
            report.note(f"{rows:,} rows, two nights: " + ", ".join(f"{name} {each:.1f} s" for name, each in seconds.items()))
    few, many = peaks
    for name in few:
        text = f"{many[name] / few[name]:.2f} ({few[name]:.0f} / {many[name]:.0f} MiB)"
        report.add(f"peak memory of {name}, {sizes[-1]:,} rows / {sizes[0]:,}", text, "<= 1.25", many[name] <= 1.25 * few[name])


def _night(place: Place, *, ours_first: bool) -> dict[str, tuple[float, float]]:
    """Seconds and peak memory in MiB of each task of both sides, by name."""
    before: list[Task] = [extract, export_raw]
    after: list[list[Task]] = [[seal, publish], [load_raw, insert_raw]]
    turn = 1 if ours_first else -1
    tasks = [*before[::turn], infer, *itertools.chain(*after[::turn])]
    return {task.__name__: _in_a_process(task, place) for task in tasks}


def extract(place: Place) -> None:
    place.finish(place.warehouse.start_extract(place.spec, place.run))
    store = open_store(f"gs://{place.bucket}")
    source = place.warehouse.read_source(place.spec, place.day)
    plan = build_plan(store, place.run, place.spec, source, fix=a_fix(place.spec), rows=place.rows, attempt=0)
    assert plan.rows == place.rows


def infer(place: Place) -> None:
    """Writes every chunk as a driver would."""
    store, run, spec = open_store(f"gs://{place.bucket}"), place.run, place.spec
    plan = load_plan(store, run)
    assert plan is not None
    reader, kind = InputReader(store, run, plan, spec.source.key), load_kind(spec)
    for number in range(plan.chunk_count):
        ordinals = plan.chunk_range(number)
        results = [Result(ordinal, ordinal % 1000 / 1000, None, None, 1) for ordinal in ordinals]
        provenance = Provenance(
            run.run_id, number, "pod-0", "node", {}, "0", "", "", len(ordinals), 0, len(ordinals), plan_uid=plan.uid
        )
        body = chunks.encode(reader.read(number).select(list(spec.source.key)), results, kind.prediction_type, provenance)
        obstore.put(store, run.work(plan.uid).chunk_path(number), body)


def seal(place: Place) -> None:
    store = open_store(f"gs://{place.bucket}")
    plan = load_plan(store, place.run)
    assert plan is not None
    assert sealing.seal(store, place.run, place.spec, plan).predictions == place.rows


def publish(place: Place) -> None:
    """As the task does it."""
    store, warehouse = open_store(f"gs://{place.bucket}"), place.warehouse
    plan, manifest = load_plan(store, place.run), load_manifest(store, place.run)
    assert plan is not None
    assert plan.source is not None
    assert manifest is not None
    check_sealed(store, place.run, manifest)
    for job in warehouse.start_staging(place.spec, place.run, manifest, plan.source, asked_at=ASKED_AT):
        place.finish(job)
    check_sealed(store, place.run, manifest)
    place.finish(warehouse.start_publish(place.spec, place.run, manifest, plan.source, asked_at=ASKED_AT))
    published = warehouse.finish_publish(place.spec, place.run, manifest, plan.source, asked_at=ASKED_AT)
    assert published["predictions"] == place.rows


def export_raw(place: Place) -> None:
    uri = f"gs://{place.bucket}/raw/{place.rows}-{place.day}-*.parquet"
    options = f"uri='{uri}', format='PARQUET', compression='SNAPPY', overwrite=true"
    _query(place, f"EXPORT DATA OPTIONS ({options}) AS {place.spec.source.query}")


def load_raw(place: Place) -> None:
    """Loads the chunk objects."""
    config = bigquery.LoadJobConfig(source_format="PARQUET", write_disposition="WRITE_TRUNCATE")
    plan = load_plan(open_store(f"gs://{place.bucket}"), place.run)
    assert plan is not None
    uri = f"gs://{place.bucket}/{place.run.work(plan.uid).ledger_folder}/*"
    place.finish(place.client.load_table_from_uri(uri, _raw_table(place), job_config=config).job_id)


def insert_raw(place: Place) -> None:
    """Replaces a partition by what was loaded."""
    shown = f"{PROJECT}.bench.raw_shown_{place.rows}"
    columns = "name STRING, version INT64, score FLOAT64, snapshot_date DATE, run_id STRING, row_ordinal INT64"
    _query(place, f"CREATE TABLE IF NOT EXISTS `{shown}` ({columns}) PARTITION BY snapshot_date")
    _query(
        place,
        f"""
        BEGIN TRANSACTION;
        DELETE FROM `{shown}` WHERE snapshot_date = @partition;
        INSERT INTO `{shown}`
        SELECT name, version, prediction, @partition, '{place.run.run_id}', ordinal FROM `{_raw_table(place)}`;
        COMMIT TRANSACTION;""",
    )


def _raw_table(place: Place) -> str:
    return f"{PROJECT}.bench.raw_{place.rows}_{place.day.replace('-', '_')}"


Task = Callable[[Place], None]
OURS: Final[tuple[Task, ...]] = (extract, seal, publish)
RAW: Final[tuple[Task, ...]] = (export_raw, load_raw, insert_raw)


def _query(place: Place, sql: str) -> None:
    config = bigquery.QueryJobConfig(query_parameters=[bigquery.ScalarQueryParameter("partition", "DATE", place.day)])
    place.finish(place.client.query(sql, job_config=config).job_id)


def _source(place: Place) -> None:
    """Rows of about 60 bytes."""
    step = 1_000_000
    table = f"`bench.source_{place.rows}`"
    _query(place, f"CREATE TABLE {table} (name STRING, version INT64, text STRING, day DATE) PARTITION BY day")
    for start in range(0, place.rows, step):
        numbers = f"UNNEST(GENERATE_ARRAY({start}, {min(start + step, place.rows) - 1})) AS n"
        text = "CONCAT('What package number ', CAST(n AS STRING), ' is good for')"
        values = f"CONCAT('package-', CAST(n AS STRING)), n, {text}, @partition"
        _query(place, f"INSERT INTO {table} SELECT {values} FROM {numbers}")


def _in_a_process(task: Task, place: Place) -> tuple[float, float]:
    """Seconds, and the process's peak memory in MiB."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_timed, task, place).result()


def _timed(task: Task, place: Place) -> tuple[float, float]:
    began = time.monotonic()
    task(place)
    (kilobytes,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return time.monotonic() - began, int(kilobytes) * 1024 / MIB


@contextmanager
def _emulators(folder: Path) -> Iterator[tuple[str, str]]:
    """BigQuery's address, and a bucket. Processes started meanwhile find the storage."""
    with emulated_bucket(folder / "storage", "bench") as storage:
        warehouse = start_bigquery(folder / "warehouse", storage)
        try:
            warehouse.client().create_dataset("bench")
            yield warehouse.url, "bench"
        finally:
            warehouse.kill()
