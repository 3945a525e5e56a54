"""A night with real drivers that a person pauses in the middle: pods go, what is committed stays, and it ends as ever."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from nightshift.cli import main
from nightshift.jobset.labels import RUN_LABEL, RUN_URL_ANNOTATION
from tests.integration.driver.canned import CannedEngine, vector_of
from tests.integration.driver.runs import PLUGINS, PreparedRun, prepare
from tests.integration.runtime.agents import AgentProcess, LocalUnderTest
from tests.integration.runtime.manifests import IGNORE_DISRUPTION, finished, jobset, wait_for
from tests.integration.runtime.view import Pod, look

pytestmark = pytest.mark.integration

ROWS = 1800
WORKERS = 2
CHUNK_ROWS = 8
RESUME: dict[str, Any] = {"action": "Ignore", "onExitCodes": {"containerName": "driver", "operator": "In", "values": [75]}}


class Slowly:
    """The engine's work. After some of the rows it stops until `paused` is set. most: the most rows that it had at once."""

    def __init__(self) -> None:
        self.most = self._now = self._taken = 0
        self.paused = threading.Event()

    async def __call__(self, texts: list[str]) -> web.StreamResponse | None:
        self._now += len(texts)
        self._taken += len(texts)
        self.most = max(self.most, self._now)
        stops = self._taken > ROWS // 4
        try:
            await asyncio.sleep(0.1)
            while stops and not self.paused.is_set():  # noqa: ASYNC110 - the test's own thread sets it
                await asyncio.sleep(0.05)
        finally:
            self._now -= len(texts)
        return None


def submit(runtime: LocalUnderTest, night: PreparedRun, engine: CannedEngine, url: str) -> None:
    environment = {"PYTHONPATH": str(PLUGINS), "NIGHTSHIFT_RUN_URL": url, "ENGINE_URL": engine.url}
    driver = {
        "name": "driver",
        "image": "nightshift/test:1",
        "command": [sys.executable, "-m", "nightshift.driver"],
        "env": [{"name": name, "value": value} for name, value in environment.items()],
    }
    rules = [RESUME, IGNORE_DISRUPTION]
    manifest = jobset("night", driver, rules=rules, job={"completions": WORKERS}, annotations={RUN_URL_ANNOTATION: url})
    manifest["metadata"]["labels"] = {RUN_LABEL: night.run.run_id}
    runtime.submit(manifest)


def drains(runtime: LocalUnderTest, pod: Pod) -> bool:
    return any('"draining"' in line for line in runtime.logs("night", pod.name, "driver"))


def test_a_night_that_is_paused_in_the_middle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts: list[str | None] = [f"text {number}" for number in range(ROWS)]
    night = prepare(tmp_path, texts, workers=WORKERS, chunk_rows=CHUNK_ROWS)
    url = f"{night.url}/{night.run.prefix}"
    agent = AgentProcess(tmp_path)
    runtime = LocalUnderTest(agent.state)
    for key, value in {"RUNTIME": f"local:{agent.state}", "BUCKET": "b", "PROJECT": "p", "NAMESPACE": "default"}.items():
        monkeypatch.setenv(f"NIGHTSHIFT_{key}", value)

    def committed() -> set[str]:
        return {path.name for path in night.work.glob("ledger/*.parquet")}

    slowly = Slowly()
    with CannedEngine(slowly) as engine:
        try:
            agent.start()
            submit(runtime, night, engine, url)
            wait_for(lambda: len(committed()) >= 5, "five chunks")
            assert main(["pause", url, "--by", "ada"]) == 0
            # Until then the engine answers nobody, and after that a driver sends nothing more.
            wait_for(lambda: all(drains(runtime, pod) for pod in look(runtime, "night").pods), "both drain")
            slowly.paused.set()
            assert "Suspended: JobSet night" in capsys.readouterr().out
            wait_for(lambda: not agent.processes(), "the end of every pod")
            kept, sent = committed(), len(engine.seen)
            saved = night.partial_rows()
            finished_before = {*night.rows(), *saved}
            assert 5 <= len(kept) < ROWS // CHUNK_ROWS
            assert look(runtime, "night").phase == "Suspended"
            time.sleep(1)
            assert (committed(), len(engine.seen), agent.processes()) == (kept, sent, [])
            assert main(["status", url]) == 0
            assert "paused    by ada at " in capsys.readouterr().out

            assert main(["resume", url, "--by", "ada"]) == 0
            assert finished(runtime, "night").phase == "Completed"
        finally:
            agent.close()

    assert kept <= committed()
    rows = night.rows()
    assert [rows[number]["prediction"] for number in range(ROWS)] == [vector_of(str(text)) for text in texts]
    assert not finished_before & {texts.index(text) for text in engine.seen[sent:]}, "what was finished is not sent again"
    assert len(saved) + CHUNK_ROWS * len(kept) >= sent - slowly.most, "the drain has saved what was finished"
