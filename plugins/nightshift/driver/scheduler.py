"""Decides what to send next and what an outcome means. Synchronous and without I/O, so that a simulator can run it.

Rows enter by `open_chunk`, leave in groups by `next_group`, and come back by `answered`, `refused` or `failed`. When the
last row of a chunk has its result, `pop_finished` hands the chunk over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from nightshift.chunks import Result
from nightshift.tasks.base import Answer, BadInput, InvalidReply, Reason, TaskKind

TRIES: Final = 4
"""How often a row may be part of a request that fails inside a healthy engine before it is singled out, and then given up."""
MESSAGE_MAX: Final = 500
"""Characters of the engine's message that a dead letter keeps."""


@dataclass(slots=True)
class Row:
    """A row on its way. tries counts requests it was sent in; faults those that failed without saying whose fault it was."""

    chunk: int
    ordinal: int
    payload: Any
    tries: int = 0
    faults: int = 0


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of one chunk that travel in one request."""

    rows: tuple[Row, ...]

    @property
    def payloads(self) -> list[Any]:
        return [row.payload for row in self.rows]


@dataclass(slots=True)
class OpenChunk:
    """A chunk whose rows are under way. Invariant: len(results) <= expected; complete at equality."""

    number: int
    expected: int
    results: dict[int, Result] = field(default_factory=dict)
    prompt_tokens: int = 0

    @property
    def complete(self) -> bool:
        return len(self.results) == self.expected

    def in_order(self) -> list[Result]:
        return [self.results[ordinal] for ordinal in sorted(self.results)]


class Scheduler:
    """All open chunks of one worker. `statistics` and repr show the counts."""

    def __init__(self, kind: TaskKind) -> None:
        self._kind = kind
        self._open: dict[int, OpenChunk] = {}
        self._ready: deque[Group] = deque()
        self._finished: deque[OpenChunk] = deque()
        self._in_flight = 0

    def __repr__(self) -> str:
        counts = ", ".join(f"{name}={value}" for name, value in self.statistics().items())
        return f"Scheduler({counts})"

    def statistics(self) -> dict[str, int]:
        """open_chunks, ready_groups, rows_in_flight, finished_chunks."""
        return {
            "open_chunks": len(self._open),
            "ready_groups": len(self._ready),
            "rows_in_flight": self._in_flight,
            "finished_chunks": len(self._finished),
        }

    def open_chunk(self, number: int, first_ordinal: int, rows: Sequence[Mapping[str, Any]], known: Sequence[Result]) -> None:
        """Takes a chunk's rows, in ordinal order.

        known: results that earlier attempts saved; where several saved the same row, the first one counts.
        """
        chunk = OpenChunk(number, len(rows))
        expected = range(first_ordinal, first_ordinal + len(rows))
        for result in known:
            if result.ordinal in expected:
                chunk.results.setdefault(result.ordinal, result)
        self._open[number] = chunk
        waiting = []
        for ordinal, row in zip(expected, rows, strict=True):
            if ordinal in chunk.results:
                continue
            try:
                waiting.append(Row(number, ordinal, self._kind.render(row)))
            except BadInput as error:
                self._bury(chunk, ordinal, Reason.BAD_INPUT, str(error), 0)
        size = self._kind.rows_per_request
        self._ready.extend(Group(tuple(waiting[i : i + size])) for i in range(0, len(waiting), size))
        self._settle(chunk)

    def next_group(self) -> Group | None:
        """The next rows to send, None when all that is open is under way."""
        if not self._ready:
            return None
        group = self._ready.popleft()
        for row in group.rows:
            row.tries += 1
        self._in_flight += len(group.rows)
        return group

    def answered(self, group: Group, answers: Sequence[Answer], prompt_tokens: int) -> None:
        """The engine answered every row of the group."""
        chunk = self._landed(group)
        for row, answer in zip(group.rows, answers, strict=True):
            chunk.results[row.ordinal] = Result(row.ordinal, answer.prediction, None, None, row.tries)
        chunk.prompt_tokens += prompt_tokens
        self._settle(chunk)

    def refused(self, group: Group, reason: Reason, message: str) -> None:
        """The engine refused the request for good: one row becomes a dead letter, several are sent again in halves."""
        chunk = self._landed(group)
        if len(group.rows) == 1:
            row = group.rows[0]
            self._bury(chunk, row.ordinal, reason, message, row.tries)
            self._settle(chunk)
            return
        middle = len(group.rows) // 2
        # At the front: a chunk with a bad row should not stay open until all else is sent.
        self._ready.appendleft(Group(group.rows[middle:]))
        self._ready.appendleft(Group(group.rows[:middle]))

    def failed(self, group: Group, reason: Reason, message: str) -> None:
        """The request failed inside the engine: sent again as it was, and after `TRIES` judged as refused."""
        for row in group.rows:
            row.faults += 1
        if group.rows[0].faults >= TRIES:
            for row in group.rows:
                # In a smaller group a row gets a second chance, so that one hiccup more does not condemn an innocent one.
                row.faults = TRIES - 2
            self.refused(group, reason, message)
            return
        self.returned(group)

    def returned(self, group: Group) -> None:
        """The request did not reach a verdict through no fault of its rows (engine busy, gone, or draining): sent again."""
        self._landed(group)
        self._ready.appendleft(group)

    def pop_finished(self) -> OpenChunk | None:
        """The next chunk whose every row has its result."""
        return self._finished.popleft() if self._finished else None

    def unfinished(self) -> list[OpenChunk]:
        """Chunks with some results but not all: what a drain saves."""
        return [chunk for chunk in self._open.values() if chunk.results]

    def _landed(self, group: Group) -> OpenChunk:
        self._in_flight -= len(group.rows)
        return self._open[group.rows[0].chunk]

    def _bury(self, chunk: OpenChunk, ordinal: int, reason: Reason, message: str, tries: int) -> None:
        # JSON can escape half a surrogate pair, which no Parquet file takes: the chunk's other rows must not suffer for it.
        kept = message[:MESSAGE_MAX].encode(errors="replace").decode()
        chunk.results[ordinal] = Result(ordinal, None, str(reason), kept, tries)

    def _settle(self, chunk: OpenChunk) -> None:
        if chunk.complete:
            del self._open[chunk.number]
            self._finished.append(chunk)


def judge_reply(kind: TaskKind, group: Group, reply: Mapping[str, Any]) -> tuple[list[Answer], int] | InvalidReply:
    """The answers and prompt tokens of a 200 reply, or why it is none."""
    try:
        answers = kind.answers(reply, len(group.rows))
    except InvalidReply as error:
        return error
    usage = reply.get("usage")
    tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return answers, tokens if isinstance(tokens, int) else 0
