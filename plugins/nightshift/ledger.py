"""The ledger: a run's committed chunks in object storage. Nothing else is state.

A chunk is committed by creating one object with a create-only precondition; the first writer wins and a loser throws its
copy away. Resume is one LIST. A drain saves the finished rows of open chunks as partials, one object per attempt and chunk,
which only save work: they are never published.
"""

from __future__ import annotations

import json
import re
from typing import Final

from obstore.store import ObjectStore

from nightshift.plan import Plan
from nightshift.run import RunRef, canonical_json
from nightshift.store import Objects, create_or_read, get_bytes

_CHUNK: Final = re.compile(r"chunk-(\d{8,})\.parquet")
_PARTIAL: Final = re.compile(r".*/partials/chunk-(\d{8,})/[^/]+\.parquet")


class ForeignObject(ValueError):
    """The run's ledger holds an object that its plan does not know: somebody wrote where only nightshift may."""


class Ledger:
    """Commits, lists and reads the chunks of one run.

    All state is in the store; an instance may be thrown away at any moment.
    """

    def __init__(self, objects: Objects, run: RunRef, plan: Plan) -> None:
        self._objects = objects
        self._folder = run.prefix
        self._chunk_count = plan.chunk_count

    def chunk_path(self, chunk: int) -> str:
        return f"{self._folder}/ledger/chunk-{chunk:08d}.parquet"

    async def committed(self) -> set[int]:
        """The committed chunks, by one paged LIST. Raises ForeignObject for a name that no chunk of the plan has."""
        found = set()
        async for path in self._objects.list(f"{self._folder}/ledger"):
            match = _CHUNK.fullmatch(path.rsplit("/", 1)[1])
            if match is None or int(match[1]) >= self._chunk_count:
                raise ForeignObject(f"{path} is not a chunk of this run, which has {self._chunk_count} chunks")
            found.add(int(match[1]))
        return found

    async def commit(self, chunk: int, body: bytes) -> bool:
        """Commits a chunk. True: it is committed by this call. False: it was committed before, this copy is not needed.

        A repeat after StoreUnavailable is safe. It may answer False to the writer whose first, lost reply was a success;
        either way the chunk is committed, so callers need not tell the two apart.
        """
        return await self._objects.create(self.chunk_path(chunk), body)

    async def read(self, chunk: int) -> bytes | None:
        """The committed object of a chunk, or None."""
        return await self._objects.read(self.chunk_path(chunk))

    async def save_partial(self, chunk: int, attempt: str, body: bytes) -> None:
        """Keeps the finished rows of an open chunk. An attempt saves a chunk once; a repeat after a lost reply is harmless."""
        await self._objects.create(f"{self._folder}/partials/chunk-{chunk:08d}/{attempt}.parquet", body)

    async def partials(self) -> dict[int, list[str]]:
        """Paths of all saved partials by chunk, by one LIST, sorted so that every reader meets them in the same order.

        What is called otherwise is passed over: partials only save work.
        """
        found: dict[int, list[str]] = {}
        async for path in self._objects.list(f"{self._folder}/partials"):
            if match := _PARTIAL.fullmatch(path):
                found.setdefault(int(match[1]), []).append(path)
        return {chunk: sorted(paths) for chunk, paths in found.items()}

    async def read_partial(self, path: str) -> bytes | None:
        return await self._objects.read(path)


def load_plan(store: ObjectStore, run: RunRef) -> Plan | None:
    """The run's plan, None before `extract` has written it. The store is rooted at the bucket."""
    body = get_bytes(store, f"{run.prefix}/plan.json")
    return None if body is None else Plan.from_json(json.loads(body))


def save_plan(store: ObjectStore, run: RunRef, plan: Plan) -> Plan:
    """Writes `plan.json` unless there is one; returns the plan that is there: the first one written counts for ever."""
    return Plan.from_json(json.loads(create_or_read(store, f"{run.prefix}/plan.json", canonical_json(plan.to_json()))))
