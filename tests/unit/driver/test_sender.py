"""What the sender tells the scheduler of a lost engine.

Health and scheduler are stand-ins: schedules of the simulator in which a refused connection would condemn a row are too rare.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from nightshift.driver.attribution import Canary
from nightshift.driver.engine import Gone
from nightshift.driver.scheduler import Group, Row
from nightshift.driver.sender import Sender

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("reached", [True, False])
def test_the_engine_cannot_have_died_of_a_request_that_never_reached_it(reached: bool) -> None:
    """A group that rests is no suspect (test_scheduler.py)."""
    group = Group([Row(0, 0, "text")], isolated=True)
    rested: list[bool] = []

    async def alive(_loss: Gone) -> bool:
        rested.append(group.resting)
        return False

    sender: Any = Sender.__new__(Sender)
    sender.engines = SimpleNamespace(of=lambda _: SimpleNamespace(health=SimpleNamespace(alive=alive)))
    sender.scheduler = SimpleNamespace(returned=lambda _group: None)

    assert asyncio.run(sender._settle(group, Canary("/x", b"{}", []), Gone("no connection", reached=reached))) is None
    assert rested == [not reached]
