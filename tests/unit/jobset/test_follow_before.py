"""A follower that goes on where another one left: its counts, and the pods that are gone."""

from __future__ import annotations

import json
import logging
import time
from contextlib import nullcontext
from typing import Any

import pytest

from nightshift.jobset.kubernetes.follow import Follower, WakeLimits
from nightshift.jobset.kubernetes.pods import Pods

pytestmark = pytest.mark.unit

LOG = logging.getLogger("follower")


def a_pod(uid: str, phase: str = "Running", **meta: Any) -> dict[str, Any]:
    conditions = [{"type": "DisruptionTarget", "status": "True"}] if phase == "Failed" else []
    return {"metadata": {"name": uid, "uid": uid, **meta}, "status": {"phase": phase, "conditions": conditions}}


def a_follower(before: dict[str, Any] | None = None) -> Follower:
    return Follower(lambda: nullcontext(), "night", "uid", WakeLimits(time.time() + 60), LOG, None, before=before)  # type: ignore[arg-type, return-value]


def left(**counts: Any) -> dict[str, Any]:
    usual = {"wanted": 4, "running": 1, "short_s": 0.0, "held_s": 0.0, "disruptions": 0, "worked_s": 0.0}
    return {"counts": {**usual, **counts}, "pods": []}


def test_nothing_before_means_nothing_counted() -> None:
    counts = a_follower().counts()

    assert (counts.disruptions, counts.worked_s) == (0, 0.0)
    assert counts.short_s < 5


def test_how_long_it_has_been_short_goes_on() -> None:
    """Else a wake-up every 15 minutes would never let a profile's patience of 15 minutes end."""
    counts = a_follower(left(short_s=800.0, worked_s=1700.0)).counts()

    assert counts.short_s == pytest.approx(800, abs=5)
    assert (counts.held_s, counts.worked_s) == (0.0, 1700.0)


def test_how_long_it_has_had_enough_goes_on() -> None:
    counts = a_follower(left(held_s=500.0)).counts()

    assert counts.held_s == pytest.approx(500, abs=5)
    assert counts.short_s == 0.0


def test_pods_that_were_taken_away_are_counted_once() -> None:
    first = Pods()
    for uid in ("a", "b"):
        first.update(a_pod(uid))
    first.update(a_pod("a", "Failed"))
    first.update(a_pod("b"), deleted=True)
    assert first.disruptions == 2

    follower = a_follower(json.loads(json.dumps({**left(disruptions=2), "pods": first.last_words()})))
    follower.pods.update(a_pod("a", "Failed"))
    follower.pods.update(a_pod("c", "Failed"))

    assert follower.counts().disruptions == 3
    assert [pod["metadata"]["uid"] for pod in follower.left()["pods"]] == ["b", "a", "c"]


async def test_a_client_that_an_outage_has_closed_is_not_asked_to_note_anything() -> None:
    """It raises an error of its own, which would end the trigger."""

    class Closed:
        async def patch_jobset(self, *_: Any) -> None:
            raise RuntimeError("Session is closed")

    follower = Follower(lambda: nullcontext(), "night", "uid", WakeLimits(time.time() + 60), LOG, lambda *_: None)  # type: ignore[arg-type, return-value]
    assert follower._logs is not None
    follower._logs._fresh = True
    follower._api = Closed()  # type: ignore[assignment]
    await follower._close()

    await follower.note()


def test_what_it_leaves_is_what_the_next_one_takes() -> None:
    first = a_follower(left(held_s=500.0, disruptions=3, worked_s=17.0))

    again = a_follower(json.loads(json.dumps(first.left())))

    assert again.counts().held_s == pytest.approx(first.counts().held_s, abs=5)
    assert (again.counts().disruptions, again.counts().worked_s) == (3, 17.0)
