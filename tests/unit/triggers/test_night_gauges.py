"""What a trigger sends of its night to Airflow's metrics: once at each check, and when it ends."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import MemoryStore

from nightshift.jobset.fleet import watch
from nightshift.jobset.fleet.watch import FleetWatch, NightNow
from nightshift.triggers import night_gauges
from nightshift.triggers.night_gauges import NightGauges
from tests.builders import PLAN_UID, RUN, WORK
from tests.folder_cluster import FolderRuntime, a_trigger
from tests.jobsets import Agent

pytestmark = pytest.mark.unit

HOUR = 3600.0
TAGS = {"nightshift_job": RUN.job, "nightshift_run": RUN.run_id}


class Stats:
    """Airflow's metrics, as they are used here."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, float, dict[str, str]]] = []

    def gauge(self, name: str, value: float, *, tags: dict[str, str]) -> None:
        self.sent.append((name.removeprefix(night_gauges.PREFIX), value, tags))

    def values(self) -> dict[str, float]:
        """The last value of each."""
        return {name: value for name, value, _ in self.sent}


@pytest.fixture
def stats(monkeypatch: pytest.MonkeyPatch) -> Stats:
    found = Stats()
    monkeypatch.setattr(night_gauges, "_stats", lambda: found)
    return found


def jobset(**changes: Any) -> dict[str, Any]:
    return {"profile": "cpu", "workers": 2, "helps": False, "hosts": 2, "ready_at": time.time() - 60, "price": 7.2, **changes}


def a_look(**jobsets: dict[str, Any]) -> dict[str, Any]:
    terms = {"profiles": ["cpu"], "start_up_s": 600.0, "room": 100, "stated": True, "helped": 0}
    return {
        "run": RUN.prefix,
        "rows": 1000,
        "chunk_rows": 10,
        "plan_uid": PLAN_UID,
        "seqs": 1,
        "speed": 0.1,
        "late_since": None,
        "resumed_at": None,
        "terms": terms,
        "currency": "USD",
        "jobsets": jobsets,
    }


async def seen(
    look: dict[str, Any], monkeypatch: pytest.MonkeyPatch, *, running: int = 4, left_s: float = HOUR, worked_s: float = HOUR
) -> FleetWatch:
    """After one check of a night of which 100 rows are committed. running: pods of each JobSet."""
    store = MemoryStore()
    for chunk in range(10):
        obstore.put(store, WORK.chunk_path(chunk), b"rows")
    monkeypatch.setattr(FleetWatch, "_store", store)
    found = FleetWatch(look, time.time() + left_s, logging.getLogger("night"), MemoryStore, NightGauges(look["run"]))
    await found._check({name: {"running": running, "worked_s": worked_s} for name in look["jobsets"]}, False)
    return found


async def test_what_a_check_finds_is_sent(stats: Stats, monkeypatch: pytest.MonkeyPatch) -> None:
    """900 rows at 0.2 a second take 4,500 s, which is longer than an hour."""
    await seen(a_look(one=jobset()), monkeypatch)

    found = stats.values()
    assert (found["rows"], found["rows_committed"]) == (1000, 100)
    assert (found["workers_wanted"], found["workers_running"], found["late"]) == (2, 2, 1)
    assert found["forecast_seconds"] == pytest.approx(4500)
    assert found["deadline_seconds"] == pytest.approx(HOUR, abs=60)
    assert found["cost"] == pytest.approx(3.6), "an hour of two pods is half an hour of two workers"
    assert found["cost_forecast"] == pytest.approx(3.6 + 2 * 7.2 * 4500 / HOUR)
    assert {name for name, _, tags in stats.sent if "currency" in tags} == {"cost", "cost_forecast"}
    assert all(tags.items() >= TAGS.items() for _, _, tags in stats.sent)


async def test_a_jobset_without_a_price_leaves_out_the_cost(stats: Stats, monkeypatch: pytest.MonkeyPatch) -> None:
    await seen(a_look(one=jobset(), two=jobset(price=None)), monkeypatch)

    assert not {"cost", "cost_forecast"} & stats.values().keys()


async def test_terms_of_the_last_release_have_no_price(stats: Stats, monkeypatch: pytest.MonkeyPatch) -> None:
    old = jobset()
    del old["price"]
    await seen({name: value for name, value in a_look(one=old).items() if name != "currency"}, monkeypatch)

    assert stats.values()["rows_committed"] == 100


async def test_a_night_without_workers_is_late_and_has_no_forecast(stats: Stats, monkeypatch: pytest.MonkeyPatch) -> None:
    """No capacity: neither infinity nor a stale number is sent."""
    await seen(a_look(one=jobset()), monkeypatch, running=0, worked_s=0.0)

    found = stats.values()
    assert (found["late"], found["workers_running"], found["workers_wanted"]) == (1, 0, 2)
    assert not {"forecast_seconds", "cost_forecast"} & found.keys()


async def test_when_a_trigger_ends_nothing_of_it_stays_late(
    stats: Stats, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("nightshift.triggers.jobset.SETTLE_S", 0)
    Agent(tmp_path).create("one")
    runtime = FolderRuntime(tmp_path)
    monkeypatch.setattr(watch, "CHECK_S", 0.01)
    monkeypatch.setattr(FleetWatch, "_store", MemoryStore())
    trigger = a_trigger(runtime, "one", seconds=1.0, look=a_look(one=jobset()))

    async for _ in trigger.run():
        pass

    assert "rows" in stats.values(), "it was sent before"
    assert [(name, value) for name, value, _ in stats.sent[-3:]] == [
        ("late", 0),
        ("workers_wanted", 0),
        ("workers_running", 0),
    ]


async def test_a_cancelled_trigger_is_no_exception(stats: Stats, monkeypatch: pytest.MonkeyPatch) -> None:
    """It moves to another triggerer, which sends its own."""
    (await seen(a_look(one=jobset()), monkeypatch)).close()

    assert stats.values()["late"] == 0


def failing() -> Any:
    raise RuntimeError("no collector")


@pytest.mark.parametrize("made", [failing, lambda: None])
def test_metrics_that_cannot_be_sent_fail_nothing(made: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(night_gauges, "_stats", made)

    NightGauges(RUN.prefix).seen(NightNow(1, 1, math.inf, 1.0, True, 1, 1))
    NightGauges(RUN.prefix).over()


def test_airflow_itself_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its module, its names of functions, a backend of ours."""
    from airflow.sdk.observability.metrics import stats_utils

    found = Stats()
    monkeypatch.setattr(stats_utils, "get_stats_factory", lambda: lambda: found)
    night_gauges._stats.cache_clear()
    try:
        NightGauges(RUN.prefix).over()
    finally:
        night_gauges._stats.cache_clear()

    assert found.values() == {"late": 0, "workers_wanted": 0, "workers_running": 0}


def test_the_page_lists_them_all(stats: Stats) -> None:
    page = (Path(__file__).parents[3] / "docs/operate/metrics.md").read_text()
    NightGauges(RUN.prefix).seen(NightNow(1, 1, 1.0, 1.0, True, 1, 1, 1.0, 1.0, "USD"))

    assert [name for name in stats.values() if f"`{night_gauges.PREFIX}{name}`" not in page] == []
