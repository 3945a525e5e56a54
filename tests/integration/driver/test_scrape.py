"""A real driver process, scraped while it works, beside what the ledger says of the same run."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from nightshift.status.survey import Survey
from nightshift.store import open_store
from tests.integration.driver.canned import CannedEngine
from tests.integration.driver.runs import PLUGINS, DriverProcess, PreparedRun, prepare

pytestmark = [pytest.mark.integration, pytest.mark.gate]

GIVE_UP_S = 60.0


class MeasuredDriver(DriverProcess):
    """The driver with its metrics on a free port."""

    def __init__(self, prepared: PreparedRun, engine_url: str) -> None:
        environment = {
            "PYTHONPATH": str(PLUGINS),
            "NIGHTSHIFT_RUN_URL": f"{prepared.url}/{prepared.run.prefix}",
            "JOB_COMPLETION_INDEX": "0",
            "ENGINE_URL": engine_url,
            "NIGHTSHIFT_METRICS_PORT": "0",
        }
        command = [sys.executable, "-m", "nightshift.driver"]
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        self.log = []

    def scrape(self, port: int) -> dict[tuple[str, str], float]:
        """Value by sample name and its one label's value."""
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
            families = text_string_to_metric_families(reply.read().decode())
        return {
            (sample.name.removeprefix("nightshift_driver_"), next(iter(sample.labels.values()), "")): sample.value
            for family in families
            for sample in family.samples
        }


def all_but_the_last(seen: dict[tuple[str, str], float]) -> bool:
    """Whether only the last request is left. It may be sent after, and a chunk be closed after, the last commit before it."""
    done, left = seen.get(("chunk_commits_total", "committed")), (seen["chunks_open", ""], seen["requests_in_flight", ""])
    return (done, left) == (7, (1, 1))


def test_a_driver_is_scraped_while_it_works(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    release = threading.Event()

    async def stuck(texts: list[str]) -> web.StreamResponse | None:
        """The last request hangs until the test has seen enough."""
        if "text 59" in texts:
            await asyncio.to_thread(release.wait, 2 * GIVE_UP_S)
        return None

    texts: list[str | None] = [f"text {n}" for n in range(60)]
    texts[1] = None
    prepared = prepare(tmp_path, texts, chunk_rows=8)
    with CannedEngine(stuck) as engine:
        driver = MeasuredDriver(prepared, engine.url)
        request.addfinalizer(driver.process.kill)
        port = int(driver.wait_for("metrics")["port"])
        deadline = time.monotonic() + GIVE_UP_S
        while not all_but_the_last(seen := driver.scrape(port)):
            assert time.monotonic() < deadline, seen
            time.sleep(0.1)
        status = Survey(open_store(prepared.url), prepared.run, prepared.url).refresh()
        release.set()
        code = driver.finish()

    assert code == 0
    assert seen["rows_total", "answered"] == 55
    assert (seen["rows_total", "dead_letter"], seen["dead_letters_total", "bad_input"]) == (1, 1)
    assert (seen["rows_in_flight", ""], seen["requests_in_flight", ""]) == (4, 1)
    assert seen["requests_total", ""] >= 15
    assert seen["tokens_total", "in"] == sum(len(text) for text in texts[:56] if text)
    assert seen["bytes_total", "committed"] == sum(
        path.stat().st_size for path in prepared.work.glob("ledger/*.parquet") if not path.name.endswith("7.parquet")
    )
    assert seen["bytes_total", "read"] > 0
    assert seen["chunks_open", ""] == 1
    assert seen["window_rows", ""] > 0
    assert (status.rows_done, status.dead_reasons, status.chunks_left) == (56, {"bad_input": 1}, 1)
    assert status.prompt_tokens == seen["tokens_total", "in"]
