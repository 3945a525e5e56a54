"""What a task that runs JobSets remembers from one attempt to the next, in Airflow's task state store."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from nightshift.operators.jobset_errors import JobSetRefused

if TYPE_CHECKING:
    from airflow.sdk import Context

GENERATIONS_MAX: Final = 1000


@dataclass(frozen=True)
class Live:
    """A JobSet that this task has decided to have. profile: what it runs on, if the task has several.

    workers: 0 for as many as its work has by default. helps: added to others, to keep a deadline. since: Unix time at which it
    was created last; 0 if unknown.
    """

    generation: int
    profile: str = ""
    workers: int = 0
    helps: bool = False
    since: float = 0.0


@dataclass(frozen=True)
class Kept:
    """What outlives an attempt. deadline: Unix time, for all attempts together. resumes: how often it continued by itself.

    helped: how many JobSets were added to keep the deadline. asked: the workers that a person asked for since it began.
    start: which start of the task all this belongs to (`start_of`); None before the first.
    """

    live: tuple[Live, ...] = ()
    next: int = 1
    deadline: float = 0.0
    resumes: int = 0
    helped: int = 0
    asked: int | None = None
    start: int | None = None

    @classmethod
    def of(cls, value: Any) -> Kept:
        if not isinstance(value, Mapping):
            return cls()
        live = tuple(Live(**_known(Live, each)) for each in value["live"])
        return cls(**{**_known(cls, value), "live": live})

    def over(self) -> Kept:
        """The memory after the last attempt. If a person starts the task again, it has the full time again."""
        return Kept(next=self.next, deadline=self.deadline, start=self.start)

    def in_time(self, start: int, seconds: float, now: float) -> Kept:
        """With the deadline of this start of the task, `seconds` from now if it is a new one; now: Unix time.

        A retry is no new start: its deadline stays, also if it has passed, and so does what was counted.
        """
        if self.start == start:
            return self
        return replace(self, start=start, deadline=now + seconds, resumes=0, helped=0)

    def with_new(self, profile: str, since: float = 0.0, workers: int = 0) -> Kept:
        """With one JobSet of a new generation, instead of any others."""
        return replace(self, live=(Live(self.next, profile, workers, since=since),), next=self.next + 1)

    def with_all(self, live: tuple[Live, ...]) -> Kept:
        return replace(self, live=live, next=max([self.next, *(each.generation + 1 for each in live)]))

    def begun(self, live: Live, since: float) -> tuple[Kept, Live]:
        """With `live` created at this time, and what it is then."""
        new = replace(live, since=since)
        return replace(self, live=tuple(new if each == live else each for each in self.live)), new

    def without(self, live: Live) -> Kept:
        return replace(self, live=tuple(each for each in self.live if each != live))

    def renewed(self, live: Live) -> Kept:
        """With `live` replaced by its next generation, placed last. Raises JobSetRefused if there have been too many."""
        if self.next > GENERATIONS_MAX:
            raise JobSetRefused(f"{GENERATIONS_MAX} finished JobSets of this task are kept. Delete them.")
        return self.without(live).with_all((*self.without(live).live, replace(live, generation=self.next)))


def start_of(context: Context) -> int:
    """A number that stays the same through Airflow's retries and is another one when a person has cleared the task.

    Airflow sets `max_tries` to the task's retries, and a clear sets it to the tries so far and the retries.
    """
    return int(context["ti"].max_tries)


def _known(kind: type[Live] | type[Kept], value: Mapping[str, Any]) -> dict[str, Any]:
    """Entries of a later release are passed over, and those that this memory lacks get their defaults."""
    return {name: value[name] for name in kind.__dataclass_fields__ if name in value}


class Memory:
    """What is remembered for one `work`."""

    def __init__(self, context: Context, work: str) -> None:
        self._store = context["task_state_store"]
        self._key = f"jobset:{hashlib.sha256(work.encode()).hexdigest()[:16]}"

    def load(self) -> Kept:
        return Kept.of(self._store.get(self._key))

    def save(self, kept: Kept) -> None:
        self._store.set(self._key, {**asdict(kept), "live": [asdict(each) for each in kept.live]})
