"""A JobSet that Kueue has given up on: its follower says so within a minute, not at the deadline.

The API is a stand-in: a real Kueue gives up after minutes, and not for every reason that it has.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from nightshift.jobset.kubernetes import follow
from nightshift.jobset.kubernetes.follow import Followed, Follower, WakeLimits
from nightshift.jobset.labels import PAUSED_ANNOTATION
from nightshift.jobset.runtime import RequestRefused
from tests.unit.recorded import recorded

pytestmark = pytest.mark.unit

LOG = logging.getLogger("follower")
WORDS = "The workload is deactivated due to exceeding the maximum number of re-queuing retries"


class Api:
    """Of a JobSet that is suspended, and of which nothing changes. refuses: the account may not read Workloads."""

    def __init__(self, reason: str, pods: list[dict[str, Any]] | None = None, *, refuses: bool = False) -> None:
        seen = recorded("queue-time-over")
        assert seen.jobset is not None
        assert seen.workload is not None
        self.jobset: dict[str, Any] = {**seen.jobset}
        self.workload = seen.workload
        for each in self.workload["status"]["conditions"]:
            if each["type"] == "Evicted":
                each.update(reason=reason, message=WORDS)
        self._pods = pods or []
        self._refuses = refuses

    async def list_jobset(self, _: str) -> tuple[list[dict[str, Any]], str]:
        return [self.jobset], "1"

    async def list_pods(self, _: str) -> tuple[list[dict[str, Any]], str]:
        return self._pods, "1"

    async def list_events(self, _: str) -> list[dict[str, Any]]:
        return []

    async def get_workload(self, _: str) -> Mapping[str, Any]:
        if self._refuses:
            raise RequestRefused("workloads is forbidden")
        return self.workload

    async def watch_jobset(self, *_: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        await asyncio.Event().wait()
        yield "", {}

    watch_pods = watch_jobset


async def followed(api: Api, monkeypatch: pytest.MonkeyPatch, seconds: float = 60) -> Followed:
    @asynccontextmanager
    async def connect() -> AsyncIterator[Api]:
        yield api

    monkeypatch.setattr(follow, "TICK_S", 0.005)
    monkeypatch.setattr(follow, "EXPLAIN_S", 0.01)
    limits = WakeLimits(time.time() + seconds)
    follower = Follower(connect, "night", api.jobset["metadata"]["uid"], limits, LOG, None)  # type: ignore[arg-type]
    return await follower.run()


@pytest.mark.parametrize("cause", ["RequeuingLimitExceeded", "AdmissionCheck", "NodeFailures"])
async def test_a_wait_ends_with_kueues_words(cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = await followed(Api(f"DeactivatedDueTo{cause}"), monkeypatch)

    assert (found.ending, found.detail) == ("gave_up", f"Kueue gave up on the JobSet: {WORDS}")


async def test_a_wait_ends_when_the_time_in_the_queue_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await followed(Api("DeactivatedDueToMaximumExecutionTimeExceeded"), monkeypatch)

    assert (found.ending, found.detail) == ("gave_up", "the JobSet used up its max-exec-time-seconds in Kueue")


async def test_so_it_does_if_some_of_its_pods_have_succeeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """It had enough pods, by their number."""
    done = recorded("completed").pods[0]

    assert (await followed(Api("DeactivatedDueToRequeuingLimitExceeded", [dict(done)]), monkeypatch)).ending == "gave_up"


async def test_what_a_user_took_out_of_its_queue_waits_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    found = await followed(Api("Deactivated"), monkeypatch, seconds=0.3)

    assert found.ending == "deadline"
    assert f"does not start: the JobSet waits in its queue: {WORDS}" in caplog.text


async def test_what_was_brought_back_into_its_queue_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api("DeactivatedDueToRequeuingLimitExceeded")
    api.workload["spec"]["active"] = True

    assert (await followed(api, monkeypatch, seconds=0.3)).ending == "deadline"


async def test_what_is_paused_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api("DeactivatedDueToRequeuingLimitExceeded")
    api.jobset["metadata"] = {**api.jobset["metadata"], "annotations": {PAUSED_ANNOTATION: "paused by a user"}}

    assert (await followed(api, monkeypatch, seconds=0.3)).ending == "deadline"


async def test_without_the_right_to_read_workloads_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await followed(Api("x", refuses=True), monkeypatch, seconds=0.3)).ending == "deadline"
