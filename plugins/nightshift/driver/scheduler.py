"""Decides what to send next and what an outcome means. Synchronous, without I/O.

Chunks enter by `open_chunk`; their rows leave in groups by `next_group` and come back by `answered`, `refused`, `failed` or
`returned`. When the last row of a chunk has its result, `pop_finished` hands the chunk over. Rows are rendered as they leave,
so memory holds what is in flight and not what waits.

A row that was in flight at `SUSPECT_DEATHS` deaths of the engine may be the cause: it is sent alone from then on, and if
the engine dies `ALONE_DEATHS` more times it becomes a dead letter. Rows that were in flight with it are answered.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from nightshift.driver.budget import bytes_of
from nightshift.driver.open_chunk import OpenChunk
from nightshift.driver.time_limit import Stopped, stopping, timely
from nightshift.run.chunks import Result, Saved
from nightshift.tasks import NoProcess
from nightshift.tasks.base import Answers, BadInput, Discarded, Filling, Reason, RowName, Spoiled, TaskKind

Rows = Iterator[tuple[int, RowName, Mapping[str, Any]]]
"""Ordinal, name and values of the rows of a chunk that are not sent yet."""

TRIES: Final = 4
"""How often a row may be part of a request that fails inside a healthy engine before it is singled out, and then given up."""
DROPS: Final = 10
"""Connections that may break under a row, or requests with it that the engine may abort, before that counts as one failure:
networks fail too, and engines shut down."""
REFUSALS: Final = 50
"""Times that the engine may have no room for a row, while it answers others, before that counts as one failure. Generous: if
other clients keep an engine full, it refuses good rows again and again."""
REFUSALS_PROVEN: Final = 3
"""The same, if a canary that was sent beside the row is answered each time. However full an engine is, it answers the row as
often as the canary, so it happens to a good row with a chance of a half at most: twelve times to one in 4,096 at most."""
SUSPECT_DEATHS: Final = 2
ALONE_DEATHS: Final = 2
"""Twice, because something else may have killed the engine while an innocent row was alone in it."""
MESSAGE_MAX: Final = 500
"""Characters of the engine's message that a dead letter keeps."""


@dataclass(slots=True)
class Row:
    """A row on its way. tries: requests it was sent in. faults: those that failed for an unknown cause.

    invalid: replies that were not an answer. drops: connections that broke, and requests that were aborted, while the engine
    lived. refusals: for want of room, while others were answered; proven: those beside a canary. deaths: of an engine with
    this row in flight; alone: with no other row. failed_at: the number of the engine that failed it last, or died with it.
    hurried: times that it waited for its engine's canary, and that had not all the time of a request.
    """

    chunk: int
    ordinal: int
    payload: Any
    tries: int = 0
    faults: int = 0
    invalid: int = 0
    drops: int = 0
    refusals: int = 0
    proven: int = 0
    deaths: int = 0
    alone: int = 0
    failed_at: int | None = None
    hurried: int = 0


@dataclass(slots=True, eq=False)
class Group:
    """Rows of one chunk that travel in one request.

    isolated: nothing else is in flight. resting: it waits to be sent; no engine has it now. sent: when it was last sent (the
    loop's time); engine: the number of the one that it was, or is to be, sent to.
    """

    rows: list[Row]
    isolated: bool = False
    resting: bool = False
    sent: float = 0.0
    engine: int = 0

    @property
    def chunk(self) -> int:
        return self.rows[0].chunk

    @property
    def payloads(self) -> list[Any]:
        return [row.payload for row in self.rows]


@dataclass(frozen=True, slots=True)
class DeadLetterCause:
    """Why rows become dead letters; the fields are those of `Result`."""

    reason: Reason
    message: str
    status: int | None = None


class Scheduler:
    """All open chunks of one worker. judged(chunk, result): called with each result of it, before its chunk may be complete."""

    def __init__(self, kind: TaskKind, judged: Callable[[OpenChunk, Result], None] | None = None) -> None:
        self._kind = kind
        self._judged = judged
        self._filling = kind if isinstance(kind, Filling) else None
        self._chars_per_request = (self._filling and self._filling.chars_per_request) or math.inf
        self._open: dict[int, OpenChunk] = {}
        self._sources: deque[tuple[OpenChunk, Rows]] = deque()
        self._again: deque[Group] = deque()
        self._suspects: deque[Row] = deque()
        self._finished: deque[OpenChunk] = deque()
        self._flying: dict[Group, None] = {}
        self._rows_flying = 0
        self.rows_at: Counter[int] = Counter()
        """Of the rows in flight, those that each engine has, or is to get (again), by its number."""

    def __repr__(self) -> str:
        return f"Scheduler({', '.join(f'{name}={value}' for name, value in self.statistics().items())})"

    def statistics(self) -> dict[str, int]:
        """open_chunks, groups_waiting (to be sent again), suspects, rows_in_flight, finished_chunks."""
        return {
            "open_chunks": len(self._open),
            "groups_waiting": len(self._again),
            "suspects": len(self._suspects),
            "rows_in_flight": self._rows_flying,
            "finished_chunks": len(self._finished),
        }

    @property
    def rows_in_flight(self) -> int:
        return self._rows_flying

    @property
    def requests_in_flight(self) -> int:
        return len(self._flying)

    @property
    def in_flight(self) -> list[Group]:
        """Those that an engine has, or is to get."""
        return list(self._flying)

    @property
    def sources(self) -> int:
        """Open chunks that have not sent all their rows once."""
        return len(self._sources)

    @property
    def hungry(self) -> bool:
        """Whether none is left, so another chunk should be opened."""
        return not self._sources

    @property
    def answer_bytes(self) -> int:
        """About what the answers of the open chunks take in memory once each of their rows has one."""
        full = (chunk.answer_bytes * chunk.expected // len(chunk.results) for chunk in self._open.values() if chunk.results)
        return sum(full)

    @property
    def idle(self) -> bool:
        """Whether nothing is open or waits to be handed over."""
        return not self._open and not self._finished

    def open_chunk(
        self,
        number: int,
        ordinals: range,
        rows: Iterator[Mapping[str, Any]],
        known: Mapping[str, Saved],
        names: Iterable[RowName] | None = None,
    ) -> None:
        """Takes a chunk's rows, in ordinal order, read one by one as they are sent.

        names: of the rows, for their seeds; by default their ordinals. known: what earlier attempts saved, by attempt; where
        several saved the same row, the first one counts.
        """
        chunk = OpenChunk(number, ordinals.start, len(ordinals), judged=self._judged)
        for saved in known.values():
            chunk.take_over(saved)
        self._open[number] = chunk
        self._sources.append((chunk, zip(ordinals, ordinals if names is None else names, rows, strict=True)))
        self._settle(chunk)

    def next_group(self) -> Group | None:
        """The next rows to send; None when nothing may be sent now."""
        if self._suspects:
            if self._flying:
                return None
            return self._fly(Group([self._suspects.popleft()], isolated=True))
        if any(group.isolated for group in itertools.islice(self._flying, 1)):
            return None
        if self._again:
            return self._fly(self._again.popleft())
        while self._sources and not stopping():
            chunk, rows = self._sources[0]
            try:
                group, more = self._gather(chunk, rows)
            except Stopped:
                break  # These rows stay without a result; the next attempt renders them.
            if not more:
                self._sources.popleft()
            if group:
                return self._fly(Group(group))
            self._settle(chunk)
        return None

    def wants(self, group: Group) -> bool:
        """Whether the group's chunk is still open here."""
        return group.chunk in self._open

    def answered(self, group: Group, answers: Answers) -> None:
        """The engine answered the group; a row whose answer it spoiled goes again, alone."""
        chunk = self._landed(group)
        if chunk is None:
            return
        for row, answer in zip(group.rows, answers.rows, strict=True):
            if isinstance(answer, Discarded):
                self._give_up(chunk, row.ordinal, DeadLetterCause(answer.reason, answer.message), row.tries)
                continue
            if isinstance(answer, Spoiled):
                row.faults, row.invalid = row.faults + 1, row.invalid + 1
                self._queue([row])
                continue
            chunk.put(Result(row.ordinal, answer.prediction, None, None, row.tries, reasoning=answer.reasoning))
            chunk.truncated += answer.truncated
            chunk.answer_bytes += bytes_of(answer)
        chunk.prompt_tokens += answers.prompt_tokens
        chunk.output_tokens += answers.output_tokens
        self._settle(chunk)

    def refused(self, group: Group, reason: Reason, message: str, status: int | None = None) -> None:
        """The request was refused for good: one row becomes a dead letter, several are sent again in halves."""
        chunk = self._landed(group)
        if chunk is not None:
            self._condemn(chunk, group, DeadLetterCause(reason, message, status))

    def failed(self, group: Group, reason: Reason, message: str, status: int | None = None) -> None:
        """The request failed inside the engine, or its reply was invalid: sent again, and after `TRIES` treated as refused."""
        chunk = self._landed(group)
        if chunk is None:
            return
        for row in group.rows:
            row.faults += 1
            row.failed_at = group.engine
            row.invalid += reason is Reason.INVALID_OUTPUT
        if group.rows[0].faults >= TRIES:
            for row in group.rows:
                # In a smaller group a row gets a second chance, so one more hiccup does not condemn an innocent one.
                row.faults = TRIES - 2
            self._condemn(chunk, group, DeadLetterCause(reason, message, status))
        else:
            self._queue(group.rows)

    def returned(self, group: Group) -> None:
        """The request was not judged, through no fault of its rows (engine busy or away, or draining): sent again."""
        if self._landed(group) is not None:
            self._queue(group.rows)

    def dropped(
        self, group: Group, message: str, status: int | None = None, *, busy: bool = False, proven: bool = False
    ) -> None:
        """The connection broke, or the request was aborted, while the engine answered others: sent again.

        busy: it was turned away for want of room instead; proven: while a canary beside it was answered. After `DROPS`,
        `REFUSALS` or `REFUSALS_PROVEN` times treated as failed.
        """
        for row in group.rows:
            row.drops += not busy
            row.refusals += busy
            row.proven += proven
        first = group.rows[0]
        enough = proven and first.proven % REFUSALS_PROVEN == 0
        if enough or not (first.refusals % REFUSALS if busy else first.drops % DROPS):
            self.failed(group, Reason.ENGINE_ERROR, message, status)
        else:
            self.returned(group)

    def halved(self, group: Group) -> None:
        """The request failed for an unknown cause: sent again in halves, which counts against no row."""
        if self._landed(group) is not None:
            self._queue(*_halves(group.rows))

    def engine_died(self, message: str, status: int | None, engine: int) -> int:
        """The engine with this number died with what it had; returns how many rows became dead letters because of it.

        The groups still have to be given back with `returned`.
        """
        given_up = 0
        for group in [group for group in self._flying if not group.resting and group.engine == engine]:
            for row in group.rows:
                row.deaths += 1
                row.failed_at = engine
            if not group.isolated:
                continue
            (row,) = group.rows
            row.alone += 1
            if row.alone >= ALONE_DEATHS and (chunk := self._landed(group)) is not None:
                self._condemn(chunk, group, DeadLetterCause(Reason.ENGINE_KILLED, message, status))
                given_up += 1
        return given_up

    def abandon(self, number: int) -> OpenChunk | None:
        """Forgets an open chunk that another worker has committed; what is in flight for it will be ignored."""
        chunk = self._open.pop(number, None)
        self._sources = deque(source for source in self._sources if source[0].number != number)
        self._again = deque(group for group in self._again if group.chunk != number)
        self._suspects = deque(row for row in self._suspects if row.chunk != number)
        return chunk

    def pop_finished(self) -> OpenChunk | None:
        """The next chunk whose every row has its result."""
        return self._finished.popleft() if self._finished else None

    def unfinished(self) -> list[OpenChunk]:
        """Chunks with some results of this worker's own, but not all: what a drain saves."""
        return [chunk for chunk in self._open.values() if chunk.computed]

    def answered_before(self) -> tuple[int, int] | None:
        """A row of an open chunk that was answered in an earlier attempt, as chunk and ordinal."""
        rows = ((chunk, ordinal) for chunk in self._open.values() for ordinal in chunk.theirs)
        return next(((chunk.number, ordinal) for chunk, ordinal in rows if chunk.results[ordinal].reason is None), None)

    def open_numbers(self) -> list[int]:
        return list(self._open)

    def _gather(self, chunk: OpenChunk, rows: Rows) -> tuple[list[Row], bool]:
        """A request's worth of rows that have no result yet, and whether the chunk may have more; fewer only at its end."""
        group: list[Row] = []
        chars = 0
        for ordinal, name, row in rows:
            if ordinal in chunk.results:
                continue
            try:
                group.append(Row(chunk.number, ordinal, timely(self._kind.render, row, name)))
            except NoProcess:
                raise
            except Exception as error:  # Whatever its kind raises for a row concerns that row alone.
                message = str(error) if isinstance(error, BadInput) else f"the row cannot be rendered: {error!r}"
                self._give_up(chunk, ordinal, DeadLetterCause(Reason.BAD_INPUT, message), 0)
                continue
            chars += self._filling.chars(group[-1].payload) if self._filling else 0
            if len(group) == self._kind.rows_per_request or chars >= self._chars_per_request:
                return group, True
        return group, False

    def _fly(self, group: Group) -> Group:
        for row in group.rows:
            row.tries += 1
        self._flying[group] = None
        self._rows_flying += len(group.rows)
        self.rows_at[group.engine] += len(group.rows)
        return group

    def _landed(self, group: Group) -> OpenChunk | None:
        """The group is no longer in flight. None if that was already known, or its chunk is no longer open."""
        if self._flying.pop(group, group) is not None:
            return None
        self._rows_flying -= len(group.rows)
        self.rows_at[group.engine] -= len(group.rows)
        return self._open.get(group.chunk)

    def _queue(self, *requests: list[Row]) -> None:
        """To be sent again before anything new: a chunk should not stay open for a few rows. Suspects wait to be sent alone."""
        for rows in requests:
            for row in rows:
                if row.alone:
                    # It comes first: the engine's losses are counted until something explains them.
                    self._suspects.appendleft(row)
                elif row.deaths >= SUSPECT_DEATHS:
                    self._suspects.append(row)
            innocent = [row for row in rows if row.deaths < SUSPECT_DEATHS]
            if innocent:
                self._again.append(Group(innocent))

    def _condemn(self, chunk: OpenChunk, group: Group, cause: DeadLetterCause) -> None:
        if len(group.rows) == 1:
            (row,) = group.rows
            self._give_up(chunk, row.ordinal, cause, row.tries)
            self._settle(chunk)
            return
        self._queue(*_halves(group.rows))

    def _give_up(self, chunk: OpenChunk, ordinal: int, cause: DeadLetterCause, tries: int) -> None:
        # JSON can escape half a surrogate pair, which Parquet rejects: the chunk's other rows must not suffer for it.
        kept = cause.message[:MESSAGE_MAX].encode(errors="replace").decode()
        chunk.put(Result(ordinal, None, str(cause.reason), kept, tries, cause.status))

    def _settle(self, chunk: OpenChunk) -> None:
        if chunk.complete and self._open.get(chunk.number) is chunk:
            del self._open[chunk.number]
            self._finished.append(chunk)
            # It may not have been asked for more rows since its last one; it would keep the chunk's answers.
            self._sources = deque(source for source in self._sources if source[0] is not chunk)


def _halves(rows: list[Row]) -> tuple[list[Row], list[Row]]:
    middle = len(rows) // 2
    return rows[:middle], rows[middle:]
