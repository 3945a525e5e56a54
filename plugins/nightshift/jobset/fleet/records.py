"""What a task and its trigger exchange as JSON: `WatchTerms` in the trigger's arguments, `JobSetEvent` in what it fires.

Each reads what release 0.2.0 wrote: missing entries get defaults, and those of a later release are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from nightshift.fields.stored import read
from nightshift.jobset.fleet.deadline import Terms
from nightshift.jobset.fleet.forecast import WatchState
from nightshift.jobset.verdict.cannot_start import CannotStart

VERSION: Final = 2


@dataclass(frozen=True)
class WatchedJobSet:
    """A JobSet that the task waits for. hosts: pods of one worker. ready_at: Unix time at which its start-up should be over.

    price: of one worker for an hour, in the currency of `WatchTerms`; None if it is not known.
    """

    profile: str
    workers: int
    helps: bool
    hosts: int
    ready_at: float
    price: float | None = None


@dataclass(frozen=True)
class WatchTerms:
    """What a trigger needs to forecast a run's end.

    run: prefix of its folder. rows, chunk_rows, plan_uid: the plan's; '' in release 0.2.0. seqs: ``max_num_seqs``.
    state: of the last watch. jobsets: by name. currency: of prices.
    """

    run: str
    rows: int
    chunk_rows: int
    seqs: int
    state: WatchState
    jobsets: Mapping[str, WatchedJobSet]
    terms: Terms
    plan_uid: str = ""
    currency: str = ""

    def to_json(self) -> dict[str, Any]:
        terms = {name: value for name, value in asdict(self.terms).items() if name != "useful"}
        return {
            "run": self.run,
            "rows": self.rows,
            "chunk_rows": self.chunk_rows,
            "plan_uid": self.plan_uid,
            "seqs": self.seqs,
            "currency": self.currency,
            **asdict(self.state),
            "jobsets": {name: asdict(each) for name, each in self.jobsets.items()},
            "terms": {**terms, "profiles": list(self.terms.profiles)},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> WatchTerms:
        return read(cls, {**value, "state": value})


@dataclass(frozen=True)
class WatchReport:
    """The last check of a run. workers, profile: of a helping JobSet; 0 and '' for none. drop: names of JobSets."""

    watch: WatchState
    late: bool
    why: str = ""
    workers: int = 0
    profile: str = ""
    drop: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "drop": list(self.drop)}


@dataclass(frozen=True)
class JobSetEvent:
    """What a trigger fires, once.

    name, uid: of the JobSet that ended, or needs a decision. ending: `nightshift.jobset.kubernetes.follow.WaitEnd`. detail: why
    it does not start, or is refused. pods: the last state of failed or deleted ones. jobset: a finished one. counts: by name,
    the fields of `nightshift.jobset.kubernetes.follow.JobSetCounts`. look: None without a check. before: what the next trigger
    needs to continue the counts; None unless the ending is ``look``. stuck: why its engine cannot start; None unless the ending
    is ``broken``.
    """

    name: str
    uid: str
    ending: str
    detail: str = ""
    pods: list[dict[str, Any]] = field(default_factory=list)
    jobset: dict[str, Any] | None = None
    counts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    look: WatchReport | None = None
    before: Mapping[str, Any] | None = None
    stuck: CannotStart | None = None

    def to_json(self) -> dict[str, Any]:
        """Without `look`, `before` and `stuck` if they are None."""
        found = {name: getattr(self, name) for name in ("name", "uid", "ending", "detail", "pods", "jobset", "counts")}
        found |= {} if self.look is None else {"look": self.look.to_json()}
        found |= {} if self.stuck is None else {"stuck": self.stuck.to_json()}
        return {"version": VERSION, **found, **({} if self.before is None else {"before": self.before})}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> JobSetEvent:
        return read(cls, value)
