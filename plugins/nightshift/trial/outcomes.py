"""What came of a trial's rows. Apart from what computes it: Airflow reads it, and has nothing of the extra `driver`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from nightshift.fields.stored import read


class UnfitEngine(Exception):
    """The engine serves another model than the job's, or not what the job asks of it: trying again cannot help."""


class EngineGone(Exception):
    """The engine went away, or answered no request, for longer than a person waits
    (`nightshift.trial.compute.BUDGET`)."""


class EngineTaken(EngineGone):
    """The cluster took its pod away, for example a Spot machine: this says nothing of the engine, and another try may do."""


class Cause(StrEnum):
    """Why an engine cannot be used as it was started."""

    CANNOT_START = "cannot_start"
    """The engine ends before it answers, and its last words say nothing of memory."""
    OUT_OF_MEMORY = "out_of_memory"
    """At start-up or under load."""
    DIED = "died"
    """The engine ended under load, and its last words say nothing of memory."""
    PREEMPTED = "preempted"
    """vLLM took rows off again that it had begun, for want of room for keys and values: it computes them twice."""
    KV_CACHE_FULL = "kv_cache_full"
    """Keys and values took all of their room, so more rows at once cannot be computed."""

    @property
    def words(self) -> str:
        return _WORDS[self]

    @property
    def of_memory(self) -> bool:
        """Whether a point that needs as much memory fails, too."""
        return self in (Cause.OUT_OF_MEMORY, Cause.PREEMPTED, Cause.KV_CACHE_FULL)


_WORDS: Final = {
    Cause.CANNOT_START: "the engine does not start",
    Cause.OUT_OF_MEMORY: "out of memory",
    Cause.DIED: "the engine ended under load",
    Cause.PREEMPTED: "the engine preempted rows under load",
    Cause.KV_CACHE_FULL: "the KV cache was full under load",
}


@dataclass(frozen=True)
class Computed:
    """One row. prompt: what was sent, None if no request could be made. answer: as `TaskKind.prediction_type` has it.

    finish_reason: as the engine says, if it does; "cut" if it ended before its text began. prompt_tokens, output_tokens: None
    if its request had other rows, too. reason and message are those of a dead letter.
    """

    prompt: str | None = None
    answer: Any = None
    reasoning: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    tries: int = 0
    reason: str | None = None
    message: str | None = None


@dataclass(frozen=True)
class Outcome:
    """rows: in the table's order; none if only numbers were asked for. prompt_tokens, output_tokens: of all. seconds: that the
    engine took. engine: its version.

    dead: dead letters. preemptions: rows that the engine took off again. kv_cache: the most of its KV cache that was used, 0 to
    1, seen once a second. losses: how often the engine went away and came back.
    """

    rows: tuple[Computed, ...]
    prompt_tokens: int
    output_tokens: int
    seconds: float
    engine: str
    dead: int = 0
    preemptions: float = 0.0
    kv_cache: float = 0.0
    losses: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Outcome:
        """Entries of a later release are passed over. Raises ValueError."""
        return read(cls, value)
