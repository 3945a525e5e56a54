"""The triggers: every field lives through Airflow's database, and each end of a JobSet is its event."""

from __future__ import annotations

import inspect
import time
from pathlib import Path
from typing import Any

import pytest
from airflow._shared.module_loading import import_string
from airflow.serialization.serialized_objects import BaseSerialization
from airflow.triggers.base import BaseTrigger

from nightshift.triggers.bigquery import BigQueryJobsTrigger
from nightshift.triggers.jobset import JobSetTrigger
from nightshift.triggers.polling import poll
from tests.jobsets import Agent

pytestmark = pytest.mark.unit

TRIGGERS = [
    BigQueryJobsTrigger(job_ids=["a", "b"], deadline=1763700000.5, poll_interval=7.5),
    JobSetTrigger(name="job-0123456789", deadline=1763700000.5, poll_interval=7.5),
]


@pytest.mark.parametrize("trigger", TRIGGERS, ids=lambda trigger: type(trigger).__name__)
class TestSerialization:
    def test_every_argument_is_kept(self, trigger: BaseTrigger) -> None:
        arguments = set(inspect.signature(type(trigger).__init__).parameters) - {"self"}

        assert set(trigger.serialize()[1]) == arguments

    def test_it_is_made_again_as_it_was(self, trigger: BaseTrigger) -> None:
        path, kwargs = trigger.serialize()
        stored = BaseSerialization.deserialize(BaseSerialization.serialize(kwargs))

        again = import_string(path)(**stored)

        assert type(again) is type(trigger)
        assert again.serialize() == trigger.serialize()


NAME = "job-0123456789"


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Agent:
    """Of the deployment's local runtime; no trigger waits for Airflow's scheduler here."""
    monkeypatch.setenv("NIGHTSHIFT_PROJECT", "acme")
    monkeypatch.setenv("NIGHTSHIFT_BUCKET", "runs")
    monkeypatch.setenv("NIGHTSHIFT_RUNTIME", f"local:{tmp_path}")
    assert poll.__kwdefaults__ is not None
    monkeypatch.setitem(poll.__kwdefaults__, "settle_s", 0)
    return Agent(tmp_path)


async def event(deadline: float) -> dict[str, Any]:
    trigger = JobSetTrigger(name=NAME, deadline=deadline, poll_interval=0.01)
    events = [fired.payload async for fired in trigger.run()]
    assert len(events) == 1
    return dict(events[0])


class TestJobSetTrigger:
    @pytest.mark.parametrize("phase", ["Completed", "Failed"])
    async def test_a_finished_jobset(self, agent: Agent, phase: Any) -> None:
        agent.create(NAME)
        agent.says(NAME, phase)

        assert await event(time.time() + 60) == {"version": 1, "name": NAME, "ending": "finished"}

    async def test_a_jobset_that_is_gone(self, agent: Agent) -> None:
        assert await event(time.time() + 60) == {"version": 1, "name": NAME, "ending": "lost"}

    async def test_a_jobset_that_works_on_past_the_deadline(self, agent: Agent) -> None:
        agent.create(NAME)

        assert await event(time.time() + 0.05) == {"version": 1, "name": NAME, "ending": "deadline"}

    async def test_a_person_who_ends_the_task_ends_the_jobset(self, agent: Agent) -> None:
        agent.create(NAME)

        await JobSetTrigger(name=NAME, deadline=time.time() + 60).on_kill()

        assert agent.was_asked_to_stop(NAME)

    async def test_the_end_of_a_triggerer_leaves_the_jobset_alone(self, agent: Agent) -> None:
        agent.create(NAME)

        await JobSetTrigger(name=NAME, deadline=time.time() + 60).cleanup()

        assert not agent.was_asked_to_stop(NAME)
