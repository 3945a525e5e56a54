"""`nightshift status` of a stream, from a real Prometheus that reads a real subscriber and the Pub/Sub emulator."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from aiohttp import web

from tests.integration import prometheus
from tests.integration.driver.canned import CannedEngine
from tests.integration.emulators import ROOT, PostgresServer, PubSubEmulator
from tests.integration.pubsub import PubSub, wait_until
from tests.integration.stream.processes import Stage

pytestmark = pytest.mark.integration

WINDOW_S = 600
MESSAGES = 200
SLOW = {"messages_per_second": 0.01, "servers": {"max": 1}}
"""More arrives than could be answered, by what the file says."""


@pytest.fixture
def fetched() -> None:
    try:
        prometheus.program()
    except prometheus.Missing as error:
        pytest.skip(str(error))


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """The engine answers once it is set."""
    event = threading.Event()
    yield event
    event.set()


def status(stage: Stage, url: str, *options: str) -> str:
    command = [sys.executable, "-m", "nightshift.cli", "status", str(stage.file), "--prometheus", url]
    command += ["--window", str(WINDOW_S), *options]
    done = subprocess.run(command, cwd=ROOT / "plugins", text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def known(now: Callable[[], dict[str, Any]], what: str, holds: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """The first numbers of which it holds."""
    seen: list[dict[str, Any]] = []

    def told() -> bool:
        seen.append(now())
        return bool(holds(seen[-1]))

    wait_until(told, what)
    return seen[-1]


@pytest.mark.usefixtures("fetched")
def test_the_numbers_are_those_of_the_stream(
    pubsub_emulator: PubSubEmulator, postgres_server: PostgresServer, gate: threading.Event, tmp_path: Path
) -> None:
    async def waits(texts: list[str]) -> web.StreamResponse | None:
        while not gate.is_set():  # noqa: ASYNC110 - the test's own thread opens it
            await asyncio.sleep(0.05)
        return None

    pubsub = PubSub(pubsub_emulator)
    with CannedEngine(waits) as engine:
        stage = Stage(pubsub, postgres_server, tmp_path, engine, {})
        stage.file.write_text(yaml.safe_dump({**yaml.safe_load(stage.file.read_text()), "scaling": SLOW}))
        with stage.subscriber() as subscriber:
            targets = [
                (f"127.0.0.1:{subscriber.metrics_port()}", {"nightshift_job": "texts"}),
                (urlsplit(pubsub_emulator.control).netloc, {}),
            ]
            with prometheus.scraping(tmp_path / "prometheus", targets) as url:

                def now() -> dict[str, Any]:
                    found: dict[str, Any] = json.loads(status(stage, url, "--json"))
                    return found

                wait_until(lambda: now()["backlog"] == 0 and now()["subscribers"] == 1, "an empty backlog and a subscriber")
                stage.publish(*({"text": f"text {number}"} for number in range(MESSAGES)))
                wait_until(lambda: now()["backlog"] == MESSAGES, "all of them wait")
                # A rate is known from the second time on that Prometheus asks; what it is told too late, it does not know.
                held = known(now, "a rate, of none", lambda told: told["answered"] is not None and told["oldest_s"])
                gate.set()
                done = known(
                    now,
                    "all of them are answered, and their latency and rate are known",
                    lambda told: told["backlog"] == 0 and told["p99_s"] is not None and told["answered"],
                )
                lines = status(stage, url)
    pubsub.close()

    assert (held["answered"], held["p99_s"], held["answered_most"]) == (0, None, 0.01)
    assert held["oldest_s"] > 0
    assert held["arriving"] > 0.01
    assert any("scaling.servers.max answers 0.01/s" in warning for warning in held["warnings"])
    assert 0 < done["p50_s"] <= done["p99_s"]
    assert done["answered"] * WINDOW_S <= MESSAGES * 1.5, "extrapolated by Prometheus"
    assert lines.splitlines()[0] == f"texts  embedding by m {stage_summary(stage)}"


def stage_summary(stage: Stage) -> str:
    return f"from {stage.subscription} into {stage.table} within 60s"
