"""The rows of a simulated run: what is wrong with which, the answer that each must get, and the task kind that asks for it."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Final

import pyarrow as pa

from nightshift.run.chunks import Result
from nightshift.run.plan import Plan
from nightshift.store import StoreUnavailable
from nightshift.tasks.base import Answer, Answers, BadInput, InvalidReply, NotDone, Reason, RowName

ABORTED: Final = "aborted"
GARBAGE: Final = "garbage"


class Nature(StrEnum):
    """What a row does to who computes it; rows that are not named are good."""

    BAD_INPUT = "bad_input"
    """No request can be made of it."""
    TOO_LONG = "too_long"
    """The engine refuses a request with it at once."""
    REJECTED = "rejected"
    """The same, for another reason."""
    POISON = "poison"
    """The engine dies of it."""
    ERROR = "error"
    """A request with it ends in a 500."""
    SLOW = "slow"
    """A request with it never ends."""
    INVALID = "invalid"
    """A reply with it is none."""


REASONS: Final = {
    Nature.BAD_INPUT: Reason.BAD_INPUT,
    Nature.TOO_LONG: Reason.TOO_LONG,
    Nature.REJECTED: Reason.REJECTED,
    Nature.POISON: Reason.ENGINE_KILLED,
    Nature.ERROR: Reason.ENGINE_ERROR,
    Nature.SLOW: Reason.TIMEOUT,
    Nature.INVALID: Reason.INVALID_OUTPUT,
}


@dataclass(frozen=True)
class Rows:
    """The truth about every row. natures: the rows that are not good, by ordinal."""

    count: int
    natures: Mapping[int, Nature]

    def text(self, ordinal: int) -> str:
        """The row's input."""
        return f"row {ordinal}"

    def prediction(self, ordinal: int) -> str:
        """The answer, a pure function of the row."""
        return f"answer to row {ordinal}"

    def wrong_with(self, result: Result) -> str | None:
        """What a row's result should be and is not; None when it is right."""
        nature = self.natures.get(result.ordinal)
        expected = (self.prediction(result.ordinal), None) if nature is None else (None, str(REASONS[nature]))
        if (result.prediction, result.reason) == expected:
            return None
        return f"row {result.ordinal} ({nature or 'good'}) is {(result.prediction, result.reason)}, expected {expected}"


class _Arena:
    """Memory of one table at a time. Arrow's buffers refer to their pool without keeping it alive, so none is ever freed."""

    _all: ClassVar[deque[_Arena]] = deque()

    def __init__(self) -> None:
        self.pool = pa.proxy_memory_pool(pa.default_memory_pool())
        self.uses = 0

    @classmethod
    def taken(cls) -> _Arena:
        """One that is empty."""
        arena = cls._all.popleft() if cls._all and not cls._all[0].pool.bytes_allocated() else cls()
        arena.uses += 1
        cls._all.append(arena)
        return arena


class Kept:
    """What a worker keeps of rows and answers, by what Python and Arrow have not let go of."""

    def __init__(self) -> None:
        self.answers = 0
        """Bytes of answers, in UTF-8."""
        self._tables: dict[int, tuple[_Arena, int, int]] = {}

    def table(self, chunk: int, columns: Mapping[str, tuple[Sequence[Any], pa.DataType]]) -> pa.Table:
        """The input rows of a chunk, in memory that is counted until the last buffer of it is let go."""
        arena = _Arena.taken()
        table = pa.table({name: pa.array(values, kind, memory_pool=arena.pool) for name, (values, kind) in columns.items()})
        self._tables[chunk] = (arena, arena.uses, table.nbytes)
        return table

    def tables(self) -> dict[int, int]:
        """Bytes of input by chunk, of those of which anything is kept."""
        self._tables = {
            chunk: (arena, uses, size)
            for chunk, (arena, uses, size) in self._tables.items()
            if arena.uses == uses and arena.pool.bytes_allocated()
        }
        return {chunk: size for chunk, (_, _, size) in self._tables.items()}


class _Prediction(str):
    """An answer that is counted until it is let go."""

    __slots__ = ("_kept",)
    _kept: Kept

    def __new__(cls, text: str, kept: Kept) -> _Prediction:
        made = super().__new__(cls, text)
        made._kept = kept
        kept.answers += len(text)
        return made

    def __del__(self) -> None:
        self._kept.answers -= len(self)

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)


class Kind:
    """A task kind whose payload is the row's text."""

    server_args: tuple[str, ...] = ()
    columns: tuple[str, ...] = ("text",)
    prediction_type = pa.string()

    def __init__(self, rows: Rows, rows_per_request: int, kept: Kept) -> None:
        self.rows_per_request = rows_per_request
        self._rows = rows
        self._kept = kept

    def render(self, row: Mapping[str, Any], name: RowName) -> str:
        ordinal = int(name)
        if row["text"] != self._rows.text(ordinal):
            raise AssertionError(f"ordinal {ordinal} was given the text of another: {row['text']!r}")
        if self._rows.natures.get(ordinal) is Nature.BAD_INPUT:
            raise BadInput("no request can be made of it")
        return self._rows.text(ordinal)

    def request(self, payloads: Sequence[str], retry: int) -> tuple[str, bytes]:
        return "/rows", ",".join(payloads).encode()

    def answers(self, reply: Any, payloads: Sequence[str]) -> Answers:
        if reply == ABORTED:
            raise NotDone(ABORTED)
        if reply == GARBAGE or len(reply) != len(payloads):
            raise InvalidReply(GARBAGE)
        return Answers([Answer(_Prediction(text, self._kept)) for text in reply], len(payloads), len(payloads))


def ordinals_of(body: bytes) -> list[int]:
    """The rows of a request."""
    return [int(part.removeprefix(b"row ")) for part in body.split(b",")]


class Reader:
    """Reads the rows of a chunk; fails now and then, as a store does."""

    def __init__(
        self,
        plan: Plan,
        rows: Rows,
        error: Callable[[], float],
        rng: random.Random,
        kept: Kept,
        reading: Callable[[int], None],
    ) -> None:
        """reading(chunk): called before a chunk's rows are read."""
        self._plan = plan
        self._rows = rows
        self._error = error
        self._rng = rng
        self._kept = kept
        self._reading = reading

    def read(self, chunk: int) -> pa.Table:
        if self._rng.random() < self._error():
            raise StoreUnavailable(f"read the input of chunk {chunk}: no answer")
        self._reading(chunk)
        ordinals = self._plan.chunk_range(chunk)
        texts = [self._rows.text(n) for n in ordinals]
        return self._kept.table(chunk, {"id": (ordinals, pa.int64()), "text": (texts, pa.string())})
