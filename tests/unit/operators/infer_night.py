"""One run of the task infer on a cluster in a folder: each call is what a new process of Airflow's would do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import obstore
import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import TaskDeferred
from airflow.triggers.base import BaseTrigger
from obstore.store import MemoryStore, ObjectStore

from nightshift.jobset.kubernetes.follow import Followed, WaitEnd
from nightshift.jobset.runtime import RuntimeUnavailable
from nightshift.operators.infer import InferOperator
from nightshift.run.plan import save_plan
from nightshift.settings import Settings
from nightshift.triggers.jobset import jobset_event
from tests.builders import RUN, WORK, a_chunk, a_plan, a_record, a_spec, with_rows
from tests.folder_cluster import FolderRuntime, a_trigger, trigger_of
from tests.jobsets import BUCKET, Agent, an_ended_pod
from tests.kept_state import KeptState

PLAN = a_plan(rows=8, chunk_rows=4)
POD = "pod-0"


class PromptRuntime(FolderRuntime):
    """Its agent carries out a stop at once."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._agent = Agent(folder)

    def stop(self, name: str, uid: str = "") -> None:
        super().stop(name, uid)
        if name in self._agent.names():
            self._agent.remove(name)


class RudeRuntime(PromptRuntime):
    """Takes the JobSet and then loses its reply, once."""

    lost = False

    def submit(self, manifest: Mapping[str, Any]) -> str:
        uid = super().submit(manifest)
        if not self.lost:
            self.lost = True
            raise RuntimeUnavailable("the reply was lost")
        return uid


class Night:
    """One run, whose task `infer` is executed again and again, each time by a new process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.agent = Agent(folder)
        self.store: ObjectStore = MemoryStore()
        self.runtime: FolderRuntime = PromptRuntime(folder)
        self.trigger: Callable[..., BaseTrigger] = trigger_of(self.runtime)
        self.settings = Settings(bucket=BUCKET, project="acme")
        self.context = a_context()
        obstore.put(self.store, f"{RUN.prefix}/spec.json", a_record(a_spec()))
        save_plan(self.store, RUN, with_rows(self.store, PLAN))

    def task(self, **parameters: Any) -> InferOperator:
        with DAG("job", schedule=None):
            operator = InferOperator(task_id="infer", run_prefix=RUN.prefix, terms="", **parameters)
        operator.__dict__.update(settings=self.settings, store=self.store, runtime=self.runtime, new_trigger=self.trigger)
        return operator

    def execute(self) -> str:
        """The name of the JobSet for which the task waits."""
        with pytest.raises(TaskDeferred) as deferred:
            self.task().execute(self.context)
        return waited_for(deferred.value)

    def resume(self, name: str, ending: WaitEnd = "finished") -> dict[str, Any]:
        return self.task().execute_complete(self.context, an_event(name, ending))

    def resume_and_wait(self, name: str, ending: WaitEnd = "finished") -> str:
        """For an end after which the task goes on: the name of the JobSet for which it waits then."""
        with pytest.raises(TaskDeferred) as deferred:
            self.resume(name, ending)
        return waited_for(deferred.value)

    def look(self) -> dict[str, Any]:
        """What a trigger is told of the run, when its task waits for a JobSet."""
        with pytest.raises(TaskDeferred) as deferred:
            self.task().execute(self.context)
        found: dict[str, Any] = deferred.value.trigger.serialize()[1]["look"]
        return found

    def clear(self) -> None:
        """A person clears the task, as `clear_task_instances` of Airflow does: it has all its retries again."""
        self.context["ti"].max_tries += 7

    def commit(self, *chunks: int) -> None:
        for chunk in chunks:
            obstore.put(self.store, WORK.chunk_path(chunk), a_chunk(RUN, PLAN, chunk))


def a_context() -> Any:
    """Of an attempt whose predecessors have left nothing."""
    return {"task_state_store": KeptState(), "ti": SimpleNamespace(id="attempt", max_tries=6)}


def an_event(name: str, ending: WaitEnd) -> dict[str, Any]:
    return jobset_event({"name": name, "uid": ""}, Followed(ending), {})


def fired(night: Night, name: str, look: dict[str, Any] | None = None, within_s: float = 60.0) -> dict[str, Any]:
    """What the trigger makes of the JobSet as it is now. look: of a run. Raises TimeoutError."""

    async def first() -> dict[str, Any]:
        trigger = a_trigger(night.runtime, name, look=look)
        async with asyncio.timeout(within_s):
            [event] = [each.payload async for each in trigger.run()]
        return dict(event)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NIGHTSHIFT_PROJECT", night.settings.project)
        patch.setenv("NIGHTSHIFT_BUCKET", night.settings.bucket)
        patch.setattr("nightshift.triggers.jobset.SETTLE_S", 0)
        patch.setattr("nightshift.jobset.kubernetes.follow.TICK_S", 0.01)
        return asyncio.run(first())


def waited_for(deferred: TaskDeferred) -> str:
    assert deferred.method_name == "execute_complete"
    (jobset,) = deferred.trigger.serialize()[1]["jobsets"]
    return str(jobset["name"])


def failed(agent: Agent, name: str, *, code: int, reason: str = "") -> None:
    agent.says(name, "Failed", pods=[an_ended_pod(POD, code=code, reason=reason)])
