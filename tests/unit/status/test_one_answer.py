"""One run, four screens: the page, `runs`, `status` and `status --watch` say the same of the same folder."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.cli import main, target, trouble
from nightshift.jobset.fleet.shown import save_now
from nightshift.run import pauses
from nightshift.run.observed import endings
from nightshift.run.observed.endings import Ending
from nightshift.run.observed.pods_now import JobSetNow, PodNow, Stage, in_time
from nightshift.status.overview import RunLook
from nightshift.store import open_store
from tests.chat_run import ChatRun, a_chat_run

pytestmark = pytest.mark.unit

NOW = 1_800_000_000.0
GAPS = st.sampled_from((0.0, 1.0, 30.0, 200.0, 299.0, 301.0, 400.0, 1_000.0, 30_000.0))
"""Seconds between two commits: of several workers at once, of one, of slow chunks, and over a pause or a restart."""


@dataclass(frozen=True)
class Case:
    """ages: of the commits, in seconds. asked: requests to pause (True) or resume. forecast: (age, seconds left by then)."""

    ages: Sequence[float]
    chunks: int
    asked: Sequence[bool] = ()
    failed: bool = False
    forecast: tuple[float, float] | None = None


@st.composite
def cases(draw: st.DrawFn) -> Case:
    gaps = draw(st.lists(GAPS, max_size=8))
    ages = [sum(gaps[: number + 1]) for number in range(len(gaps))]
    return Case(
        ages,
        chunks=len(ages) + draw(st.integers(0, 3)) or 1,
        asked=draw(st.lists(st.booleans(), max_size=2)),
        failed=draw(st.booleans()),
        forecast=draw(st.none() | st.tuples(st.sampled_from((10.0, 299.0, 301.0, 5_000.0)), st.sampled_from((60.0, 7_000.0)))),
    )


def folder(path: str, case: Case) -> ChatRun:
    """A run as the case has it. A worker that was restarted is another attempt."""
    run = a_chat_run(open_store(f"file://{path}"), rows=case.chunks * 10 - 3, chunk_rows=10)

    def at(name: str, age: float) -> None:
        os.utime(f"{path}/{name}", (NOW - age, NOW - age))

    at(run.run.plan_path, max(case.ages, default=0.0) + 100.0)
    for number, age in enumerate(case.ages):
        run.commit(number, lambda row: None if row % 10 == 3 else "yes", attempt=f"pod-{number % 3}")
        at(run.work.chunk_path(number), age)
    for paused in case.asked:
        pauses.request_pause(run.store, run.run, paused=paused, by="ada")
    if case.failed:
        endings.record(run.store, run.run, Ending(endings.FAILED, in_time(NOW - 350.0), "r", "infer", "No engine.", 0))
    if case.forecast:
        age, left = case.forecast
        pod = PodNow("tickets-0", 0, Stage.WORKING, in_time(NOW - 9_000))
        now = JobSetNow("tickets-1", in_time(NOW - 400), 1, pods=(pod,))
        save_now(run.store, run.run, replace(now, forecast_at=in_time(NOW - age), ends_at=in_time(NOW - age + left)))
    return run


def said(run: ChatRun, *words: str) -> dict[str, Any]:
    """The first JSON object that a command prints."""
    out = StringIO()
    with redirect_stdout(out), redirect_stderr(StringIO()):
        main(words)
    found: dict[str, Any] = json.loads(out.getvalue().splitlines()[0])
    return found


def answers(run: ChatRun) -> dict[str, tuple[Any, ...]]:
    """By screen: state, rows done, chunks if it says them, dead letters, rate, seconds left."""

    def rounded(value: float | None, digits: int) -> float | None:
        return None if value is None else round(value, digits)

    def summary(found: dict[str, Any]) -> tuple[Any, ...]:
        counts = found["state"], found["rows"], found["done"], found["dead_letters"]
        return (*counts, rounded(found["rate"], 3), rounded(found["seconds_left"], 1))

    def status(found: dict[str, Any]) -> tuple[Any, ...]:
        counts = found["night"]["state"], found["rows_total"], found["rows_done"], found["dead_letters"]
        return (*counts, found["rate_rows_per_s"], found["seconds_left"])

    page = RunLook(run.store, run.run, "url").look().to_json()
    [listed] = said(run, "runs", "--json")["runs"]
    return {
        "page": summary(page["summary"]),
        "page's sums": status({**page["status"], "night": page["summary"]}),
        "runs": summary(listed),
        "status": status(said(run, "status", run.run.run_id, "--json")),
        "watch": status(said(run, "status", run.run.run_id, "--watch", "--json")),
    }


def stopped(_: float) -> None:
    raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTSHIFT_BUCKET", "b")
    monkeypatch.delenv("NIGHTSHIFT_AIRFLOW_URL", raising=False)
    monkeypatch.setattr(time, "sleep", stopped)


def looked_at(case: Case) -> dict[str, tuple[Any, ...]]:
    with tempfile.TemporaryDirectory() as path, mock.patch.object(time, "time", return_value=NOW):
        run = folder(path, case)
        opened = mock.Mock(return_value=run.store)
        with mock.patch.object(target, "open_bucket", opened), mock.patch.object(trouble, "open_bucket", opened):
            return answers(run)


@given(cases())
@settings(max_examples=60, deadline=None)
def test_every_screen_says_the_same(case: Case) -> None:
    found = looked_at(case)

    assert set(found.values()) == {found["page"]}, found


@given(cases())
@settings(max_examples=40, deadline=None)
def test_the_stored_forecast_is_the_time_left_while_it_is_fresh(case: Case) -> None:
    state, *_, left = looked_at(case)["runs"]

    if state == "open" and case.forecast and case.forecast[0] < 300:
        assert left == max(0.0, case.forecast[1] - case.forecast[0])


@pytest.mark.parametrize("ages", [(200.0, 900.0), (400.0, 800.0)])
def test_a_run_of_slow_chunks_has_one_rate(ages: tuple[float, ...]) -> None:
    """These two had 0.0044 and 0.0133 rows a second on two screens, and 400 s left beside "not known yet"."""
    found = looked_at(Case(ages, 4))

    assert {each[4] for each in found.values()} == {round(10 / max(ages), 3)}
