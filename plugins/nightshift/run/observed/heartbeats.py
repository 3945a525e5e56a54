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
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from nightshift.fields.stored import Amount, Count, read
from nightshift.formats import MARK
from nightshift.run.names import canonical_json

LEAST_S: Final = 5.0
SHARE: Final = 0.02
MOST_S: Final = 60.0
BYTES_MOST: Final = 16 << 10
"""A heartbeat has about 600."""


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
    index: Count | None
    node: str
    pod: str
    cpus: Amount
    born_at: str
    at: str
    age_s: Amount
    next_s: Amount = 0.0
    ended: Ended | None = None
    rows_answered: Count = 0
    rows_dead: Count = 0
    rows_from_partials: Count = 0
    rows_lost: Count = 0
    input_tokens: Count = 0
    output_tokens: Count = 0
    work_s: Amount = 0.0
    engine_wait_s: Amount = 0.0
    start_up_s: Mapping[str, Amount] = field(default_factory=dict)
    not_saved: Count = 0

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
            return read(cls, value)
        except ValueError as error:
            raise NotAHeartbeat(str(error)) from error


def period_s(age_s: float) -> float:
    """Seconds to the next heartbeat: so the end of an attempt that is killed is known to within 2 % of its age, or 5 s."""
    return min(MOST_S, max(LEAST_S, SHARE * age_s))


def ended_at_age_s(beat: Heartbeat) -> float:
    """The age in seconds at which an attempt ended, from its last beat. If it was killed: on average half a period later."""
    return beat.age_s + beat.next_s / 2
