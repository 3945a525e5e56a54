"""P6b: a plan of a billion rows: what resume and status cost in time and memory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import obstore

from benchmarks.emulated import emulated_bucket
from benchmarks.processes import NIGHTSHIFT, Canned, Driver, ending, environment, memory_mib
from benchmarks.report import ROOT, Report
from benchmarks.runs import sentences, write
from nightshift.run import opening
from nightshift.run.names import RunRef
from nightshift.run.plan import InputFile, Plan, save_plan
from nightshift.store import open_store
from tests.builders import a_chunk, a_spec, bound

ROWS: Final = 1_000_000_000
WORKERS: Final = 1_000
PER_FILE: Final = 5_000_000
PER_GROUP: Final = 50_000
SMALL: Final = 50_000
BUCKET: Final = "bench"
METHOD: Final = """
A plan of 1,000,000,000 rows in 200 files of 100 row groups, with 1,000 shards. Every second chunk is committed: one real
chunk object under all those names. Only one input file exists, the one that the first request needs; for this measure all
other names point to it too. Resume is the time from the process's start to the arrival of its first request at a canned
engine. It includes imports, spec, plan, LIST and reading a row group; the run of 50,000 rows shows how much of that any run
costs. The helper has no home range and lists everything before it opens a chunk. RSS is read at the first request. Status is
`nightshift status --json` as a process; it reads each chunk's footer. "Folder" is a local folder: it has no order, so any
LIST of it reads and sorts all names. "Emulator" is the project's Cloud Storage emulator on this machine, over HTTP, with
pages of 1,000 names.
"""


def measure(report: Report, folder: Path, quick: bool) -> None:
    rows = ROWS // 100 if quick else ROWS
    with _local(folder / "small") as (base, _):
        _resumes(report, f"{SMALL:,} rows, folder", *_plan(base, SMALL, 10_000, 1), folder)
    with _local(folder / "ten") as (base, path):
        url, run, plan = _plan(base, rows, 10_000, WORKERS)
        _commit_links(path, run, plan)
        _show(report, f"{rows:,} rows in {plan.chunk_count:,} chunks, folder", url, run, plan, folder)
    with emulated_bucket(folder / "emulator", BUCKET):
        url, run, plan = _plan(f"gs://{BUCKET}", rows, 50_000, WORKERS)
        _commit_puts(f"gs://{BUCKET}", run, plan)
        _show(report, f"{rows:,} rows in {plan.chunk_count:,} chunks, emulator", url, run, plan, folder)


def _show(report: Report, name: str, url: str, run: RunRef, plan: Plan, folder: Path) -> None:
    _resumes(report, name, url, run, plan, folder)
    began = time.monotonic()
    process = subprocess.Popen([*NIGHTSHIFT, "status", "--json", url], env=environment(), stdout=subprocess.PIPE)
    peak = 0.0
    while process.poll() is None:
        peak = max(peak, (memory_mib(process.pid) or (0.0, 0.0))[0])
        time.sleep(0.05)
    assert process.stdout is not None
    done = json.loads(process.stdout.read())
    report.add(f"status, {name}", f"{time.monotonic() - began:.1f} s, {peak:.0f} MiB peak")
    report.note(
        f"status reports {done.get('chunks_committed', done.get('chunks'))} chunks; plan.json {_size(url, run):,.0f} KiB"
    )


def _resumes(report: Report, name: str, url: str, run: RunRef, plan: Plan, folder: Path) -> None:
    for role, index in (("an owner", 0), ("a helper", None)):
        seconds, rss = _resume(url, index, folder / f"{role[-5:]}-{time.monotonic_ns()}.log")
        report.add(f"resume of {role}, {name}", f"{seconds:.2f} s to the first request, {rss:.0f} MiB")


def _resume(url: str, index: int | None, log: Path) -> tuple[float, float]:
    """Seconds from the start to the first request, and the resident memory then."""
    # Seats for one request, which takes an hour: only the first one matters.
    with Canned(seats=256, seconds=3600.0, width=8) as engine:
        began = time.monotonic()
        # A driver without an index does not know the revision that its engine serves.
        driver = Driver(url, engine.url, log, index=index, NIGHTSHIFT_MODEL_REVISION=a_spec().model.revision)
        with ending(driver):
            while not (counts := engine.counts())["first"]:
                assert driver.process.poll() is None, log.read_text()[-1000:]
                time.sleep(0.02)
            sizes = memory_mib(driver.process.pid)
        assert sizes is not None
        return counts["first"] - began, sizes[1]


def _plan(base: str, rows: int, chunk_rows: int, workers: int) -> tuple[str, RunRef, Plan]:
    """A run whose input files are all the same file."""
    store = open_store(base)
    spec = a_spec(request__rows_per_request=256, engine__max_num_seqs=1024)
    run = opening.open_run(store, spec, "2026-11-20", opened_by="benchmark")
    per_file = min(rows, PER_FILE)
    path = f"{run.prefix}/inputs/part.parquet"
    texts = sentences(range(PER_GROUP))
    scratch = ROOT / f".bench-{os.getpid()}.parquet"
    try:
        groups = write(scratch, range(per_file), PER_GROUP, lambda part: texts[: len(part)])
        obstore.put(store, path, scratch)
    finally:
        scratch.unlink(missing_ok=True)
    meta: Any = obstore.head(store, path)
    files = (InputFile("inputs/part.parquet", per_file, groups, meta["size"], str(meta["e_tag"])),) * (rows // per_file)
    plan = bound(store, run, Plan(run.run_id, rows, chunk_rows, min(workers, rows // chunk_rows), files))
    plan = save_plan(store, run, plan)
    return f"{base}/{run.prefix}", run, plan


def _commit_links(bucket: Path, run: RunRef, plan: Plan) -> None:
    """Every second chunk, as links to one file."""
    work = run.work(plan.uid)
    first = bucket / work.chunk_path(1)
    first.parent.mkdir(parents=True)
    first.write_bytes(a_chunk(run, plan, 1))
    for chunk in range(3, plan.chunk_count, 2):
        os.link(first, bucket / work.chunk_path(chunk))


def _commit_puts(base: str, run: RunRef, plan: Plan) -> None:
    store = open_store(base)
    body = a_chunk(run, plan, 1)
    names = [run.work(plan.uid).chunk_path(chunk) for chunk in range(1, plan.chunk_count, 2)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: obstore.put(store, name, body), names))


@contextmanager
def _local(folder: Path) -> Iterator[tuple[str, Path]]:
    yield f"file://{folder}", folder
    shutil.rmtree(folder)


def _size(url: str, run: RunRef) -> float:
    store = open_store(url.removesuffix(f"/{run.prefix}"))
    return int(obstore.head(store, f"{run.prefix}/plan.json")["size"]) / 1024
