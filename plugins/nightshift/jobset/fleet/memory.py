"""What a task that runs JobSets remembers from one attempt to the next, in the task's state store."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Protocol

from nightshift.fields.stored import read
from nightshift.jobset.fleet.errors import Failure, JobSetFailed

GENERATIONS_MAX: Final = 1000


@dataclass(frozen=True)
class FleetMember:
    """A JobSet that this task has decided to have. profile: what it runs on, if the task has several.

    workers: 0 for as many as its work has by default. helps: added to others, to keep a deadline. since: Unix time at which it
    was created last; 0 if unknown.
    """

    generation: int
    profile: str = ""
    workers: int = 0
    helps: bool = False
    since: float = 0.0

    def size(self, default: int) -> int:
        return self.workers or default


@dataclass(frozen=True)
class FleetState:
    """What outlives an attempt. deadline: Unix time, for all attempts together. resumes: how often it continued by itself.

    helped: JobSets added to keep the deadline. asked: workers that a user has requested since it began.
    start: a number for the task's start, the same through retries; None before the first.
    """

    live: tuple[FleetMember, ...] = ()
    next: int = 1
    deadline: float = 0.0
    resumes: int = 0
    helped: int = 0
    asked: int | None = None
    start: int | None = None

    @classmethod
    def of(cls, value: Any) -> FleetState:
        return read(cls, value) if isinstance(value, Mapping) else cls()

    def over(self) -> FleetState:
        """The memory after the last attempt. A new start of the task has the full time again."""
        return FleetState(next=self.next, deadline=self.deadline, start=self.start)

    def in_time(self, start: int, seconds: float, now: float) -> FleetState:
        """With the deadline of this start of the task, `seconds` from now if it is a new one; now: Unix time.

        A retry is not a new start: it keeps the deadline, even a passed one, and the counts.
        """
        if self.start == start:
            return self
        return replace(self, start=start, deadline=now + seconds, resumes=0, helped=0)

    def with_new(self, profile: str, since: float = 0.0, workers: int = 0) -> FleetState:
        """With one JobSet of a new generation, instead of any others."""
        return replace(self, live=(FleetMember(self.next, profile, workers, since=since),), next=self.next + 1)

    def with_all(self, live: tuple[FleetMember, ...]) -> FleetState:
        return replace(self, live=live, next=max([self.next, *(each.generation + 1 for each in live)]))

    def begun(self, live: FleetMember, since: float) -> tuple[FleetState, FleetMember]:
        """With `live` created at this time; and that new member."""
        new = replace(live, since=since)
        return replace(self, live=tuple(new if each == live else each for each in self.live)), new

    def without(self, live: FleetMember) -> FleetState:
        return replace(self, live=tuple(each for each in self.live if each != live))

    def renewed(self, live: FleetMember) -> FleetState:
        """With `live` replaced by its next generation, placed last. Raises JobSetFailed if there have been too many."""
        if self.next > GENERATIONS_MAX:
            raise JobSetFailed(Failure.REFUSED, f"{GENERATIONS_MAX} finished JobSets of this task are kept. Delete them.")
        return self.without(live).with_all((*self.without(live).live, replace(live, generation=self.next)))


class StateStore(Protocol):
    """As Airflow's task state store: JSON by key, which outlives an attempt."""

    def get(self, key: str) -> Any: ...

    def set(self, key: str, value: Any) -> None: ...


class Memory:
    """The memory for one work. work: its id. attempt: the present one's."""

    def __init__(self, store: StateStore, work: str, attempt: str = "") -> None:
        self._store = store
        self._attempt = attempt
        self._key = f"jobset:{hashlib.sha256(work.encode()).hexdigest()[:16]}"
        self._identity = f"{self._key}:identity"

    def identity(self) -> str:
        """What tells this task from the same one in another Airflow: eight hex digits, by its first attempt's id. Two processes
        of that attempt find the same.

        '' for a memory that release 0.2.0 began: the names of its JobSets lack it.
        """
        found = self._store.get(self._identity)
        if found is None:
            is_new = self._store.get(self._key) is None
            found = hashlib.sha256(self._attempt.encode()).hexdigest()[:8] if is_new else ""
            self._store.set(self._identity, found)
        return str(found)

    def load(self) -> FleetState:
        return FleetState.of(self._store.get(self._key))

    def save(self, kept: FleetState) -> None:
        # Made before the memory shows that it has begun; and written with it, because Airflow forgets what is old.
        self._store.set(self._identity, self.identity())
        self._store.set(self._key, {**asdict(kept), "live": [asdict(each) for each in kept.live]})
