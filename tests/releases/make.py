"""Writes the folder of runs of the release that is checked out: ``python -m tests.releases.make``, before it is tagged.

Real drivers compute them against the canned engine, and a real `nightshift batch` is killed in the middle.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from aiohttp import web

from nightshift import __version__, exits
from nightshift.planner.bills import seal_measured
from nightshift.run.opening import open_run
from nightshift.run.plan import ExportedSource, Plan, save_plan
from nightshift.spec import JobSpec
from nightshift.store import open_store
from tests.builders import bound, write_input
from tests.integration.driver.batches import BatchProcess, ChatServer, a_request, write_requests
from tests.integration.driver.canned import CannedEngine
from tests.integration.driver.runs import DriverProcess, PreparedRun
from tests.integration.driver.test_faults import stalls_after
from tests.releases import FOLDER, JOB, LINES, NOTIFY, PRICES, STATES, TEXTS

CHUNK_ROWS = 6
ANSWERED = 5
"""Requests, of four rows each, before the engine hangs in the half-computed run."""
PATIENCE_S = 60.0


def main() -> None:
    """Refuses to write over a release's folder, and to make one of a checkout with changes."""
    target = FOLDER / __version__
    if target.exists():
        sys.exit(f"{target} exists: the runs of a release are made once. Raise nightshift.__version__ first.")
    if subprocess.run(["git", "status", "--porcelain", "plugins"], cwd=FOLDER, capture_output=True, check=True).stdout:
        sys.exit(
            "plugins/ has changes that are not committed: commit them, so that MADE_BY names the code that wrote the runs."
        )
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=FOLDER, capture_output=True, text=True, check=True).stdout
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        whole = Path(folder) / "whole"
        for state in STATES:
            _night(whole / "bucket", state)
        _batch(whole / "batch")
        (whole / "MADE_BY").write_text(commit)
        whole.rename(target)


def _night(bucket: Path, state: str) -> None:
    spec = JobSpec.model_validate({**JOB, "notify": NOTIFY})
    url = f"file://{bucket}"
    store = open_store(url)
    run = open_run(store, spec, STATES[state], opened_by=f"scheduled__{STATES[state]}")
    texts = [text and f"text {number}" for number, text in enumerate(TEXTS)]
    more = {"price": pa.array(PRICES, pa.decimal128(38, 9)), "customer": pa.nulls(len(texts), pa.string())}
    files = write_input(store, run, texts, per_file=30, per_group=20, more=more)
    types = {"id": "INT64", "text": "STRING", "price": "NUMERIC", "customer": "STRING"}
    source = ExportedSource(types, ("local.kept.texts",))
    plan = save_plan(store, run, bound(store, run, Plan(run.run_id, len(TEXTS), CHUNK_ROWS, 1, files, source=source)))
    prepared = PreparedRun(url, run, spec, plan)
    if state == "unfinished":
        return
    with CannedEngine(stalls_after(ANSWERED) if state == "half" else None) as engine:
        driver = DriverProcess(prepared, engine.url)
        if state == "half":
            # Some of the rows that were answered are of chunks that are not whole.
            _until(lambda: len(prepared.rows()) >= CHUNK_ROWS and len(engine.seen) > 4 * ANSWERED)
            driver.terminate()
        code = driver.finish()
    if code != (exits.RESUME if state == "half" else exits.DONE):
        sys.exit(f"{state}: the driver ended with {code}: {driver.log}")
    if state == "half" and not prepared.partial_rows():
        sys.exit("the drain saved nothing: choose another moment for it")
    if state == "sealed":
        seal_measured(store, run, spec, plan)


def _batch(folder: Path) -> None:
    folder.mkdir()
    write_requests(folder / "in.jsonl", [a_request(f"id-{n}", text) for n, text in enumerate(LINES)])

    async def refuses_the_last(text: str) -> web.Response | None:
        return web.json_response({"error": {"message": "busy"}}, status=503) if text in LINES[-8:] else None

    with ChatServer(refuses_the_last) as server:
        command = ("-i", "in.jsonl", "-o", "out.jsonl", "--base-url", server.url, "--chunk-rows", 4, "--max-inflight", 4)
        batch = BatchProcess(*command, folder=folder)
        _until(lambda: len(list(folder.glob("out.jsonl.nightshift/batch/lines/*/ledger/*"))) >= 5)
        batch.process.terminate()
        batch.finish()


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            sys.exit("nothing happened for a minute")
        time.sleep(0.01)


if __name__ == "__main__":
    main()
