"""What a trigger finds out when Airflow tells it that its task no longer waits, which is all that Airflow says."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from airflow.triggers.base import BaseTrigger

ERROR_KEY: Final = "error"
"""The XCom of a task that has failed for good: why."""
MARKED: Final = (
    "A person stopped the night: its task {} was marked failed. What is committed stays: to continue, clear that task and all "
    "after it."
)


async def ended_by_a_person(trigger: BaseTrigger) -> bool:
    """Whether a person marked the task, or its DAG run, or deleted the DAG run; then a failed task keeps that as its error.

    If not, the task was cleared, and its next attempt takes over what the trigger waits for; or a triggerer that had stood
    still cancels what another one has taken over. False too, with a warning, if Airflow does not say.
    """
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
    from airflow.sdk.execution_time.xcom import XCom

    ti = trigger.task_instance
    if ti is None:
        return False
    where = {"dag_id": ti.dag_id, "task_id": ti.task_id, "run_id": ti.run_id}
    try:
        found = await asyncio.to_thread(
            RuntimeTaskInstance.get_task_states, ti.dag_id, ti.map_index, task_ids=[ti.task_id], run_ids=[ti.run_id]
        )
        # Airflow leaves out a DAG run that it does not have.
        state = next(iter(found.get(ti.run_id, {}).values()), "removed")
        if state == "failed":
            await asyncio.to_thread(lambda: XCom.set(ERROR_KEY, MARKED.format(ti.task_id), map_index=ti.map_index, **where))
    except Exception as error:
        trigger.log.warning("Airflow does not say what has become of the task: %r", error)
        return False
    return state in ("failed", "success", "skipped", "removed")
