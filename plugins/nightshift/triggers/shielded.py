"""Work of a trigger that continues when Airflow no longer waits for it.

If a user ends a waiting task, Airflow cancels its trigger, which then runs `on_kill`. But Airflow 3.3 cancels the trigger
again in each round of its loop, a second apart, until the trigger has ended, and whichever cancellation comes while `on_kill`
runs ends that, too (`TriggerRunner.cancel_triggers`, `TriggerRunner.run_trigger`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from nightshift.jobset.kubernetes.follow import Log

# An event loop itself does not keep the tasks that run in it.
_at_work: Final[set[asyncio.Task[None]]] = set()


async def run_shielded(work: Coroutine[Any, Any, None], log: Log) -> None:
    """Waits for `work`, which continues if the caller is cancelled, as long as the event loop runs. Raises what `work` raises.

    log: gets the error as well, because the caller may be gone.
    """
    task = asyncio.create_task(_logged(work, log))
    _at_work.add(task)
    task.add_done_callback(_ended)
    await asyncio.shield(task)


def _ended(task: asyncio.Task[None]) -> None:
    _at_work.discard(task)
    if not task.cancelled():
        task.exception()  # Else asyncio would log it a second time.


async def _logged(work: Coroutine[Any, Any, None], log: Log) -> None:
    try:
        await work
    except Exception as error:
        log.warning("%s: %s", type(error).__name__, error)
        raise
