"""Stages for streams: `nightshift.stream` as a process, between servers that the tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from local.ports import new_port
from tests.integration.driver.canned import CannedEngine
from tests.integration.emulators import PostgresServer, PubSubEmulator
from tests.integration.pubsub import PubSub
from tests.integration.stream.processes import Stage, Staged


@pytest.fixture
def staged(pubsub_emulator: PubSubEmulator, postgres_server: PostgresServer, tmp_path: Path) -> Iterator[Staged]:
    """Makes a stage: sections of the job that differ, and what the engine does."""
    pubsub = PubSub(pubsub_emulator)
    engines: list[CannedEngine] = []

    def make(
        *, behaviour: Any = None, server: PostgresServer = postgres_server, exactly_once: bool = False, **job: Any
    ) -> Stage:
        engine = CannedEngine(behaviour, port=new_port())
        engine.__enter__()
        engines.append(engine)
        return Stage(pubsub, server, tmp_path, engine, job, exactly_once=exactly_once)

    yield make
    for engine in engines:
        engine.__exit__(None, None, None)
    pubsub.end_faults()
    pubsub.close()
