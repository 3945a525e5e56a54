"""A real driver process, scraped while it works, beside what the ledger says of the same run."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlencode

import pytest
from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from nightshift.run.plan import load_plan
from nightshift.status.chunk_footer import committed
from nightshift.store import open_store
from tests.integration.driver.canned import CannedEngine
from tests.integration.driver.runs import PLUGINS, DriverProcess, PreparedRun, prepare
from tests.integration.prometheus import Missing, program, scraping
from tests.unit.test_metric_names import registries

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
            "NIGHTSHIFT_DEAD_LETTERS": "5",
            "NIGHTSHIFT_NIGHT": '{"deadline": 1764288000, "price": 3.6, "currency": "USD"}',
        }
        command = [sys.executable, "-m", "nightshift.driver"]
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        self.log = []

    def page(self, port: int) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
            return str(reply.read().decode())

    def scrape(self, port: int) -> dict[tuple[str, str], float]:
        """Value by sample name and its one label's value."""
        families = text_string_to_metric_families(self.page(port))
        return {
            (sample.name.removeprefix("nightshift_driver_"), next(iter(sample.labels.values()), "")): sample.value
            for family in families
            for sample in family.samples
        }


QUERIES = (
    "max(nightshift_run_rows) - sum(nightshift_run_home_rows_committed)",
    "max(nightshift_run_deadline_timestamp_seconds)",
    "max(nightshift_run_dead_letters_allowed)",
    "count(nightshift_build_info{component='driver', nightshift_run!=''})",
    "sum(nightshift_driver_dead_letters_total{reason='timeout'})",
    "sum(nightshift_driver_cost_total{currency='USD'}) > bool 0",
)


def answers(prometheus: str) -> dict[str, float | None]:
    """Once they are what two scrapes in a row have shown: what was scraped before is stale."""
    deadline = time.monotonic() + GIVE_UP_S
    before: dict[str, float | None] = {}
    while None in (found := {query: answer(prometheus, query) for query in QUERIES}).values() or found != before:
        assert time.monotonic() < deadline, found
        before = found
        time.sleep(1.5)
    return found


def answer(prometheus: str, query: str) -> float | None:
    with urllib.request.urlopen(f"{prometheus}/api/v1/query?{urlencode({'query': query})}", timeout=10) as reply:
        found = json.load(reply)["data"]["result"]
    return float(found[0]["value"][1]) if found else None


def linted(page: str) -> str:
    """What promtool finds in a page."""
    tool = program().with_name("promtool")
    done = subprocess.run([tool, "check", "metrics"], input=page, text=True, capture_output=True)
    return done.stdout + done.stderr


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
    with CannedEngine(stuck) as engine, ExitStack() as open_:
        driver = MeasuredDriver(prepared, engine.url)
        request.addfinalizer(driver.process.kill)
        port = int(driver.wait_for("metrics")["port"])
        try:
            target = f"127.0.0.1:{port}", {"nightshift_run": prepared.run.run_id}
            prometheus = open_.enter_context(scraping(tmp_path / "prometheus", [target]))
        except Missing as missing:
            pytest.skip(str(missing))
        deadline = time.monotonic() + GIVE_UP_S
        while not all_but_the_last(seen := driver.scrape(port)):
            assert time.monotonic() < deadline, seen
            time.sleep(0.1)
        page, asked = driver.page(port), answers(prometheus)
        store = open_store(prepared.url)
        plan = load_plan(store, prepared.run)
        assert plan is not None
        there = committed(store, prepared.run.work(plan.uid), plan)
        release.set()
        code = driver.finish()

    assert code == 0
    assert seen["rows_total", "answered"] == 55
    assert (seen["rows_total", "dead_letter"], seen["dead_letters_total", "bad_input"]) == (1, 1)
    assert (seen["rows_in_flight", ""], seen["requests_in_flight", ""]) == (4, 1)
    assert seen["requests_total", ""] >= 15
    assert seen["request_duration_seconds_count", ""] == seen["requests_total", ""] - 1
    assert linted(page) == ""
    assert asked == {
        "max(nightshift_run_rows) - sum(nightshift_run_home_rows_committed)": 4,
        "max(nightshift_run_deadline_timestamp_seconds)": 1764288000,
        "max(nightshift_run_dead_letters_allowed)": 5,
        "count(nightshift_build_info{component='driver', nightshift_run!=''})": 1,
        "sum(nightshift_driver_dead_letters_total{reason='timeout'})": 0,
        "sum(nightshift_driver_cost_total{currency='USD'}) > bool 0": 1,
    }
    assert seen["tokens_total", "in"] == sum(len(text) for text in texts[:56] if text)
    assert seen["bytes_total", "committed"] == sum(
        path.stat().st_size for path in prepared.work.glob("ledger/*.parquet") if not path.name.endswith("7.parquet")
    )
    assert seen["bytes_total", "read"] > 0
    assert seen["chunks_open", ""] == 1
    assert seen["window_rows", ""] > 0
    assert (there.rows, there.reasons, plan.chunk_count - there.chunks) == (56, {"bad_input": 1}, 1)
    assert there.prompt_tokens == seen["tokens_total", "in"]


@pytest.mark.parametrize("name", ["driver", "stream", "batcher"])
def test_promtool_finds_nothing_in_the_metrics_of_any_program(name: str) -> None:
    try:
        assert linted(generate_latest(registries()[name]).decode()) == ""
    except Missing as missing:
        pytest.skip(str(missing))
