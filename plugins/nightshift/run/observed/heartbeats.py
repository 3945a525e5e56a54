"""Heartbeats of attempts in the run's folder, so that an attempt's end is known even if it is killed.

An attempt writes a heartbeat when it starts, another after each period (`period_s`), and a last one with how it ended. The
newest one counts. They serve people, records and costs: whether a chunk is done never depends on them.

Their cost: in 3 h an attempt writes 307 heartbeats, so 100 workers write 30,700 objects of about 600 bytes, Cloud Storage's
class A operations ($0.05 for 10,000 in a region: $0.15). The seal lists them in 31 pages and reads 100
(`tests/unit/driver/test_heartbeats.py` counts them).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from nightshift.formats import MARK, UnreadableFormat
from nightshift.run.names import canonical_json

LEAST_S: Final = 5.0
SHARE: Final = 0.02
MOST_S: Final = 60.0
BYTES_MOST: Final = 16 << 10
"""A heartbeat has about 600."""
NUMBER_MOST: Final = 10**15
"""More seconds, rows or tokens than any attempt or run has."""

_TEXTS: Final = ("attempt", "profile", "role", "node", "pod", "born_at", "at")
_COUNTS: Final = ("rows_answered", "rows_dead", "rows_from_partials", "rows_lost", "input_tokens", "output_tokens", "not_saved")
_SECONDS: Final = ("age_s", "next_s", "work_s", "engine_wait_s", "cpus")


class NotAHeartbeat(ValueError):
    """Not the JSON of a heartbeat that this release reads."""


class Ended(StrEnum):
    """How an attempt ended, by its own account."""

    DONE = "done"
    """Its work is committed."""
    DRAINED = "drained"
    """It got SIGTERM: its machine was taken away, its JobSet deleted, or the like."""
    GAVE_UP = "gave_up"
    """Engine or store did not answer in time."""
    CANNOT_CONTINUE = "cannot_continue"
    """Trying again does not help: exit code 78."""
    FAILED = "failed"
    """An unexpected error."""


@dataclass(frozen=True)
class Heartbeat:
    """An attempt at one moment.

    profile: "" if unknown. role: "owner" or "helper". index: of the worker in its JobSet; None if it has none.
    cpus: that its process may use. born_at, at: its start and now by its machine's clock, ISO 8601 in UTC. age_s: seconds since
    its start. next_s: seconds until the next heartbeat, 0 if there is none. ended: None while it runs. Rows and tokens:
    `nightshift.driver.stats.Stats`.
    work_s: from its first request to its last answer. engine_wait_s: without an engine, once it had one. start_up_s: `weights`,
    from its start until its engine answered, and `warm_up`, from then to its first request, with which its work begins; missing
    until they are over.
    not_saved: earlier heartbeats that could not be stored.
    """

    attempt: str
    profile: str
    role: str
    index: int | None
    node: str
    pod: str
    cpus: float
    born_at: str
    at: str
    age_s: float
    next_s: float = 0.0
    ended: Ended | None = None
    rows_answered: int = 0
    rows_dead: int = 0
    rows_from_partials: int = 0
    rows_lost: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    work_s: float = 0.0
    engine_wait_s: float = 0.0
    start_up_s: Mapping[str, float] = field(default_factory=dict)
    not_saved: int = 0

    def to_bytes(self) -> bytes:
        return canonical_json({**MARK.stamp(), **{name: getattr(self, name) for name in self.__dataclass_fields__}})

    @classmethod
    def from_bytes(cls, body: bytes) -> Heartbeat:
        """Inverse of `to_bytes`; entries that a later release added are passed over. Raises NotAHeartbeat."""
        if len(body) > BYTES_MOST:
            raise NotAHeartbeat(f"it has {len(body)} bytes, more than {BYTES_MOST}")
        try:
            value = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise NotAHeartbeat(f"not JSON: {error}") from error
        if not isinstance(value, dict):
            raise NotAHeartbeat("not a JSON object")
        try:
            MARK.check(value, "it")
            beat = cls(**{name: value[name] for name in cls.__dataclass_fields__})
        except UnreadableFormat as error:
            raise NotAHeartbeat(str(error)) from error
        except KeyError as error:
            raise NotAHeartbeat(f"it lacks {error}") from error
        if wrong := _wrong_with(beat):
            raise NotAHeartbeat(wrong)
        return replace(beat, ended=beat.ended and Ended(beat.ended))


def period_s(age_s: float) -> float:
    """Seconds to the next heartbeat: so the end of an attempt that is killed is known to within 2 % of its age, or 5 s."""
    return min(MOST_S, max(LEAST_S, SHARE * age_s))


def ended_at_age_s(beat: Heartbeat) -> float:
    """The age in seconds at which an attempt ended, from its last beat. If it was killed: on average half a period later."""
    return beat.age_s + beat.next_s / 2


def _wrong_with(beat: Heartbeat) -> str:
    """The first invalid entry; '' if all are valid."""
    for name in _TEXTS:
        if not isinstance(getattr(beat, name), str):
            return f"{name} is not a text"
    for name in _COUNTS:
        if not _is_number(getattr(beat, name)) or not isinstance(getattr(beat, name), int):
            return f"{name} is not a count"
    for name in _SECONDS:
        if not _is_number(getattr(beat, name)):
            return f"{name} is not a number from 0"
    if beat.index is not None and not (_is_number(beat.index) and isinstance(beat.index, int)):
        return "index is not a count"
    if beat.ended is not None and beat.ended not in [*Ended]:
        return f"ended is {beat.ended!r}"
    if not isinstance(beat.start_up_s, dict) or not all(map(_is_number, beat.start_up_s.values())):
        return "start_up_s is not a number of seconds for each stage"
    return ""


def _is_number(value: object) -> bool:
    # NaN compares as False. What is larger would not survive the sums.
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= NUMBER_MOST
