"""What the task seal says about a run that is complete but that a person should look at."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk import DAG
from obstore.store import MemoryStore, ObjectStore

from nightshift.operators.seal import SealOperator
from nightshift.run import chunks, opening
from nightshift.run.ledger import Ledger
from nightshift.run.manifest import load_manifest
from nightshift.run.names import RunRef
from nightshift.run.pins import Pins
from nightshift.run.plan import Plan, save_plan
from nightshift.store import ObjectStorage
from tests.builders import a_chunk, a_plan, a_spec, bound, with_rows

pytestmark = pytest.mark.unit


def a_run(store: ObjectStore, *made: dict[str, Any], prediction: Callable[[int], list[float]] | None = None) -> RunRef:
    """Complete, with a chunk of four rows for each `made`: fields of its provenance. prediction: of each row."""
    run = opening.open_run(store, a_spec(), "2026-11-20", opened_by="night")
    plan = Plan(run.run_id, 4 * len(made), 4, 1, a_plan(4 * len(made)).files)
    plan = save_plan(store, run, bound(store, run, with_rows(store, plan, run)))
    for chunk, fields in enumerate(made):
        table, provenance = chunks.decode(a_chunk(run, plan, chunk))
        results, kind = chunks.results_of(table), table.schema.field("prediction").type
        if prediction is not None:
            results = [dataclasses.replace(each, prediction=prediction(each.ordinal)) for each in results]
        body = chunks.encode(table.select(["id"]), results, kind, dataclasses.replace(provenance, **fields))
        asyncio.run(Ledger(ObjectStorage(store), run, plan).commit(chunk, body))
    return run


class Log:
    """What tasks log, through either of the ways that Airflow has for it."""

    def __init__(self, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
        self._caplog, self._capsys = caplog, capsys

    def of_sealing(self, store: ObjectStore, run: RunRef) -> str:
        with DAG("job", schedule=None):
            operator = SealOperator(task_id="seal", run_prefix=run.prefix, terms="")
        operator.__dict__["store"] = store
        self._caplog.clear()
        operator.execute({})
        return self._caplog.text + self._capsys.readouterr().out


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> Log:
    return Log(caplog, capsys)


ENGINES = "Several answered them, and may answer the same row differently ("
CUT = "answers were cut, at max_tokens or before their text began"


def test_a_run_of_one_engine_without_cut_answers_warns_of_nothing(log: Log) -> None:
    store = MemoryStore()
    told = log.of_sealing(store, a_run(store, {"engine_version": "0.1"}, {"engine_version": "0.1"}))

    assert "8 rows = 8 predictions" in told
    assert (ENGINES in told, CUT in told) == (False, False)


def test_engines_that_differ_are_named_with_their_rows(log: Log) -> None:
    store = MemoryStore()
    run = a_run(store, {"engine_version": "0.2"}, {"engine_version": "0.1"}, {"engine_version": "0.2"})

    assert f"{ENGINES}4 rows by 0.1, 8 rows by 0.2)" in log.of_sealing(store, run)


def test_the_run_manifest_says_what_the_run_pinned(log: Log) -> None:
    store = MemoryStore()
    run = opening.open_run(store, a_spec(), "2026-11-20", opened_by="night", pin=lambda: Pins(commit="c" * 40))
    log.of_sealing(store, a_run(store, {}))

    manifest = load_manifest(store, run)
    assert manifest is not None
    assert manifest.pins == Pins(commit="c" * 40)


def test_cut_answers_are_counted(log: Log) -> None:
    store = MemoryStore()

    assert f"3 of 8 {CUT}" in log.of_sealing(store, a_run(store, {"truncated": 2}, {"truncated": 1}))


@pytest.mark.parametrize(
    ("prediction", "rows", "counted", "warned"),
    [
        (
            lambda n: [0.5, 0.25],
            20,
            (0, 20),
            "Look at some prompts and answers before you use them: 20 of 20 answers are the same.",
        ),
        (lambda n: [], 20, (20, 0), "Look at some prompts and answers before you use them: 20 of 20 answers are empty."),
        (lambda n: [0.5, 0.25], 16, (0, 16), None),
        (lambda n: [float(n), 0.25], 20, (0, 1), None),
    ],
    ids=["equal", "empty", "too few to say", "different"],
)
def test_answers_that_say_nothing_are_noticed(
    log: Log, prediction: Callable[[int], list[float]], rows: int, counted: tuple[int, int], warned: str | None
) -> None:
    store = MemoryStore()
    run = a_run(store, *({} for _ in range(rows // 4)), prediction=prediction)
    told = log.of_sealing(store, run)

    assert ("Look at some prompts" in told) == (warned is not None)
    assert warned is None or warned in told
    manifest = load_manifest(store, run)
    assert manifest is not None
    assert (manifest.empty, manifest.equal) == counted
