"""Finds a request that was answered in another attempt, for a worker that has had no answer of its own yet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from obstore.exceptions import BaseError
from obstore.store import ObjectStore

from nightshift.driver.attribution import Canary
from nightshift.driver.commits import Codec
from nightshift.driver.feeder import Feeder, rows_of
from nightshift.driver.scheduler import Scheduler
from nightshift.driver.sender import Sender
from nightshift.run.inputs import InputReader
from nightshift.run.names import RunRef
from nightshift.run.plan import load_plan
from nightshift.run.redo.redo import Redo
from nightshift.store import StoreUnavailable, get_bytes
from nightshift.tasks.base import BadInput, TaskKind

log = logging.getLogger(__name__)

Completed = Callable[[], tuple[int, Mapping[str, Any]] | None]
"""`answered_row` of the runs that a redo completes."""


def answered_row(
    store: ObjectStore, run: RunRef, redo: Redo, kind: TaskKind, codec: Codec
) -> tuple[int, Mapping[str, Any]] | None:
    """A row that was answered in a run that a redo completes: its own rows may all fail again.

    Its ordinal in its run, and what the kind reads of it; None if none was. Reads one chunk and one row group. Raises
    StoreUnavailable, obstore's errors, OSError, and ValueError for what is not what that run has left.
    """
    from nightshift.run.manifest import load_completed

    earlier = [(redo.run_id, redo.manifest_digest)]
    while earlier:
        run_id, digest = earlier.pop(0)
        done = RunRef.from_prefix(f"{run.job}/{run.partition}/{run_id}")
        plan, manifest = load_plan(store, done), load_completed(store, done, digest)
        if plan is None or manifest is None:
            return None
        entry = next((each for each in manifest.chunks if each.predictions), None)
        if entry is None:
            earlier = earlier or [(each.run_id, each.manifest_digest) for each in manifest.completes]
            continue
        body = get_bytes(store, entry.path)
        if body is None or (place := codec.first_answered(body, plan.chunk_rows)) is None:
            return None
        table = InputReader(store, done, plan, kind.columns, packed=True).read(entry.chunk)
        return plan.chunk_range(entry.chunk).start + place, next(rows_of(table.slice(place, 1), kind.columns))
    return None


async def recalled(
    kind: TaskKind, feeder: Feeder, scheduler: Scheduler, sender: Sender, completed: Completed | None = None
) -> Canary | None:
    """A request with a row that was answered: of an open or a committed chunk, else of a run that this one completes.

    None if none is found.
    """
    try:
        found = await feeder.answered_elsewhere(scheduler.answered_before(), kind.columns)
        if found is None and completed is not None:
            try:
                found = await asyncio.to_thread(completed)
            except (BaseError, OSError, ValueError) as error:
                # The seal and the task publish prove that run: here it only helps to find out whose fault a failure is.
                raise StoreUnavailable(f"read the run that this one completes: {error}") from error
        if found is None:
            return None
        ordinal, row = found
        return await sender.request([kind.render(row, ordinal)], 0)
    except (StoreUnavailable, BadInput) as error:
        log.warning("no answered row could be read", extra={"fields": {"error": str(error)}})
        return None
