"""The real driver against a real vLLM with two API servers before one engine."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nightshift import exits
from nightshift.driver.engine import EngineClient, Load
from tests.builders import a_spec
from tests.integration.driver.runs import DriverProcess, prepare
from tests.integration.driver.vllm import MINILM, Vllm

pytestmark = pytest.mark.integration

TWO: dict[str, Any] = {**MINILM, "engine__args": {"enforce-eager": True, "api-server-count": 2}}
LONG = "a sentence about trains. " * 16


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    server = Vllm(a_spec(**TWO), tmp_path_factory.mktemp("vllm") / "vllm.log")
    server.await_health()
    yield server
    server.kill()


def load_of(vllm: Vllm) -> Load | None:
    async def ask() -> Load | None:
        async with EngineClient(vllm.url, "minilm") as engine:
            return await engine.load()

    return asyncio.run(ask())


def looks(vllm: Vllm, seconds: float) -> Iterator[Load]:
    """Its load, again and again."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if load := load_of(vllm):
            yield load


def api_servers(vllm: Vllm) -> list[int]:
    """Their process ids."""
    listed = subprocess.run(["ps", "-o", "pid,args", "--sid", str(vllm._process.pid)], capture_output=True, text=True).stdout
    return [int(line.split()[0]) for line in listed.splitlines() if "VLLM::APIServer" in line]


def test_rows_are_computed_once_and_counted_over_both(tmp_path: Path, vllm: Vllm) -> None:
    assert len(api_servers(vllm)) == 2
    assert load_of(vllm) is None, "no gauges before the first request: the driver begins without"
    texts: list[str | None] = [f"package number {n}" for n in range(400)]
    prepared = prepare(tmp_path, texts, **TWO)

    code = DriverProcess(prepared, vllm.url).finish()

    assert code == exits.DONE
    assert all(row["dead_reason"] is None for row in prepared.rows().values())
    assert vllm.requests_served() == 400, "each API server has counted its own, and the page adds them up"
    assert load_of(vllm) == Load(running=0, waiting=0, kv_cache=0, preemptions=0)


def test_an_api_server_killed_in_the_middle_costs_no_row(tmp_path: Path, vllm: Vllm) -> None:
    """vLLM ends as a whole then, as if the engine had died, and its container is started again."""
    prepared = prepare(tmp_path, [f"{n} {LONG}" for n in range(360)], chunk_rows=8, **TWO)
    driver = DriverProcess(prepared, vllm.url)
    driver.wait_for("committed")
    # vLLM writes its gauges after a step, and a step may take a second here.
    at_work = next((load for load in looks(vllm, 30.0) if load.running + load.waiting > 0), None)
    assert at_work is not None, "the engine's own numbers, while it works"
    assert at_work.running + at_work.waiting <= 360

    os.kill(api_servers(vllm)[0], signal.SIGKILL)
    deadline = time.monotonic() + 60
    while vllm._process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)
    assert vllm._process.poll() is not None
    vllm.kill()
    vllm.start()
    code = driver.finish()
    if code == exits.RESUME:
        # A busy machine may take longer to start vLLM than a driver waits. Kubernetes would make the pod again.
        vllm.await_health()
        code = DriverProcess(prepared, vllm.url).finish()

    assert code == exits.DONE
    rows = prepared.rows()
    assert sorted(rows) == list(range(360))
    assert all(row["dead_reason"] is None for row in rows.values())
