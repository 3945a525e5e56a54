"""A task of KubernetesJobSetOperator, taken through its life as Airflow does, without an Airflow: attempts that are executed,
defer, are resumed by their trigger's event or are killed; what outlives an attempt is what outlives one in Airflow."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from airflow._shared.module_loading import import_string
from airflow.sdk import DAG
from airflow.sdk.exceptions import TaskDeferred
from airflow.triggers.base import BaseTrigger

from nightshift.jobset.kubernetes.aio import AsyncJobSetApi
from nightshift.jobset.labels import OWNER_ANNOTATION
from nightshift.operators.jobset import KubernetesJobSetOperator
from nightshift.triggers.jobset import KubernetesJobSetTrigger
from tests.cluster.kube import Namespace
from tests.kept_state import KeptState

PATIENCE_S: Final = 600.0


@dataclass(frozen=True)
class Deferred:
    """What Airflow keeps of a deferred task: the attempt, and its trigger as stored."""

    attempt: str
    path: str
    kwargs: Mapping[str, Any]

    @property
    def jobset(self) -> str:
        """The name of the one that is waited for."""
        (jobset,) = self.kwargs["jobsets"]
        return str(jobset["name"])


class Log(logging.Handler):
    """A task's log: what its operator and its triggers have written."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.logger = logging.Logger("task")
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def of(self, container: str) -> list[str]:
        """What a container has written, in all its pods: '[POD CONTAINER] text' as 'text'."""
        parts = [line.partition("] ") for line in self.lines if line.startswith("[")]
        return [text for mark, _, text in parts if mark.endswith(f" {container}")]

    def said(self, words: str) -> bool:
        return any(words in line for line in self.lines)


class LoggingOperator(KubernetesJobSetOperator):
    """Writes into a log that a test can read: Airflow's own operators make a new one each time."""

    task_log: logging.Logger

    @property
    def log(self) -> Any:
        return self.task_log

    def waiter(self, *arguments: Any) -> BaseTrigger:
        trigger = super().waiter(*arguments)
        # For a task that waits in its worker.
        trigger._log = self.task_log  # type: ignore[assignment]
        return trigger


class Task:
    """One task instance. kubeconfig: by which way it reaches the cluster. parameters: the operator's."""

    def __init__(
        self, namespace: Namespace, jobset: Mapping[str, Any], *, kubeconfig: Path | None = None, **parameters: Any
    ) -> None:
        self.namespace = namespace
        self.log = Log()
        self.state = KeptState()
        self.xcoms: dict[str, Any] = {}
        self.kubeconfig = kubeconfig or namespace.cluster.kubeconfig
        self._jobset = jobset
        self._parameters = {"deadline": timedelta(minutes=10), **parameters}

    def operator(self, kind: type[LoggingOperator] = LoggingOperator) -> LoggingOperator:
        """As a new process has it."""
        # Not `with DAG`, which is of the process: tests do this in several threads at once.
        operator = kind(
            task_id="run",
            dag=DAG("night", schedule=None),
            jobset=self._jobset,
            namespace=self.namespace.name,
            kubernetes_conn_id=None,
            config_file=str(self.kubeconfig),
            **self._parameters,
        )
        operator.task_log = self.log.logger
        return operator

    def context(self, attempt: str) -> Any:
        ti = SimpleNamespace(
            id=attempt,
            dag_id="night",
            task_id="run",
            # Of all tests' namespaces together no two task instances are the same.
            run_id=self.namespace.name,
            map_index=-1,
            max_tries=0,
            xcom_push=self.xcoms.__setitem__,
        )
        return {"ti": ti, "task_state_store": self.state}

    def execute(self, operator: LoggingOperator | None = None, attempt: str = "") -> Deferred:
        """An attempt, by default a new one, up to where it waits."""
        attempt = attempt or uuid.uuid4().hex
        with pytest.raises(TaskDeferred) as deferred:
            (operator or self.operator()).execute(self.context(attempt))
        return self._stored(attempt, deferred.value)

    def resume(self, deferred: Deferred, event: Mapping[str, Any]) -> Any:
        """What the task returns, or what it waits for next."""
        try:
            return self.operator().execute_complete(self.context(deferred.attempt), dict(event))
        except TaskDeferred as again:
            return self._stored(deferred.attempt, again)

    def trigger(self, deferred: Deferred) -> KubernetesJobSetTrigger:
        """As a triggerer makes it from what is stored."""
        trigger: KubernetesJobSetTrigger = import_string(deferred.path)(**json.loads(json.dumps(deferred.kwargs)))
        trigger._log = self.log.logger  # type: ignore[assignment]
        return trigger

    def wait(self, deferred: Deferred) -> dict[str, Any]:
        """The trigger's one event."""
        return asyncio.run(self.event(deferred))

    async def event(self, deferred: Deferred) -> dict[str, Any]:
        return await first_event(self.trigger(deferred))

    def kill(self, deferred: Deferred) -> None:
        """What a triggerer does when a person has ended the waiting task."""
        asyncio.run(self.trigger(deferred).on_kill())

    def finish(self, deferred: Deferred | None = None) -> Any:
        """Waits and resumes until the task is over; what it returns. Raises what it raises."""
        current: Any = deferred or self.execute()
        while isinstance(current, Deferred):
            current = self.resume(current, self.wait(current))
        return current

    def jobsets(self) -> list[dict[str, Any]]:
        return self.namespace.get("jobsets")

    def owner(self) -> str:
        """Who waits for the JobSet, as it says itself."""
        [jobset] = self.jobsets()
        return str(jobset["metadata"]["annotations"][OWNER_ANNOTATION])

    def _stored(self, attempt: str, deferred: TaskDeferred) -> Deferred:
        assert deferred.method_name == "execute_complete"
        path, kwargs = deferred.trigger.serialize()
        return Deferred(attempt, path, json.loads(json.dumps(kwargs)))


async def first_event(trigger: BaseTrigger, patience_s: float | None = PATIENCE_S) -> dict[str, Any]:
    """The one that counts, as it comes out of Airflow's database. Raises TimeoutError after `patience_s`, None: never."""

    async def first() -> dict[str, Any]:
        async for fired in trigger.run():
            return dict(json.loads(json.dumps(fired.payload)))
        raise AssertionError("the trigger ended without an event")

    return await asyncio.wait_for(first(), patience_s)


class Following:
    """A trigger that runs in the background of an asynchronous test, and can be killed as its triggerer would be.

    sessions: how often it has begun to talk to the API.
    """

    def __init__(self, task: Task, deferred: Deferred) -> None:
        self.sessions = 0
        self.trigger = task.trigger(deferred)
        connect = self.trigger.connect

        def counted() -> AbstractAsyncContextManager[AsyncJobSetApi]:
            self.sessions += 1
            return connect()

        self.trigger.connect = counted  # type: ignore[method-assign]
        self._running = asyncio.create_task(first_event(self.trigger))

    async def event(self) -> dict[str, Any]:
        return await self._running

    @property
    def fired(self) -> bool:
        return self._running.done()

    async def kill(self) -> None:
        self._running.cancel()
        with suppress(asyncio.CancelledError):
            await self._running
