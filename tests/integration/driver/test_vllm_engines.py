"""The real driver against two real vLLM servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from nightshift import exits
from tests.builders import a_spec
from tests.integration.driver.runs import DriverProcess, prepare
from tests.integration.driver.vllm import MINILM, Vllm

pytestmark = pytest.mark.integration

ROWS = 480
LONG = "a sentence about trains. " * 16


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Vllm]]:
    with ExitStack() as stack:
        started = []
        for number in range(2):
            # One after the other: two that start beside each other take more than twice the time here.
            started.append(Vllm(a_spec(**MINILM), tmp_path_factory.mktemp("vllm") / f"vllm-{number}.log"))
            stack.callback(started[-1].kill)
            started[-1].await_health()
        yield started


def test_each_row_is_computed_once_by_one_of_both(tmp_path: Path, engines: list[Vllm]) -> None:
    prepared = prepare(tmp_path, [f"package number {n}" for n in range(400)], **MINILM)
    before = [engine.requests_served() for engine in engines]

    code = DriverProcess(prepared, ",".join(engine.url for engine in engines)).finish()

    assert code == exits.DONE
    assert Counter(row["dead_reason"] for row in prepared.rows().values()) == {None: 400}
    served = [engine.requests_served() - earlier for engine, earlier in zip(engines, before, strict=True)]
    assert sum(served) == 400
    assert min(served) > 100, "both work"


def test_one_of_two_engines_killed_in_the_middle_costs_no_row(tmp_path: Path, engines: list[Vllm]) -> None:
    prepared = prepare(tmp_path, [f"{n} {LONG}" for n in range(ROWS)], chunk_rows=8, **MINILM)
    driver = DriverProcess(prepared, ",".join(engine.url for engine in engines))
    driver.wait_for("committed")
    engines[0].kill()
    driver.wait_for("engine lost")
    driver.wait_for("committed")
    engines[0].start()

    assert driver.finish() == exits.DONE, "one engine answers all the time"

    rows = prepared.rows()
    assert sorted(rows) == list(range(ROWS))
    assert Counter(row["dead_reason"] for row in rows.values()) == {None: ROWS}
    assert max(row["attempts"] for row in rows.values()) <= 2
    (done,) = [entry for entry in driver.log if entry["message"] == "done"]
    assert (done["engine_losses"], done["rows_dead"]) == (1, 0)
