"""When the supervisor gives a part up: what is dead soon, what is slow and alive not, whatever the load of the machine."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from local.stack import service
from local.stack.folder import Folder
from local.stack.parts import Part
from local.stack.service import DEAD_S, SILENCE_S, Service, patience

pytestmark = pytest.mark.unit

CORES = 2


class Watched:
    """One part whose clock, health and components the test sets, on a machine of two cores."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.load = 1000.0, 0.0
        self.problem: str | None = None
        self.broken: str | None = None
        self.given_up: list[str] = []
        monkeypatch.setattr(service, "time", SimpleNamespace(monotonic=lambda: self.now, time=lambda: self.now))
        monkeypatch.setattr(os, "getloadavg", lambda: (self.load, 0.0, 0.0))
        monkeypatch.setattr(os, "cpu_count", lambda: CORES)
        part = Part("airflow", ("true",), {}, "", lambda pid, since: self.problem, lambda pid: self.broken, start_s=300)
        self.service = Service(part, Folder(tmp_path), {}, "life")
        monkeypatch.setattr(self.service, "_give_up", self.given_up.append)
        self.service.pid, self.service._started = 1, self.now

    def go_on(self, seconds: float) -> None:
        for _ in range(round(2 * seconds)):
            self.now += 0.5
            self.service.step()


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    made = Watched(tmp_path, monkeypatch)
    made.go_on(5)
    assert made.service.state == "healthy"
    return made


@pytest.mark.parametrize("load", [0.0, 25.0])
def test_one_that_is_silent_for_good_is_given_up(watched: Watched, load: float) -> None:
    watched.load, watched.problem = load, "scheduler is unhealthy"
    times = max(1.0, load / CORES)

    watched.go_on(SILENCE_S * times - 10)
    assert watched.given_up == []
    watched.go_on(20)
    assert "scheduler is unhealthy" in watched.given_up[0]


def test_one_that_is_slow_and_alive_is_left_alone(watched: Watched) -> None:
    """For four minutes it answers once a minute, while 25 processes want two cores, and a child waits for its parent's turn."""
    watched.load = 25.0
    for number in range(4):
        watched.problem, watched.broken = "it does not answer", f"component with pid {number} is dead"
        watched.go_on(DEAD_S * 10)
        watched.broken = None
        watched.go_on(30)
        watched.problem = None
        watched.go_on(4)
    assert watched.given_up == []


def test_a_dead_component_is_noticed_and_two_that_are_waited_for_are_not_one(watched: Watched) -> None:
    for number in range(10):
        watched.broken = f"component with pid {number} is dead"
        watched.go_on(2)
    assert watched.given_up == []
    watched.go_on(DEAD_S + 2)
    assert watched.given_up[0] == "component with pid 9 is dead"


@pytest.mark.parametrize(("load", "expected"), [(0.1, 1.0), (2.0, 1.0), (25.0, 12.5)])
def test_patience(monkeypatch: pytest.MonkeyPatch, load: float, expected: float) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: CORES)
    assert patience() == expected
