"""The ledger: a run's committed chunks in object storage. Nothing else is progress. The protocol is docs/develop/ledger.md.

A chunk is committed by creating one object with a create-only precondition; the first writer wins and a loser discards its
copy. Resume is one LIST. A drain saves the finished rows of open chunks as partials, one object per attempt and chunk,
which only save work: they are never published. Notes serve users and the early stop; correctness never depends on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from nightshift.fields.text import n
from nightshift.run.names import RunRef, canonical_json
from nightshift.run.plan import Plan
from nightshift.store import Objects, ObjectTooLarge

PAGE: Final = 1000


class ForeignObject(ValueError):
    """The run's ledger holds an object that its plan does not have: another program wrote into it."""


class Chunks:
    """A set of chunk numbers below `count`: one byte each, so a run of a million chunks takes a megabyte."""

    def __init__(self, count: int) -> None:
        self._present = bytearray(count)

    def __contains__(self, chunk: int) -> bool:
        return bool(self._present[chunk])

    def __len__(self) -> int:
        return self._present.count(1)

    def __iter__(self) -> Iterator[int]:
        return (chunk for chunk, present in enumerate(self._present) if present)

    def add(self, chunk: int) -> None:
        self._present[chunk] = 1

    def count_missing(self, chunks: range) -> int:
        """How many of these (contiguous) chunks are not in the set."""
        return self._present.count(0, chunks.start, chunks.stop)

    def missing(self, chunks: range) -> Iterator[int]:
        """Those of these (contiguous) chunks that are not in the set, in order."""
        at = self._present.find(0, chunks.start, chunks.stop)
        while at >= 0:
            yield at
            at = self._present.find(0, at + 1, chunks.stop)


class Ledger:
    """Commits, lists and reads the chunks of one run.

    All state is in the store; an instance may be discarded at any moment.
    """

    def __init__(self, objects: Objects, run: RunRef, plan: Plan) -> None:
        self._objects = objects
        self._work = run.work(plan.uid)
        self._chunk_count = plan.chunk_count

    async def committed(self) -> Chunks:
        """The committed chunks, from one paged LIST. Raises ForeignObject for a name that is not a chunk of the plan."""
        found = Chunks(self._chunk_count)
        await self.refresh(found, range(self._chunk_count))
        return found

    async def refresh(self, known: Chunks, chunks: range) -> None:
        """Adds to `known` those of the contiguous `chunks` that are committed now, from a LIST of only their names."""
        after = self._work.chunk_path(chunks.start - 1) if chunks.start else ""
        async for path in self._objects.list(self._work.ledger_folder, after):
            chunk = self._work.parse_chunk(path)
            if chunk is None or chunk >= self._chunk_count:
                raise ForeignObject(f"{path} is not a chunk of this run, which has {n(self._chunk_count, 'chunk')}")
            if chunk >= chunks.stop:
                return
            known.add(chunk)

    async def commit(self, chunk: int, body: bytes) -> bool:
        """Commits a chunk. True: this copy is committed. False: another one is, and this copy is not needed.

        A repeat after StoreUnavailable is safe: if the reply to the first try was lost, or the store's client retried by
        itself, it finds its own bytes there. Copies are never equal, because each names its attempt.
        """
        path = self._work.chunk_path(chunk)
        return await self._objects.create(path, body) or await self._read(path) == body

    async def read(self, chunk: int) -> bytes | None:
        """The committed object of a chunk, or None; also None if it is larger than any chunk: only the seal need complain."""
        return await self._read(self._work.chunk_path(chunk))

    async def save_partial(self, chunk: int, attempt: str, body: bytes) -> None:
        """Keeps the finished rows of an open chunk. An attempt saves a chunk once; a repeat after a lost reply is harmless."""
        await self._objects.create(self._work.partial_path(chunk, attempt), body)

    async def partials(self, chunk: int) -> dict[str, str]:
        """What was saved of a chunk: paths by attempt, ordered by name, so that every reader sees them in the same order.

        An object with another name is ignored: partials only save work.
        """
        paths = self._objects.list(self._work.partials_folder(chunk))
        return {found[1]: path async for path in paths if (found := self._work.parse_partial(path))}

    async def read_partial(self, path: str) -> bytes | None:
        """None too if it is larger than any partial."""
        return await self._read(path)

    async def _read(self, path: str) -> bytes | None:
        try:
            return await self._objects.read(path)
        except ObjectTooLarge:
            return None

    async def note_dead(self, chunk: int, reasons: Mapping[str, int]) -> None:
        """Notes that the committed chunk has dead letters. Their number is part of the name, so a LIST can add them up."""
        path = self._work.dead_note_path(chunk, sum(reasons.values()))
        await self._objects.create(path, canonical_json(dict(reasons)))

    async def note_lost(self, chunk: int, attempt: str, rows: int) -> None:
        """Notes that `attempt` computed `rows` rows of a chunk that another committed first."""
        await self._objects.create(self._work.lost_note_path(chunk, attempt, rows), b"{}")

    async def dead_letters_noted(self, enough: int) -> int:
        """At least how many dead letters committed chunks have; counting stops above `enough`.

        Never too many, because only the writer of the committed copy notes them; too few if it died before that.
        """
        total = 0
        async for path in self._objects.list(self._work.dead_notes_folder):
            total += self._work.parse_dead_note(path) or 0
            if total > enough:
                break
        return total
