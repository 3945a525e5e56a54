"""The first screen of one run: how far, how fast, who works, what it cost, and what is wrong.

The first look answers within about a second whatever the run's size: rows come from one LIST, and dead letters, tokens and
waste from as many chunks as could be read by then, which it says. Each later look reads only what is new, and some of the rest.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from obstore.store import ObjectStore

from nightshift.fields.text import n
from nightshift.planner.bills import bill_seen
from nightshift.planner.costs.prices import Prices
from nightshift.run.names import RunRef
from nightshift.run.observed import pods_kept
from nightshift.run.observed.pod_startup import Starts
from nightshift.run.observed.pods_now import JobSetNow, LastWords
from nightshift.run.opening import NoSuchRun
from nightshift.status import distributions, samples
from nightshift.status.dead_letters import DeadLetters
from nightshift.status.distributions import Compared
from nightshift.status.fleets import StageCount, stages, with_heartbeats
from nightshift.status.folder import RunFolder
from nightshift.status.progress import Progress
from nightshift.status.readers import lookers
from nightshift.status.report import Status
from nightshift.status.runs import day_of, published_before
from nightshift.status.samples import Samples
from nightshift.status.shown import as_json
from nightshift.status.summary import Summarizer, Summary
from nightshift.status.survey import Survey
from nightshift.status.workers import Attempts, Worker, running

T = TypeVar("T")

FIRST_S: Final = 0.7
"""After how long a look reads no further chunks."""
FRESH_S: Final = 2.0
"""A screen that is younger is shown again: many may look at once."""
SAMPLED_S: Final = 60.0
"""How long samples and distributions are shown before they are read again."""
READ_KEPT: Final = 4
"""Samples and distributions that are remembered of one run."""


@dataclass(frozen=True)
class Overview:
    """One run at one moment.

    summary: state, times, deadline, and why it needs attention. status: the sums of its ledger (docs/operate/status.md).
    fleets: its JobSets with the pods that were seen last; stages: how many of them are where, and who has to act; last_words:
    of the engine, or another container, that failed last.
    counted: what dead letters, tokens and waste are from, for people. workers: those that were seen last first; running: how
    many of them run. cost: so far, or the final one of a sealed run; None without prices. final: which.
    """

    summary: Summary
    status: Status
    fleets: tuple[JobSetNow, ...]
    stages: tuple[StageCount, ...]
    last_words: LastWords | None
    workers: tuple[Worker, ...]
    running: int
    not_looked_at: int
    cost: Mapping[str, Any] | None
    final: bool

    @property
    def counted(self) -> str:
        """What dead letters, tokens and waste are from."""
        read, committed = self.status.chunks_read, self.status.chunks_committed
        return f"from {read:,} of {n(committed, 'committed chunk')}" if self.status.partial else "from all committed chunks"

    def to_json(self) -> dict[str, Any]:
        return {
            "summary": self.summary.to_json(),
            "status": self.status.to_json(),
            "counted": self.counted,
            "partial": self.status.partial,
            "fleets": as_json(self.fleets),
            "stages": as_json(self.stages),
            "last_words": {**as_json(self.last_words), "said": self.last_words.said} if self.last_words else None,
            "workers": [each.to_json() for each in self.workers],
            "running": self.running,
            "not_looked_at": self.not_looked_at,
            "cost": as_json(self.cost),
            "final": self.final,
        }


class RunLook:
    """Looks at one run again and again. Safe to share between threads: one looks, the others get what it saw.

    url: of the run, for people. prices: None for no cost.
    """

    def __init__(self, store: ObjectStore, run: RunRef, url: str, prices: Prices | None = None) -> None:
        self._store, self._run, self._prices = store, run, prices
        self._folder = RunFolder(store, run)
        self._survey = Survey(store, run, url, prices)
        self._summarizer = Summarizer(store, run)
        self._attempts: Attempts | None = None
        self._lock = threading.Lock()
        self._made: tuple[float, Overview] | None = None
        self.dead_letters = DeadLetters(store, run, self._folder)
        """Remembers what it has read."""
        self._reading = threading.Lock()
        self._read: dict[tuple[Any, ...], Any] = {}

    def look(self, within_s: float = FIRST_S) -> Overview:
        """within_s: after so long no further chunks are read. Raises NoSuchRun, UnreadableFormat, StoreUnavailable."""
        with self._lock:
            if self._made is None or time.monotonic() - self._made[0] > FRESH_S:
                made = self._look(within_s)
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

    def _look(self, within_s: float) -> Overview:
        # All at once: each of them waits for one answer of the store after another.
        surveyed = lookers().submit(self._survey.refresh, within_s)
        looked = lookers().submit(self._look_at_workers)
        placed = lookers().submit(pods_kept.load, self._store, self._run)
        others = lookers().submit(day_of, self._store, self._run)

        def listed() -> Progress | None:
            surveyed.result()
            return self._survey.progress

        summary = self._summarizer.summary(lambda _: None, done=listed)
        status, workers = surveyed.result(), looked.result()
        if summary is None:
            raise NoSuchRun(f"There is no run {self._run.prefix}: {self._run.spec_path} does not exist.")
        cost, final = self._cost(status)
        fleets = with_heartbeats(placed.result(), self._attempts.by_pod() if self._attempts else {})
        spoken = [words for each in fleets if (words := each.last_words())]
        return Overview(
            summary.beside(others.result()),
            status,
            fleets,
            stages(fleets),
            max(spoken, key=lambda words: words.at, default=None),
            tuple(workers),
            running(workers),
            self._attempts.not_looked_at if self._attempts else 0,
            cost,
            final,
        )

    def _look_at_workers(self) -> list[Worker]:
        if self._attempts is None and self._folder.plan is not None:
            self._attempts = Attempts(self._store, self._folder.work)
        return self._attempts.look() if self._attempts else []

    def _cost(self, status: Status) -> tuple[Mapping[str, Any] | None, bool]:
        if status.bill is not None:
            return status.bill.to_json(), True
        if self._prices is None or self._attempts is None:
            return None, False
        return bill_seen(self._attempts.seen(Starts()), self._folder.spec, self._prices).to_json(), False
