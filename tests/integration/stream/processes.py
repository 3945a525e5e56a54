"""`nightshift stream` as a process between the Pub/Sub emulator, PostgreSQL and a canned engine, and what a test does to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
import yaml

from nightshift.spec.sinks import SINKS
from tests.integration.driver.canned import CannedEngine, vector_of
from tests.integration.emulators import PostgresServer
from tests.integration.pubsub import PubSub, unique, wait_until

PLUGINS: Final = Path(__file__).resolve().parents[3] / "plugins"
LEASE_S: Final = 15
"""The subscription's own lease. The subscriber extends it after 4 s, so it may stand still for a while before a message comes
again; tests that hold a message for longer see whether it is extended."""
JOB: Final[Mapping[str, Any]] = {
    "job": "texts",
    "owner": "tests",
    "source": {"format": "json"},
    "task": "embedding",
    "request": {"input": "{{ text }}", "dimensions": 2, "timeout": "20s"},
    "model": {"name": "m", "uri": "hf://a/b", "revision": "1"},
    "engine": {"max_num_seqs": 16},
    "latency": {"target": "60s", "flush": "50ms"},
    "sink": {"column": "embedding"},
    "compute": {"profile": "cpu"},
}


class Stage:
    """One stream's topic, subscription, topic of dead letters, table and engine."""

    def __init__(
        self,
        pubsub: PubSub,
        server: PostgresServer,
        folder: Path,
        engine: CannedEngine,
        job: Mapping[str, Any],
        *,
        exactly_once: bool = False,
    ) -> None:
        self.pubsub = pubsub
        self.engine = engine
        self.server = server
        self.folder = folder
        self.topic, self.dead_topic = pubsub.topic(), pubsub.topic()
        self.dead_subscription = pubsub.subscription(self.dead_topic)
        self.table = f"t_{unique()}"
        merged = {**JOB, **{name: {**JOB.get(name, {}), **section} for name, section in job.items()}}
        merged = {name: dict(value) if isinstance(value, dict) else value for name, value in merged.items()}
        ordering = bool(merged["source"].get("ordering"))
        self.subscription = pubsub.subscription(
            self.topic,
            ack_deadline_seconds=LEASE_S,
            enable_message_ordering=ordering,
            enable_exactly_once_delivery=exactly_once,
        )
        if "prefix" not in merged["source"]:
            merged["source"]["subscription"] = self.subscription
        if not merged["sink"].keys() & {sink.KEY for sink in SINKS}:
            merged["sink"]["table"] = self.table
        merged["dead_letters"] = {"topic": self.dead_topic, **job.get("dead_letters", {})}
        self.file = folder / f"stream-{unique()}.yaml"
        self.file.write_text(yaml.safe_dump(merged))

    @contextmanager
    def subscriber(self, **environment: str) -> Iterator[Running]:
        """A subscriber that runs until the end of the context."""
        running = Running(self, environment)
        try:
            yield running
        finally:
            running.kill()

    def publish(self, *rows: Mapping[str, Any], **attributes: str) -> list[str]:
        """JSON messages; returns their ids."""
        return self.pubsub.publish(self.topic, *(json.dumps(row).encode() for row in rows), **attributes)

    def rows(self, columns: str = "nightshift_message_id, embedding::text") -> list[tuple[Any, ...]]:
        with psycopg.connect(self.server.url) as connection:
            found = connection.execute("SELECT to_regclass(%s)", [self.table]).fetchone()
            if found == (None,):
                return []
            return connection.execute(f"SELECT {columns} FROM {self.table}").fetchall()

    def dead(self, columns: str = "message_id, reason") -> list[tuple[Any, ...]]:
        with psycopg.connect(self.server.url) as connection:
            return connection.execute(f"SELECT {columns} FROM {self.table}_dead_letters").fetchall()

    @property
    def backlog(self) -> int:
        return int(self.pubsub.statistics(self.subscription)["num_undelivered_messages"])

    def await_all_acknowledged(self) -> None:
        wait_until(lambda: self.backlog == 0, "every message is acknowledged")

    def delivered_once(self, ids: list[str]) -> bool:
        deliveries = self.pubsub.deliveries(self.subscription)
        return {each: deliveries.get(each) for each in ids} == dict.fromkeys(ids, 1)


Staged = Callable[..., Stage]
"""Makes a stage: what the engine does, and sections of the job that differ."""


class Running:
    """A process of `nightshift stream`."""

    def __init__(self, stage: Stage, environment: Mapping[str, str]) -> None:
        self.log = stage.folder / f"stream-{unique()}.log"
        settings = {
            "PYTHONPATH": str(PLUGINS),
            "PUBSUB_EMULATOR_HOST": stage.pubsub.emulator.target,
            "NIGHTSHIFT_SINK_URL": stage.server.url,
            "ENGINE_URL": stage.engine.url,
        }
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "nightshift.cli", "stream", str(stage.file), "--metrics-port", "0"],
                env={**os.environ, **settings, **environment},
                stdout=output,
                stderr=output,
            )

    def lines(self) -> list[dict[str, Any]]:
        # The last line may not be there in full.
        written, _, _ = self.log.read_text().rpartition("\n")
        return [json.loads(line) for line in written.splitlines() if line.startswith("{")]

    def metrics_port(self) -> int:
        """Once it serves them."""
        wait_until(lambda: self.said("metrics"), "its metrics are served")
        return next(int(line["port"]) for line in self.lines() if line["message"] == "metrics")

    def said(self, message: str) -> bool:
        return any(line["message"] == message for line in self.lines())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        """SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def vector_text(text: str) -> str:
    """The canned engine's answer, as PostgreSQL writes it."""
    return "[" + ",".join(f"{number:g}" for number in vector_of(text)) + "]"
