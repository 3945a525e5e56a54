"""Executes a task as Airflow does: a new process's operator for each part, and between them its trigger as it was stored."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import TaskDeferred

from tests.cluster.airflow_task import first_event

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context
    from airflow.triggers.base import BaseTrigger

Event = dict[str, Any]


def attempt(operator: Callable[[], BaseOperator], context: Context, log: logging.Logger, woken: Callable[[Event], None]) -> Any:
    """One try of a task, to its result. operator: makes a new one for each part. woken: gets each event that ends a deferral.

    What the task raises passes through: it would cost a retry, or fail.
    """
    method: str = "execute"
    arguments: dict[str, Any] = {}
    while True:
        try:
            return getattr(operator(), method)(context, **arguments)
        except TaskDeferred as deferred:
            event = asyncio.run(first_event(_stored(deferred.trigger, log), patience_s=None))
            woken(event)
            method, arguments = deferred.method_name, {"event": event}


def _stored(trigger: BaseTrigger, log: logging.Logger) -> BaseTrigger:
    """As the triggerer makes it, from what the database kept."""
    _, arguments = trigger.serialize()
    made: BaseTrigger = type(trigger)(**json.loads(json.dumps(arguments)))
    made._log = log  # type: ignore[assignment]
    return made
