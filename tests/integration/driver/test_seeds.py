"""Each row is sampled with a seed of its own, the same in every run of its partition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nightshift import exits
from nightshift.tasks._sampling import row_seed
from tests.integration.driver.canned import CannedEngine
from tests.integration.driver.runs import DriverProcess, PreparedRun, prepare

pytestmark = [pytest.mark.integration, pytest.mark.gate]

TEXTS: list[str | None] = [f"text {number}" for number in range(20)]
CHAT: dict[str, Any] = {"task": "chat", "request": {"user": "{{ text }}", "seed": 5}, "source__key": ["text"]}


def seeds(prepared: PreparedRun) -> dict[str, int]:
    """What each row was sampled with, by its text."""
    with CannedEngine() as engine:
        driver = DriverProcess(prepared, engine.url)
        assert driver.finish() == exits.DONE, driver.log
    return {row["text"]: int(row["prediction"]) for row in prepared.rows().values()}


def test_a_fresh_run_draws_the_same_though_order_and_copied_columns_differ(tmp_path: Path) -> None:
    first = seeds(prepare(tmp_path / "first", TEXTS, **CHAT))
    other = {**CHAT, "source__pass_through": ["id"]}
    second = seeds(prepare(tmp_path / "second", TEXTS[::-1], chunk_rows=7, **other))

    assert first == second
    assert len(set(first.values())) == len(TEXTS)
    assert first["text 3"] == row_seed(5, '["text 3"]', 0), "for ever: another value changes every sampled answer"
