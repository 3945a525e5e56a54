"""Every panel and every alert against a real Prometheus, which reads real drivers, a real vLLM, a real subscriber and the
Pub/Sub emulator: first healthy, then ill, then mended.

A minute of the rules is a second here: each duration is divided by 60, as scraping is quicker than in a cluster. What only
Google's clusters and services export is played (`tests.integration.monitoring.played`).
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import pytest
import yaml
from aiohttp import web

from local import models
from local.ports import new_port
from monitoring import table
from tests.builders import a_spec
from tests.integration import prometheus
from tests.integration.driver.canned import CannedEngine
from tests.integration.driver.runs import DriverProcess, PreparedRun, prepare
from tests.integration.driver.vllm import Vllm
from tests.integration.emulators import PostgresServer, PubSubEmulator
from tests.integration.monitoring.played import HEALTHY, ILL, Played
from tests.integration.pubsub import PATIENCE_S, PubSub, wait_until
from tests.integration.stream.processes import Stage

pytestmark = pytest.mark.integration

ALERTS: Final = sorted(rule.alert for group in table.rules().groups for rule in group.rules)
FIRING: Final = 'ALERTS{alertstate="firing"}'
TARGET_S: Final = 5
"""The stream's latency.target."""
SLOW_S: Final = 7.0
"""What a request takes while all is ill: longer than the target."""
HEALTHY_S: Final = 20.0
"""For so long all is well first."""


def chat() -> dict[str, Any]:
    """Changes to `a_spec` for a night that generates text."""
    model = models.ensure(models.TINY_LLAMA)
    return {
        "task": "chat",
        "request": {"system": "Answer briefly, in one sentence.", "user": "{{ text }}", "temperature": 0, "max_tokens": 8},
        "model": {"name": "tiny", "uri": model.uri, "revision": model.revision},
        "engine": {"max_num_seqs": 16, "max_model_len": 512, "dtype": "float32", "args": {"enforce-eager": True}},
    }


def hurried(query: str) -> str:
    """A minute of it is a second."""
    units = {"m": "s", "h": "m", "d": "h"}
    return re.sub(r"\[(\d+)([mhd])\]", lambda found: f"[{found[1]}{units[found[2]]}]", query).replace("[1h]", "[24m]")


def rules(folder: Path) -> Path:
    found = yaml.safe_load(table.RULES.read_text())
    for group in found["groups"]:
        for rule in group["rules"]:
            rule["expr"], rule["for"] = hurried(rule["expr"]), rule["for"].replace("m", "s")
    file = folder / "rules.yaml"
    file.write_text(yaml.safe_dump(found))
    return file


def panels() -> dict[str, str]:
    """The query of each line of each panel."""
    return {
        f"{name}: {panel.title}: {query.legend}": hurried(table.VARIABLE.sub(".*", query.expr))
        for name, board in table.dashboards().dashboards.items()
        for panel in board.panels
        for query in panel.queries
    }


class Pace:
    """An engine's behaviour: how long a request takes, and whether it hangs until it is let go."""

    def __init__(self, seconds: float = 0.05) -> None:
        self.seconds = seconds
        self.go = threading.Event()
        self.go.set()

    async def __call__(self, _: list[str]) -> web.StreamResponse | None:
        until = time.monotonic() + self.seconds
        while time.monotonic() < until or not self.go.is_set():  # noqa: ASYNC110 - the test's own thread opens it
            await asyncio.sleep(0.05)
        return None


class Driver(DriverProcess):
    """With its metrics on a port that is known before, and what Airflow would tell it."""

    def __init__(self, prepared: PreparedRun, engine_url: str, port: int, *, deadline_s: float) -> None:
        night = {"deadline": time.time() + deadline_s, "price": 3.6, "currency": "USD"}
        extra = {
            "NIGHTSHIFT_METRICS_PORT": str(port),
            "NIGHTSHIFT_DEAD_LETTERS": "4",
            "NIGHTSHIFT_NIGHT": json.dumps(night),
        }
        super().__init__(prepared, engine_url, extra=extra)


class Asked:
    """A Prometheus, over the time since this was made."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.since = time.time()

    def _get(self, path: str, **parameters: str) -> Any:
        query = f"{self._url}/api/v1/{path}?{urlencode(parameters)}"
        with urllib.request.urlopen(query, timeout=60) as reply:
            return json.load(reply)["data"]

    def all_of(self, query: str) -> list[dict[str, Any]]:
        """Each series with its values, a second apart."""
        found = self._get("query_range", query=query, start=str(self.since), end=str(time.time()), step="1")
        return list(found["result"])

    def firing(self) -> set[str]:
        return {each["labels"]["alertname"] for each in self._get("alerts")["alerts"] if each["state"] == "firing"}

    def await_firing(self, wanted: list[str]) -> None:
        """Until each of them has fired since now; if none is wanted, until none fires."""
        seen: set[str] = set()
        deadline = time.monotonic() + PATIENCE_S
        while (now := self.firing()) if not wanted else set(wanted) - seen:
            seen |= now if not wanted else self.firing()
            late = f"still firing: {now}" if not wanted else f"never fired: {set(wanted) - seen}"
            assert time.monotonic() < deadline, late
            time.sleep(0.5)


def times_fired(values: list[list[Any]]) -> int:
    """In how many stretches of time."""
    times = [float(at) for at, _ in values]
    return 1 + sum(later - earlier > 2.5 for earlier, later in pairwise(times))


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    server = Vllm(a_spec(**chat()), tmp_path_factory.mktemp("vllm") / "vllm.log")
    server.await_health()
    yield server
    server.kill()


class Load(threading.Thread):
    """Messages to a stream, five a second; every tenth cannot be decoded while `broken`."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(daemon=True)
        self._stage = stage
        self.broken = False
        self._over = threading.Event()

    def stop(self) -> None:
        self._over.set()
        if self.is_alive():
            self.join()

    def run(self) -> None:
        number = 0
        while not self._over.wait(0.2):
            number += 1
            bad = self.broken and number % 10 == 0
            self._stage.pubsub.publish(self._stage.topic, b"not JSON" if bad else json.dumps({"text": f"t{number}"}).encode())


def texts(count: int, *, bad: int = 0) -> list[str | None]:
    """bad: so many of the first are dead letters."""
    return [None if number < bad else f"package number {number}" for number in range(count)]


class Scene:
    """Four runs and two streams, and what ails them."""

    def __init__(
        self, folder: Path, stack: ExitStack, vllm: Vllm, pubsub_emulator: PubSubEmulator, server: PostgresServer
    ) -> None:
        self._folder = folder
        self._stack = stack
        self._vllm = vllm
        self.played = stack.enter_context(Played())
        self.paces = {name: Pace() for name in ("late", "stuck", "texts")}
        self.engines = {name: stack.enter_context(CannedEngine(pace)) for name, pace in self.paces.items()}
        self.breaking = CannedEngine(Pace(0.5), port=new_port())
        self.breaking.__enter__()
        self.ports = {name: new_port() for name in ("night", "late", "stuck", "broken")}
        self.drivers: dict[str, Driver] = {}
        pubsub = PubSub(pubsub_emulator)
        stack.callback(pubsub.close)
        job = {"latency": {"target": f"{TARGET_S}s", "flush": "50ms"}}
        stage = Stage(pubsub, server, folder, self.engines["texts"], job)
        subscriber = stack.enter_context(stage.subscriber())
        self.orphan = Stage(pubsub, server, folder, self.engines["texts"], job)
        self.orphaned = stack.enter_context(self.orphan.subscriber())
        self.load = Load(stage)
        stack.callback(self.load.stop)
        self.targets = [
            (f"127.0.0.1:{self.played.port}", {}),
            (urlsplit(pubsub_emulator.control).netloc, {}),
            (f"127.0.0.1:{subscriber.metrics_port()}", {"nightshift_job": "texts", "pod": "texts-subscriber-0"}),
            (f"127.0.0.1:{self.orphaned.metrics_port()}", {"nightshift_job": "orphan", "pod": "orphan-subscriber-0"}),
            (f"127.0.0.1:{vllm.port}", {"nightshift_job": "night", "nightshift_run": "night", "pod": "night-worker-0-0-aaaaa"}),
            *(
                (f"127.0.0.1:{port}", {"nightshift_job": name, "nightshift_run": name, "pod": f"{name}-worker-0-0-aaaaa"})
                for name, port in self.ports.items()
            ),
        ]

    def drive(self, name: str, url: str, rows: list[str | None], *, deadline_s: float, **changes: Any) -> None:
        folder = self._folder / name
        folder.mkdir()
        # Chunks so large that the lines about them fit into the pipe that nobody reads before the end.
        driver = Driver(prepare(folder, rows, chunk_rows=50, **changes), url, self.ports[name], deadline_s=deadline_s)
        self._stack.callback(driver.process.kill)
        self.drivers[name] = driver

    def be_well(self) -> None:
        self.load.start()
        self.drive("night", self._vllm.url, texts(1500), deadline_s=3600, **chat())

    def fall_ill(self, asked: Asked) -> None:
        """One cause for each alert."""
        self.orphan.pubsub.publisher.delete_topic(topic=self.orphan.topic)
        failed = next(sample for sample in HEALTHY if "workflow_run_count" in sample)
        self.played.lines |= {**ILL, failed: 1}
        self.paces["texts"].seconds = self.paces["late"].seconds = SLOW_S
        self.load.broken = True
        self.drive("late", self.engines["late"].url, texts(2000), deadline_s=60)
        # Its dead letters are committed before it is stuck.
        self.drive("stuck", self.engines["stuck"].url, texts(4000, bad=3), deadline_s=3600)
        wait_until(lambda: list(self._folder.glob("stuck/bucket/**/ledger/*0.parquet")) != [], "a chunk of the stuck run")
        self.paces["stuck"].go.clear()
        self.drive("broken", self.breaking.url, texts(4000), deadline_s=3600)
        losses = 'nightshift_driver_engine_losses_total{nightshift_job="broken"} == 0'
        wait_until(lambda: asked.all_of(losses) != [] and len(self.breaking.seen) > 0, "the engine that will break is used")
        self._breaks()
        time.sleep(6)
        self._comes_back()
        self._breaks()

    def _breaks(self) -> None:
        self.breaking.__exit__(None, None, None)

    def _comes_back(self) -> None:
        before = len(self.breaking.seen)
        self.breaking.__enter__()
        wait_until(lambda: len(self.breaking.seen) > before, "the engine that came back is used")

    def be_mended(self) -> None:
        self.load.broken = False
        self.orphaned.kill()
        for pace in self.paces.values():
            pace.seconds = 0.01
            pace.go.set()
        self._comes_back()
        failed = next(sample for sample in HEALTHY if "workflow_run_count" in sample)
        self.played.lines |= {**HEALTHY, failed: 1}

    def end(self) -> dict[str, int]:
        """The exit codes of the drivers."""
        codes = {name: driver.finish() for name, driver in self.drivers.items()}
        self.load.stop()
        self._breaks()
        return codes


def test_every_panel_has_data_and_every_alert_fires_once_and_clears(
    tmp_path: Path, vllm: Vllm, pubsub_emulator: PubSubEmulator, postgres_server: PostgresServer
) -> None:
    try:
        prometheus.program()
    except prometheus.Missing as error:
        pytest.skip(str(error))
    with ExitStack() as stack:
        scene = Scene(tmp_path, stack, vllm, pubsub_emulator, postgres_server)
        asked = Asked(stack.enter_context(prometheus.scraping(tmp_path / "prometheus", scene.targets, rules(tmp_path))))
        scene.be_well()
        time.sleep(HEALTHY_S)
        assert asked.all_of(FIRING) == []

        scene.fall_ill(asked)
        asked.await_firing(ALERTS)
        scene.be_mended()
        asked.await_firing([])
        codes = scene.end()
        fired = asked.all_of(FIRING)
        found = {name: asked.all_of(query) for name, query in panels().items()}

    print(
        f"{len(found)} lines of panels; fired: {sorted((each['metric']['alertname'], len(each['values'])) for each in fired)}"
    )
    assert codes == dict.fromkeys(codes, 0)
    assert {each["metric"]["alertname"] for each in fired} == set(ALERTS)
    assert [each["metric"] for each in fired if times_fired(each["values"]) != 1] == []
    assert [name for name, series in found.items() if not series] == []
