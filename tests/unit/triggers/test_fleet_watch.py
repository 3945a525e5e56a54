"""Looking at a night from the triggerer: when the task is woken, and what it is told."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import obstore
import pytest
from obstore.store import MemoryStore

from nightshift.jobset.fleet import watch
from nightshift.jobset.fleet.forecast import Forecast, Rows
from nightshift.jobset.fleet.shown import Shown
from nightshift.jobset.fleet.watch import FleetWatch
from nightshift.jobset.runtime import RuntimeUnavailable
from nightshift.run import pauses
from nightshift.run.observed.pods_kept import load
from nightshift.run.observed.pods_now import FORECAST_S, JobSetNow, PodNow, Stage, forecast_end
from nightshift.triggers import jobset as triggers_jobset
from nightshift.triggers.jobset import KubernetesJobSetTrigger
from tests.builders import PLAN_UID, RUN, WORK
from tests.folder_cluster import FolderRuntime, FolderTrigger, a_trigger
from tests.jobsets import Agent, an_ended_pod

pytestmark = pytest.mark.unit

OWNER, HELPER = "job-0123456789", "job-9876543210"
PATIENCE_S = 60.0
HOUR = 3600.0


def a_look(**changes: Any) -> dict[str, Any]:
    """Of a night of 1,000 rows in chunks of 10, with one worker that should be there by now."""
    jobset = {"profile": "cpu", "workers": 1, "helps": False, "hosts": 1, "ready_at": time.time() - 60}
    terms = {"profiles": ["cpu"], "start_up_s": 600.0, "room": 100, "stated": False, "helped": 0}
    found = {"run": RUN.prefix, "rows": 1000, "chunk_rows": 10, "plan_uid": PLAN_UID, "seqs": 1, "speed": 0.1}
    found |= {"late_since": time.time() - HOUR, "resumed_at": None}
    return {**found, "jobsets": {OWNER: jobset}, "terms": terms, **changes}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """Of the run; a look takes no time."""
    found = MemoryStore()
    monkeypatch.setattr(FleetWatch, "_store", found)
    monkeypatch.setattr(watch, "CHECK_S", 0.01)
    return found


def commit(store: MemoryStore, *chunks: int) -> None:
    for chunk in chunks:
        obstore.put(store, WORK.chunk_path(chunk), b"rows")


async def state_of(look: dict[str, Any], *, left_s: float, paused: bool = False) -> dict[str, Any]:
    """What a lookout says when it wants the task woken."""
    lookout = FleetWatch(look, time.time() + left_s, logging.getLogger("night"), MemoryStore)
    began = time.time()

    def counts() -> dict[str, dict[str, float]]:
        return {name: {"running": 1, "worked_s": time.time() - began} for name in look["jobsets"]}

    those = frozenset(look["jobsets"]) if paused else frozenset()
    await asyncio.wait_for(lookout.until_needed(counts, lambda: those), PATIENCE_S)
    return dict(json.loads(json.dumps(lookout.report.to_json())))


class TestLookout:
    async def test_a_late_night_wakes_its_task_with_a_decision(self, store: MemoryStore) -> None:
        """1,000 rows at 0.1 a second take 10,000 s."""
        state = await state_of(a_look(), left_s=HOUR)

        assert (state["late"], state["profile"]) == (True, "cpu")
        assert state["workers"] == 3
        assert "3 more workers on cpu" in state["why"]

    async def test_one_that_is_in_time_does_not(self, store: MemoryStore) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(state_of(a_look(), left_s=5 * HOUR), 0.2)

    async def test_what_is_committed_counts(self, store: MemoryStore) -> None:
        commit(store, *range(90))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(state_of(a_look(), left_s=HOUR), 0.2)

    async def test_one_that_is_paused_is_not_late(self, store: MemoryStore) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(state_of(a_look(), left_s=HOUR, paused=True), 0.2)

    async def test_a_job_that_says_its_workers_is_not_helped_but_told(
        self, store: MemoryStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        terms = {**a_look()["terms"], "stated": True}
        waiting = asyncio.create_task(state_of(a_look(terms=terms, late_since=None), left_s=HOUR))
        while "rows done" not in caplog.text:  # noqa: ASYNC110 - a log has no event
            await asyncio.sleep(0.01)

        assert not waiting.done()
        waiting.cancel()
        assert "0 of 1,000 rows done: it will end in 167 min, 107 min after the deadline" in caplog.text

    async def test_the_task_is_woken_from_time_to_time(self, store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """Only its process sees the job's file."""
        monkeypatch.setattr(watch, "WAKE_S", 0.1)

        state = await state_of(a_look(), left_s=5 * HOUR)

        assert (state["late"], state["workers"]) == (False, 0)
        assert state["watch"] == {"speed": 0.1, "late_since": None, "resumed_at": None}

    async def test_a_store_that_does_not_answer_ends_no_wait(
        self, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(watch, "WAKE_S", 0.1)
        monkeypatch.setattr(FleetWatch, "_progress", lambda *_: 1 / 0)

        await state_of(a_look(), left_s=HOUR)

        assert caplog.text.count("The run's folder cannot be read") == 1

    @pytest.mark.parametrize(("asked", "paused"), [(True, False), (False, True)])
    async def test_a_request_that_was_only_written_wakes_the_task_which_applies_it(
        self, store: MemoryStore, asked: bool, paused: bool
    ) -> None:
        pauses.request_pause(store, RUN, paused=asked, by="ada")

        state = await state_of(a_look(late_since=None), left_s=5 * HOUR, paused=paused)

        assert (state["workers"], state["why"]) == (0, ""), "nothing was decided"

    async def test_so_does_one_that_only_some_jobsets_follow(self, store: MemoryStore) -> None:
        pauses.request_pause(store, RUN, paused=True, by="ada")
        look = a_look()
        look["jobsets"][HELPER] = {**look["jobsets"][OWNER], "helps": True}
        lookout = FleetWatch(look, time.time() + HOUR, logging.getLogger("night"), MemoryStore)

        await asyncio.wait_for(lookout.until_needed(dict, lambda: frozenset({OWNER})), PATIENCE_S)

    @pytest.mark.parametrize("paused", [True, False])
    async def test_one_that_is_followed_does_not(self, store: MemoryStore, paused: bool) -> None:
        pauses.request_pause(store, RUN, paused=True, by="ada")
        if not paused:
            pauses.request_pause(store, RUN, paused=False, by="ada")

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(state_of(a_look(), left_s=5 * HOUR, paused=paused), 0.2)

    async def test_no_task_is_woken_while_the_cluster_does_not_answer(
        self, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It would use up one retry after the other, and the night waits until its deadline."""
        monkeypatch.setattr(watch, "WAKE_S", 0.0)
        lookout = FleetWatch(a_look(), time.time() + HOUR, logging.getLogger("night"), MemoryStore)
        answers = iter([False] * 20)
        asked: list[bool] = []

        def reachable() -> bool:
            asked.append(next(answers, True))
            return asked[-1]

        counts = {OWNER: {"running": 1, "worked_s": 0.0}}
        await asyncio.wait_for(lookout.until_needed(lambda: counts, reachable=reachable), PATIENCE_S)

        assert asked[:20] == [False] * 20
        assert asked[20]

    async def test_several_hosts_are_one_worker(self, store: MemoryStore) -> None:
        jobset = {**a_look()["jobsets"][OWNER], "hosts": 4}
        lookout = FleetWatch(a_look(jobsets={OWNER: jobset}), time.time() + HOUR, logging.getLogger("night"), MemoryStore)

        (fleet,) = lookout._fleets({OWNER: {"running": 7, "worked_s": 400.0}}).values()

        assert (fleet.running, fleet.worked_s) == (1, 100.0)


class TestKubernetesJobSetTrigger:
    async def test_an_outage_of_the_cluster_ends_no_wait(self, store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(watch, "WAKE_S", 0.0)
        monkeypatch.setattr(triggers_jobset, "SETTLE_S", 0.0)
        jobsets = [{"name": OWNER, "uid": "u"}]
        trigger = KubernetesJobSetTrigger(jobsets=jobsets, namespace="n", deadline=time.time() + HOUR, look=a_look())
        reachable, often = trigger._reachable, asyncio.Event()
        asked: list[bool] = []

        def connect() -> Any:
            raise RuntimeUnavailable("it is being upgraded")

        def counted() -> bool:
            asked.append(reachable())
            if len(asked) >= 20:
                often.set()
            return asked[-1]

        monkeypatch.setattr(trigger, "connect", connect)
        monkeypatch.setattr(trigger, "_reachable", counted)
        fired = asyncio.ensure_future(anext(aiter(trigger.run())))
        ends: list[asyncio.Future[Any]] = [fired, asyncio.ensure_future(often.wait())]
        await asyncio.wait(ends, timeout=20, return_when=asyncio.FIRST_COMPLETED)

        assert not fired.done()
        assert len(asked) >= 20
        assert not any(asked)
        fired.cancel()
        await asyncio.gather(fired, return_exceptions=True)


COUNTS = {"wanted": 1, "running": 1, "short_s": 0.0, "held_s": 17.0, "disruptions": 0, "worked_s": 17.0}


class TestTrigger:
    """Of a night with two JobSets."""

    @pytest.fixture
    def agent(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Agent:
        monkeypatch.setattr("nightshift.triggers.jobset.SETTLE_S", 0)
        monkeypatch.setattr("nightshift.jobset.kubernetes.follow.TICK_S", 0.01)
        found = Agent(tmp_path)
        for name in (OWNER, HELPER):
            found.create(name)
            found.says(name, "Running", pods=[replace(an_ended_pod("pod-0", code=0), phase="Running")])
        return found

    @pytest.fixture
    def runtime(self, tmp_path: Path) -> FolderRuntime:
        return FolderRuntime(tmp_path)

    def trigger(self, runtime: FolderRuntime, **changes: Any) -> FolderTrigger:
        return a_trigger(runtime, OWNER, HELPER, seconds=HOUR, **changes)

    async def event(self, trigger: FolderTrigger) -> dict[str, Any]:
        (event,) = [each.payload async for each in trigger.run()]
        return dict(json.loads(json.dumps(event)))

    @pytest.mark.parametrize("ended", [OWNER, HELPER])
    async def test_the_end_of_either_is_told(
        self, agent: Agent, runtime: FolderRuntime, store: MemoryStore, ended: str
    ) -> None:
        agent.says(ended, "Completed")

        event = await self.event(self.trigger(runtime, look=a_look(late_since=None)))

        assert (event["name"], event["ending"], "before" in event) == (ended, "finished", False)
        assert event["look"]["watch"]["speed"] == 0.1

    async def test_a_decision_ends_the_wait(self, agent: Agent, runtime: FolderRuntime, store: MemoryStore) -> None:
        event = await self.event(self.trigger(runtime, look=a_look(), before={OWNER: {"counts": COUNTS, "pods": []}}))

        assert event["ending"] == "look"
        assert event["look"]["workers"] > 0
        assert event["before"][OWNER]["counts"]["worked_s"] >= 17.0
        assert 0.0 <= event["before"][HELPER]["counts"]["worked_s"] < 17.0

    async def test_a_person_who_ends_the_task_ends_both(self, agent: Agent, runtime: FolderRuntime) -> None:
        await self.trigger(runtime).on_kill()

        assert agent.was_asked_to_stop(OWNER)
        assert agent.was_asked_to_stop(HELPER)


POD = PodNow(f"{OWNER}-0", 0, Stage.WEIGHTS, "2026-11-21T23:18:00Z")
ALIVE = JobSetNow(OWNER, "2026-11-21T23:20:00Z", 1, pods=(POD,))


class TestShown:
    async def test_where_the_pods_are_is_written_when_it_has_changed(self) -> None:
        store, shown = MemoryStore(), Shown(RUN.prefix, logging.getLogger("night"))
        opened: list[str] = []

        def bucket() -> MemoryStore:
            opened.append("once")
            return store

        await shown.write(bucket, [ALIVE])
        first = len(opened)
        await shown.write(bucket, [replace(ALIVE, at="2026-11-21T23:21:00Z")])
        assert len(opened) == first, "only the time has changed"
        await shown.write(bucket, [replace(ALIVE, pods=(replace(POD, stage=Stage.WORKING),))])

        (found,) = load(store, RUN)
        assert [pod.stage for pod in found.pods] == [Stage.WORKING]

    async def test_a_store_that_does_not_answer_is_told_once_and_stops_nothing(self, caplog: pytest.LogCaptureFixture) -> None:
        shown = Shown(RUN.prefix, logging.getLogger("night"))

        for _ in range(3):
            await shown.write(lambda: 1 / 0, [ALIVE])  # type: ignore[arg-type,return-value]

        assert caplog.text.count("Where the pods are is not shown for now") == 1

    async def test_what_is_being_written_when_the_trigger_ends_is_written_before_it_has(self) -> None:
        """The task writes the same object after it."""
        store, shown, begun, go_on = MemoryStore(), Shown(RUN.prefix, logging.getLogger("night")), Event(), Event()

        def slow() -> MemoryStore:
            begun.set()
            assert go_on.wait(PATIENCE_S)
            return store

        writing = asyncio.create_task(shown.write(slow, [ALIVE]))
        assert await asyncio.to_thread(begun.wait, PATIENCE_S)
        writing.cancel()
        asyncio.get_running_loop().call_later(0.05, go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await writing

        assert load(store, RUN) == (ALIVE,)

    @pytest.mark.parametrize(
        ("pod", "end_s", "words"),
        [
            (POD, None, "0 of 100 rows done. No forecast yet: waiting for its engine for 2 min."),
            (
                replace(POD, stage=Stage.WORKING),
                None,
                "0 of 100 rows done. No forecast yet: nothing has been committed so far.",
            ),
            (POD, 60.0, "0 of 100 rows done: WHY. Now waiting for its engine for 2 min."),
            (
                replace(POD, stage=Stage.NODE),
                60.0,
                "0 of 100 rows done: WHY. Now waiting for a machine for 2 min.",
            ),
        ],
    )
    def test_the_line_says_what_is_done_and_what_it_waits_for(self, pod: PodNow, end_s: float | None, words: str) -> None:
        began = datetime.now(UTC) - timedelta(seconds=125)
        shown = Shown(RUN.prefix, logging.getLogger("night"))
        forecast = Forecast(end_s, 3600.0, 0.0, 0.0, 100, {})
        jobset = replace(ALIVE, pods=(replace(pod, since=began.isoformat()),))

        assert shown.progress(Rows(100, 0, 0), 0.0, forecast, [jobset], "WHY") == words
        assert shown.progress(Rows(100, 0, 0), 0.0, forecast, [jobset], "WHY") == "", "nothing has changed"
        assert shown.progress(Rows(60, 40, 40), 2.0, forecast, [jobset], "WHY").startswith("40 of 100 rows done")

    async def test_a_watch_shows_both(self, store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
        lookout = FleetWatch(a_look(), time.time() + 5 * HOUR, logging.getLogger("night"), MemoryStore)
        counts = {OWNER: {"running": 0, "worked_s": 0.0}}
        watching = asyncio.create_task(lookout.until_needed(lambda: counts, pods=lambda: [ALIVE]))
        while "rows done" not in caplog.text:  # noqa: ASYNC110 - a log has no event
            await asyncio.sleep(0.01)
        watching.cancel()

        (found,) = load(store, RUN)
        assert replace(found, forecast_at="") == ALIVE
        assert "0 of 1,000 rows done: at this rate it will never end" in caplog.text

    async def test_the_forecast_is_stored_for_every_screen(self, store: MemoryStore) -> None:
        commit(store, *range(50))
        lookout = FleetWatch(a_look(late_since=None), time.time() + 50 * HOUR, logging.getLogger("night"), MemoryStore)
        counts = {OWNER: {"running": 1, "worked_s": 0.0}}
        watching = asyncio.create_task(lookout.until_needed(lambda: counts, pods=lambda: [ALIVE]))
        while not any(each.forecast_at for each in load(store, RUN)):  # noqa: ASYNC110 - a store has no event
            await asyncio.sleep(0.01)
        watching.cancel()

        now = time.time()
        end = forecast_end(load(store, RUN), now)
        assert end is not None, "500 rows are left, at 0.1 a second"
        assert 4_900 < end - now < 5_100
        assert forecast_end(load(store, RUN), now + 2 * FORECAST_S) is None
