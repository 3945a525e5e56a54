"""The first screen of one run: how far, how fast, who works, what it cost, and what is wrong. The page in Airflow, `nightshift
status`, `--watch` and `nightshift run --wait` show it.

It answers within about a second whatever the run's size: counts, rate and time left are the summary's, and tokens and waste
come from the newest heartbeats of an open run, or from the manifest. Of the notes that workers leave of dead letters, as many
are read as there is time for; each later look reads what is new, and some of the rest.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import obstore
from obstore.store import ObjectStore

from nightshift.fields.text import n
from nightshift.planner.bills import bill_of, bill_seen
from nightshift.planner.costs.bill import Bill
from nightshift.planner.costs.prices import Prices
from nightshift.run.answers.bounded import as_json
from nightshift.run.manifest import RunManifest
from nightshift.run.names import RunRef
from nightshift.run.observed import pods_kept
from nightshift.run.observed.pod_startup import Starts
from nightshift.run.observed.pods_now import JobSetNow, LastWords, in_time, waits
from nightshift.run.opening import NoSuchRun
from nightshift.status import distributions, samples
from nightshift.status.chunk_footer import asked
from nightshift.status.dead_letters import DeadLetters, Notes
from nightshift.status.distributions import Compared
from nightshift.status.fleets import StageCount, stages, with_heartbeats
from nightshift.status.folder import RunFolder
from nightshift.status.readers import readers
from nightshift.status.runs import day_of, published_before
from nightshift.status.samples import Samples
from nightshift.status.summary import Summarizer, Summary
from nightshift.status.workers import Attempts, Worker

T = TypeVar("T")

VERSION: Final = 1
FIRST_S: Final = 0.5
"""After how long a look reads no further notes."""
FRESH_S: Final = 2.0
"""A screen that is younger is shown again: many may look at once."""
SAMPLED_S: Final = 60.0
"""How long samples and distributions are shown before they are read again."""
READ_KEPT: Final = 4
"""Samples and distributions that are remembered of one run."""


@dataclass(frozen=True)
class Overview:
    """One run at one moment.

    url: for people. summary: state, counts, rate, times, deadline, and why it needs attention. chunks: of the plan; None if it
    has none. workers_planned: of the plan. manifest, sealed_at: of a sealed run; sealed_at is Unix time by the store's clock.
    dead_reasons: of `reasons_of` dead letters. tokens: in and out. rows_lost: computed twice. rows_unused: computed, and not in
    any chunk; None before the seal. elapsed_s: from the first request to the last commit, breaks included; None if unknown.
    fleets: its JobSets with the pods that were seen last; stages: how many of them are where, and who has to act; last_words:
    of the engine, or another container, that failed last. workers: those that were seen last first; running: how many of them
    run. bill: so far, or the final one of a sealed run; None without prices.
    """

    url: str
    at: float
    summary: Summary
    chunks: int | None
    workers_planned: int
    manifest: RunManifest | None
    sealed_at: float | None
    dead_reasons: Mapping[str, int]
    tokens: tuple[int, int]
    rows_lost: int
    rows_unused: int | None
    elapsed_s: float | None
    fleets: tuple[JobSetNow, ...]
    stages: tuple[StageCount, ...]
    last_words: LastWords | None
    workers: tuple[Worker, ...]
    not_looked_at: int
    bill: Bill | None

    @property
    def state(self) -> str:
        """Of its rows alone: unplanned, open (whether or not a worker runs: the ledger cannot tell), complete or sealed."""
        if self.manifest is not None:
            return "sealed"
        if self.summary.progress is None:
            return "unplanned"
        return "complete" if self.summary.done == self.summary.rows else "open"

    @property
    def night(self) -> Summary | None:
        """None if its folder is not one of a night, as that of `nightshift batch`."""
        return None if self.summary.state == "unreadable" else self.summary

    @property
    def failed_at(self) -> str | None:
        """When the last night failed; None if it has not."""
        return self.summary.ended_at if self.summary.state == "failed" else None

    @property
    def committed(self) -> int:
        """Chunks."""
        return self.summary.progress.chunks if self.summary.progress else self.chunks or 0

    @property
    def waits(self) -> str:
        """What an open run waits for; "" if for nothing."""
        if self.state != "open" or self.summary.state == "failed":
            return ""
        return waits(self.fleets, self.at) or ("" if self.fleets or self.summary.done else "no pod is there yet")

    @property
    def running(self) -> int:
        return sum(each.running for each in self.workers)

    @property
    def reasons_of(self) -> int:
        return sum(self.dead_reasons.values())

    @property
    def counted(self) -> str:
        """What the reasons of dead letters are from."""
        dead = self.summary.dead_letters or 0
        return f"of {self.reasons_of:,} of {n(dead, 'dead letter')}" if self.reasons_of < dead else "of all dead letters"

    @property
    def mean(self) -> float | None:
        """Rows per second of `elapsed_s`."""
        return (self.summary.done or 0) / self.elapsed_s if self.elapsed_s else None

    def status(self) -> dict[str, Any]:
        """The object that ``nightshift status --json`` prints, but for the night; docs/operate/status.md lists its keys. What
        only the footers of chunks say is None."""
        found, progress = self.summary, self.summary.progress
        total, done, dead = found.rows or 0, found.done or 0, found.dead_letters or 0
        unused = self.rows_unused
        waste = None if unused is None else self.rows_lost + unused
        return {
            "version": VERSION,
            "run": self.url,
            "job": found.run.job,
            "partition": found.run.partition,
            "run_id": found.run.run_id,
            "task": found.task,
            "model": found.model,
            "state": self.state,
            "observed_at": in_time(self.at),
            "sealed_at": _time(self.sealed_at),
            "rows_total": total,
            "rows_done": done,
            "rows_left": total - done,
            "predictions": done - dead,
            "dead_letters": dead,
            "dead_reasons": dict(self.dead_reasons),
            "chunks_total": self.chunks or 0,
            "chunks_committed": self.committed,
            "chunks_left": (self.chunks or 0) - self.committed,
            "prompt_tokens": self.tokens[0],
            "output_tokens": self.tokens[1],
            "rate_rows_per_s": _rounded(found.rate, 3),
            "mean_rows_per_s": _rounded(self.mean, 3),
            "elapsed_s": _rounded(self.elapsed_s, 1),
            "seconds_left": _rounded(found.seconds_left, 1),
            "last_commit": _time(progress.newest if progress else None),
            "workers_planned": self.workers_planned,
            "attempts": [self._attempt(each) for each in self.workers],
            "waste_rows": waste,
            "waste_lost_rows": self.rows_lost,
            "waste_partial_rows": unused,
            "waste_percent": _rounded(100 * waste / done if waste is not None and done else None, 3),
            "paused": {"by": found.paused.by, "at": found.paused.at} if found.paused else None,
            "measured": self.manifest.measured if self.manifest else None,
            "cost": self.bill.to_json() if self.bill and self.manifest else None,
            "problems": [{"path": path, "problem": problem} for path, problem in sorted(found.problems.items())],
            **dict.fromkeys(("rows_saved", "rows_bad", "chunks_read", "chunks_bad", "partials", "partials_bad")),
            **dict.fromkeys(("foreign_objects", "unanswered")),
        }

    def _attempt(self, each: Worker) -> dict[str, Any]:
        seen = {"attempt": each.attempt, "node": each.beat.node, "last_seen": in_time(self.at - each.seen_s), "rows": each.rows}
        return {**seen, "lost_rows": each.beat.rows_lost, "chunks": None, "partial_rows": None}

    def to_json(self) -> dict[str, Any]:
        return {
            "summary": self.summary.to_json(),
            "status": self.status(),
            "counted": self.counted,
            "waits": self.waits,
            "partial": self.reasons_of < (self.summary.dead_letters or 0),
            "fleets": as_json(self.fleets),
            "stages": as_json(self.stages),
            "last_words": {**as_json(self.last_words), "said": self.last_words.said} if self.last_words else None,
            "workers": [each.to_json() for each in self.workers],
            "running": self.running,
            "not_looked_at": self.not_looked_at,
            "cost": as_json(self.bill.to_json()) if self.bill else None,
            "final": self.manifest is not None and self.bill is not None,
        }


class RunLook:
    """Looks at one run again and again. Safe to share between threads: one looks, the others get what it saw.

    url: of the run, for people. prices: None for no cost.
    """

    def __init__(self, store: ObjectStore, run: RunRef, url: str, prices: Prices | None = None) -> None:
        self._store, self._run, self._url, self._prices = store, run, url, prices
        self._folder = RunFolder(store, run)
        self._summarizer = Summarizer(store, run, whole=True)
        self._attempts: Attempts | None = None
        self._notes: Notes | None = None
        self._sealed_at: float | None = None
        self._bill: Bill | None = None
        self._lock = threading.Lock()
        self._made: tuple[float, Overview] | None = None
        self.dead_letters = DeadLetters(store, run, self._folder)
        """Remembers what it has read."""
        self._reading = threading.Lock()
        self._read: dict[tuple[Any, ...], Any] = {}

    def look(self, *, fresh_s: float = FRESH_S) -> Overview:
        """fresh_s: one that is younger is good enough. Raises NoSuchRun, StoreUnavailable."""
        with self._lock:
            if self._made is None or time.monotonic() - self._made[0] > fresh_s:
                made = self._look()
                self._made = time.monotonic(), made
            return self._made[1]

    def samples(self, rows: int = samples.ROWS, chunks: int = samples.CHUNKS) -> Samples:
        """Those of an open run change as it goes on; they are read again after `SAMPLED_S`."""
        return self._kept(("samples", rows, chunks), lambda: samples.samples(self._store, self._run, rows=rows, chunks=chunks))

    def compared(self, chunks: int = distributions.CHUNKS) -> Compared:
        """The answers beside those of `published_before`."""

        def read() -> Compared:
            before = published_before(self._store, self._run)
            return distributions.compared(self._store, self._run, before, chunks=chunks)

        return self._kept(("compared", chunks), read)

    def _kept(self, name: tuple[Any, ...], read: Callable[[], T]) -> T:
        with self._reading:
            kept: tuple[float, T] | None = self._read.get(name)
            if kept is None or time.monotonic() - kept[0] > SAMPLED_S:
                kept = time.monotonic(), read()
                self._read = {**dict(list(self._read.items())[-READ_KEPT:]), name: kept}
            return kept[1]

    def _look(self) -> Overview:
        # Beside the others: each of them waits for one answer of the store after another.
        placed = readers().submit(pods_kept.load, self._store, self._run)
        others = readers().submit(day_of, self._store, self._run)
        summary = self._summarizer.summary(lambda _: None, fresh=True)
        if summary is None:
            raise NoSuchRun(f"There is no run at {self._url}: {self._run.spec_path} does not exist.")
        plan, manifest = self._summarizer.plan, self._summarizer.manifest
        workers, reasons = [], summary.dead_reasons
        if plan is not None:
            work = self._run.work(plan.uid)
            self._attempts = self._attempts or Attempts(self._store, work)
            if not reasons and summary.dead_letters:
                self._notes = self._notes or Notes(self._store, work, plan.chunk_count)
                self._notes.read(FIRST_S)
                reasons = dict(self._notes.reasons.most_common())
            workers = self._attempts.look()
        fleets = with_heartbeats(placed.result(), self._attempts.by_pod() if self._attempts else {})
        spoken = [words for each in fleets if (words := each.last_words())]
        beats = [each.beat for each in workers]
        tokens = (sum(each.input_tokens for each in beats), sum(each.output_tokens for each in beats))
        lost, unused = sum(each.rows_lost for each in beats), None
        if manifest is not None:
            profiles = (manifest.measured or {}).get("profiles", ())
            unused, lost = (sum(each.get(name, 0) for each in profiles) for name in ("rows_unused", "rows_lost"))
            tokens, unused = (manifest.prompt_tokens, manifest.output_tokens or 0), max(0, unused - lost)
        return Overview(
            url=self._url,
            at=time.time(),
            summary=summary.beside(others.result()) if summary.state != "unreadable" else summary,
            chunks=plan.chunk_count if plan else len(manifest.chunks) if manifest else None,
            workers_planned=plan.workers if plan else 0,
            manifest=manifest,
            sealed_at=self._sealed(manifest),
            dead_reasons=reasons,
            tokens=tokens,
            rows_lost=lost,
            rows_unused=unused,
            elapsed_s=self._elapsed(summary),
            fleets=fleets,
            stages=stages(fleets),
            last_words=max(spoken, key=lambda words: words.at, default=None),
            workers=tuple(workers),
            not_looked_at=self._attempts.not_looked_at if self._attempts else 0,
            bill=self._cost(manifest),
        )

    def _sealed(self, manifest: RunManifest | None) -> float | None:
        if manifest is not None and self._sealed_at is None:
            head = asked(self._run.manifest_path, lambda: obstore.head(self._store, self._run.manifest_path))
            self._sealed_at = head["last_modified"].timestamp()
        return self._sealed_at

    def _elapsed(self, summary: Summary) -> float | None:
        worked = self._attempts.worked() if self._attempts else None
        if worked is None or not summary.done:
            return None
        last = summary.progress.newest if summary.progress else worked[1]
        return max(0.0, (last or worked[1]) - worked[0])

    def _cost(self, manifest: RunManifest | None) -> Bill | None:
        spec, plan = self._summarizer.spec, self._summarizer.plan
        if self._prices is None:
            return None
        if manifest is not None:
            self._bill = self._bill or bill_of(self._store, manifest, plan, spec, self._prices)
            return self._bill
        return bill_seen(self._attempts.seen(Starts()), spec, self._prices) if self._attempts and spec else None


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else in_time(seconds)


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
