"""A trigger of several JobSets: each is followed, judged and ended by what is its own.

Which of several ends first, and how, is the cluster's doing: here followers do it that are told so.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from nightshift.jobset.kubernetes import on_kill
from nightshift.jobset.kubernetes.follow import Followed, Follower, JobSetCounts
from nightshift.triggers import jobset as module
from nightshift.triggers.jobset import KubernetesJobSetTrigger

pytestmark = pytest.mark.unit

LEFT = {"wanted": 1, "running": 1, "short_s": 0.0, "held_s": 9.0, "disruptions": 0, "worked_s": 0.0}
JOBSETS: list[dict[str, Any]] = [
    {"name": "night-a", "uid": "uid-a", "min_running": 50},
    {"name": "night-b", "uid": "uid-b", "min_running": 2},
    {"name": "night-c", "uid": "uid-c"},
]


def a_trigger(**more: Any) -> KubernetesJobSetTrigger:
    settings = {"jobsets": JOBSETS, "namespace": "nights", "deadline": time.time() + 60, "min_running": 3, "get_logs": False}
    return KubernetesJobSetTrigger(**{**settings, **more})


def followers(trigger: KubernetesJobSetTrigger) -> list[Follower]:
    return [trigger._follower(each) for each in trigger.jobsets]


def test_each_is_starved_by_its_own_number_of_pods() -> None:
    assert [each._limits.min_running for each in followers(a_trigger())] == [50, 2, 3]


def test_each_is_followed_by_its_own_name_and_uid() -> None:
    found = [(each._name, each._uid) for each in followers(a_trigger())]

    assert found == [("night-a", "uid-a"), ("night-b", "uid-b"), ("night-c", "uid-c")]


def test_each_goes_on_with_its_own_counts() -> None:
    before = {
        f"night-{letter}": {"counts": {**LEFT, "worked_s": worked}, "pods": []} for letter, worked in (("a", 1.0), ("b", 2.0))
    }

    assert [each.counts().worked_s for each in followers(a_trigger(before=before))] == [1.0, 2.0, 0.0]


def test_what_each_counts_is_told_by_its_name() -> None:
    trigger = a_trigger(before={"night-b": {"counts": {**LEFT, "worked_s": 2.0}, "pods": []}})
    trigger._followers = dict(zip([str(each["name"]) for each in JOBSETS], followers(trigger), strict=True))

    assert {name: count["worked_s"] for name, count in trigger._counts().items()} == {
        "night-a": 0,
        "night-b": 2.0,
        "night-c": 0,
    }


class Told:
    """A follower that ends when and how it is told; never, by default."""

    def __init__(self, ending: Any = None, *, paused: bool = False, reachable: bool = True, signature: str = "") -> None:
        self._ending, self.paused, self.reachable, self.signature = ending, paused, reachable, signature

    async def run(self) -> Followed:
        if self._ending is None:
            await asyncio.Event().wait()
        return Followed(self._ending, "why")

    async def note(self) -> None: ...

    def counts(self) -> JobSetCounts:
        return JobSetCounts(1, 1, 0, 0, 0, 0)

    def left(self) -> dict[str, Any]:
        return {}


def told(trigger: KubernetesJobSetTrigger, *several: Told) -> KubernetesJobSetTrigger:
    trigger._followers = dict(zip([each["name"] for each in trigger.jobsets], several, strict=True))  # type: ignore[arg-type]
    return trigger


@pytest.mark.parametrize("number", [0, 1, 2])
async def test_the_event_is_about_the_one_that_has_ended(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    several = [Told("starved" if each == number else None) for each in range(3)]
    monkeypatch.setattr(module, "SETTLE_S", 0)
    monkeypatch.setattr(KubernetesJobSetTrigger, "_follower", lambda _, jobset: several[JOBSETS.index(jobset)])

    [event] = [fired.payload async for fired in a_trigger().run()]

    assert json.loads(json.dumps(event)) == event
    assert (event["name"], event["uid"], event["ending"]) == (JOBSETS[number]["name"], JOBSETS[number]["uid"], "starved")
    assert set(event["counts"]) == {each["name"] for each in JOBSETS}


def test_an_outage_of_one_is_an_outage() -> None:
    """The forecast of a run counts them all."""
    assert told(a_trigger(), Told(), Told(), Told())._reachable()
    assert not told(a_trigger(), Told(), Told(reachable=False), Told())._reachable()


def test_those_that_are_paused_are_named() -> None:
    assert told(a_trigger(), Told(), Told(paused=True), Told())._paused() == {"night-b"}


async def test_a_person_who_ends_the_task_ends_each_by_its_own_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[tuple[str, ...]] = []

    async def note(_: Any, name: str, uid: str, owner: str, signature: str, policy: str) -> str:
        ended.append((name, uid, owner, signature, policy))
        return "done"

    @asynccontextmanager
    async def connect() -> AsyncIterator[None]:
        yield

    monkeypatch.setattr(on_kill, "apply_kill_policy", note)
    trigger = told(a_trigger(owner="0193", kill_policy="suspend"), *(Told(signature=each) for each in "123"))
    monkeypatch.setattr(trigger, "connect", connect)

    await trigger.on_kill()

    assert ended == [
        ("night-a", "uid-a", "0193", "1", "suspend"),
        ("night-b", "uid-b", "0193", "2", "suspend"),
        ("night-c", "uid-c", "0193", "3", "suspend"),
    ]
