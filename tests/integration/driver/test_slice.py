"""A worker of several hosts: the driver of host 0 works on the slice's shard, those of the others keep their places."""

from __future__ import annotations

from pathlib import Path

import pytest

from nightshift import exits
from tests.integration.driver.canned import CannedEngine
from tests.integration.driver.runs import DriverProcess, prepare

pytestmark = [pytest.mark.integration, pytest.mark.gate]


def test_host_0_works_on_the_shard_of_its_slice(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, [f"text {number}" for number in range(64)], workers=2)
    home = {row for chunk in prepared.plan.shard(1) for row in prepared.plan.chunk_range(chunk)}
    with CannedEngine() as engine:
        code = DriverProcess(prepared, engine.url, index=0, extra={"NIGHTSHIFT_SHARD": "1"}).finish()
        first = int(engine.seen[0].split()[1])

    assert code == exits.DONE
    assert first == min(home)
    assert home <= set(prepared.rows())


def test_another_host_sends_nothing_and_ends_only_when_told_to(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, ["text"])
    with CannedEngine() as engine:
        driver = DriverProcess(prepared, engine.url, index=1, extra={"NIGHTSHIFT_SHARD": "0"})
        driver.wait_for("standing by")
        driver.terminate()
        code = driver.finish()
        seen = engine.seen

    # Whatever became of the slice's work: this host did none of it.
    assert code == exits.RESUME
    assert seen == []
    assert prepared.rows() == {}


def test_a_slice_waits_for_its_engine_as_long_as_it_is_told(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, ["text"])
    with CannedEngine() as engine:
        engine.healthy = False
        driver = DriverProcess(prepared, engine.url, index=0, extra={"NIGHTSHIFT_SHARD": "0", "NIGHTSHIFT_ENGINE_WAIT_S": "1"})
        code = driver.finish()

    assert code == exits.RESUME
    assert "engine did not become healthy" in driver.messages()
