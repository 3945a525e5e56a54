"""The totals of a run's ledger, and their JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from nightshift.planner.costs.bill import Bill
from nightshift.run.names import RunRef

VERSION: Final = 1
JSON_PROBLEMS: Final = 100


@dataclass(slots=True)
class Attempt:
    """One life of a worker. rows: computed by it and committed; partial_rows: saved by its drains, whether or not used since;
    lost_rows: computed for nothing; last_seen: when its newest object was written, by the store's clock."""

    name: str
    node: str
    last_seen: float
    chunks: int = 0
    rows: int = 0
    partial_rows: int = 0
    lost_rows: int = 0

    def to_json(self) -> dict[str, Any]:
        found = asdict(self)
        return {"attempt": found.pop("name"), **found, "last_seen": iso(self.last_seen)}


@dataclass(frozen=True, kw_only=True)
class Status:
    """A run at one moment. Times are seconds since 1970. Invariant: chunks_committed + chunks_left + chunks_bad = chunks_total.

    chunks_read: of the committed ones. Dead letters, tokens, attempts and the rate are from these; rows are counted by the LIST
    for the others.

    What cannot be read is in problems, by path; rows_bad are the rows that bad chunks should hold. unanswered: objects that
    the store did not return this time; they are read again at the next refresh. paused: the request that the run stands still
    (`nightshift.run.pauses`), None if there is none. measured: `nightshift.planner.measured`, of a sealed run; None if its
    manifest has none. bill: what it cost, likewise.
    """

    url: str
    run: RunRef
    spec: dict[str, Any]
    planned: bool
    rows_total: int
    rows_done: int
    rows_saved: int = 0
    rows_bad: int = 0
    dead_reasons: dict[str, int]
    chunks_total: int
    chunks_committed: int
    chunks_read: int
    chunks_left: int = 0
    chunks_bad: int = 0
    foreign_objects: int = 0
    unanswered: int = 0
    partials: int = 0
    partials_bad: int = 0
    prompt_tokens: int
    output_tokens: int
    rate: float | None = None
    elapsed_s: float | None = None
    last_commit: float | None = None
    workers_planned: int
    attempts: list[Attempt] = field(default_factory=list)
    waste_lost_rows: int
    waste_partial_rows: int
    problems: dict[str, str]
    sealed_at: float | None
    observed_at: float
    measured: Mapping[str, Any] | None = None
    bill: Bill | None = None
    paused: dict[str, Any] | None = None
    truncated: int = 0
    engine_versions: Mapping[str, int] = field(default_factory=dict)

    @property
    def partial(self) -> bool:
        """Whether some committed chunks were only listed, for lack of time."""
        return self.chunks_read < self.chunks_committed

    @property
    def complete(self) -> bool:
        """No worker has anything left to do."""
        return self.planned and self.chunks_left == 0

    @property
    def state(self) -> str:
        """unplanned, open (whether or not a worker runs: the ledger cannot tell), complete or sealed."""
        if self.sealed_at is not None:
            return "sealed"
        if not self.planned:
            return "unplanned"
        return "complete" if self.complete else "open"

    @property
    def dead_letters(self) -> int:
        return sum(self.dead_reasons.values())

    @property
    def rows_left(self) -> int:
        """Rows still to be computed: neither committed nor saved in a partial."""
        return max(0, self.rows_total - self.rows_done - self.rows_saved - self.rows_bad)

    @property
    def seconds_left(self) -> float | None:
        if not self.planned:
            return None
        if self.complete:
            return 0.0
        return self.rows_left / self.rate if self.rate else None

    @property
    def waste_rows(self) -> int:
        return self.waste_lost_rows + self.waste_partial_rows

    @property
    def waste_percent(self) -> float | None:
        """Of the rows done; None while there are none."""
        return 100 * self.waste_rows / self.rows_done if self.rows_done else None

    @property
    def task(self) -> str | None:
        return _name(self._job.get("task"))

    @property
    def model(self) -> str | None:
        model = self._job.get("model")
        return _name(model.get("name") if isinstance(model, dict) else model)

    @property
    def _job(self) -> dict[str, Any]:
        """The job inside spec.json, or the whole record if it has none: other kinds of run freeze other things."""
        job = self.spec.get("spec")
        return job if isinstance(job, dict) else self.spec

    def to_json(self) -> dict[str, Any]:
        """The object that ``--json`` prints; docs/operate/status.md lists its keys."""
        return {
            "version": VERSION,
            "run": self.url,
            "job": self.run.job,
            "partition": self.run.partition,
            "run_id": self.run.run_id,
            "task": self.task,
            "model": self.model,
            "state": self.state,
            "observed_at": iso(self.observed_at),
            "sealed_at": iso(self.sealed_at),
            "rows_total": self.rows_total,
            "rows_done": self.rows_done,
            "rows_saved": self.rows_saved,
            "rows_left": self.rows_left,
            "rows_bad": self.rows_bad,
            "predictions": self.rows_done - self.dead_letters,
            "dead_letters": self.dead_letters,
            "dead_reasons": self.dead_reasons,
            "chunks_total": self.chunks_total,
            "chunks_committed": self.chunks_committed,
            "chunks_read": self.chunks_read,
            "chunks_left": self.chunks_left,
            "chunks_bad": self.chunks_bad,
            "partials": self.partials,
            "partials_bad": self.partials_bad,
            "foreign_objects": self.foreign_objects,
            "unanswered": self.unanswered,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "rate_rows_per_s": _rounded(self.rate, 3),
            "mean_rows_per_s": _rounded(self.rows_done / self.elapsed_s if self.elapsed_s else None, 3),
            "elapsed_s": _rounded(self.elapsed_s, 1),
            "seconds_left": _rounded(self.seconds_left, 1),
            "last_commit": iso(self.last_commit),
            "workers_planned": self.workers_planned,
            "attempts": [attempt.to_json() for attempt in self.attempts],
            "waste_rows": self.waste_rows,
            "waste_lost_rows": self.waste_lost_rows,
            "waste_partial_rows": self.waste_partial_rows,
            "waste_percent": _rounded(self.waste_percent, 3),
            "paused": self.paused,
            "measured": self.measured,
            "cost": self.bill.to_json() if self.bill else None,
            "problems": [{"path": path, "problem": problem} for path, problem in sorted(self.problems.items())[:JSON_PROBLEMS]],
        }


def _name(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def iso(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
