"""What a driver knows of its run, for Prometheus: docs/operate/metrics.md lists it, docs/adr/0024-run-metrics.md says why here.

Everything is read from memory at a scrape: the plan, and what the worker learned of the ledger for its own work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from nightshift.driver.metrics import Families
from nightshift.run.ledger import Chunks
from nightshift.run.plan import Plan

_RUN: Final = Families("nightshift_run_")


@dataclass(frozen=True)
class Night:
    """What only Airflow knows of a run. deadline: of the task infer, Unix time. price: of this worker's machines for an hour,
    in `currency`. None: unknown."""

    deadline: float | None = None
    price: float | None = None
    currency: str = ""


class Knowing(Protocol):
    """A worker. committed: chunks of the whole run as far as it needs to know. dead_letters: of committed chunks, None if it
    does not count them."""

    @property
    def committed(self) -> Chunks: ...

    @property
    def dead_letters(self) -> int | None: ...


@dataclass(eq=False)
class RunCollector(Collector):
    """One worker's view. home: the worker's shard, None for a helper. facts: labels of the run. born: when the process began,
    by `time.monotonic`. start_up(): seconds of each stage that is over. allowed: dead letters of the run.

    worker: set when there is one; before, an engine is awaited.
    """

    plan: Plan
    home: int | None
    facts: dict[str, str]
    night: Night
    _: KW_ONLY
    born: float
    start_up: Callable[[], Mapping[str, float]]
    allowed: int | None
    worker: Knowing | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        plan = self.plan
        self._home = range(0) if self.home is None or not plan.chunk_count else plan.shard(self.home)

    def collect(self) -> Iterator[Metric]:
        plan, night, worker = self.plan, self.night, self.worker
        yield InfoMetricFamily("nightshift_run", "The run that this worker works for.", self.facts)
        yield _RUN.gauge("rows", "Rows of the plan.", plan.rows)
        yield _RUN.gauge("workers", "Workers of the plan.", plan.workers)
        yield _RUN.gauge("home_rows", "Rows of this worker's own part of the run.", self._rows(self._home))
        if worker is not None:
            missing = self._rows(worker.committed.missing(self._home))
            yield _RUN.gauge("home_rows_committed", "Of those, the committed ones.", self._rows(self._home) - missing)
            if worker.dead_letters is not None:
                text = "Dead letters of the run's committed chunks; counting stops above the allowed number."
                yield _RUN.gauge("dead_letters", text, worker.dead_letters)
        if self.allowed is not None:
            yield _RUN.gauge("dead_letters_allowed", "With more, the run fails.", self.allowed)
        if night.deadline is not None:
            yield _RUN.gauge("deadline_timestamp_seconds", "When the task infer gives up, Unix time.", night.deadline)
        stages = GaugeMetricFamily("nightshift_driver_start_up_seconds", "A finished stage of the start.", labels=["stage"])
        for stage, seconds in self.start_up().items():
            stages.add_metric([stage], seconds)
        yield stages
        if night.price is not None:
            text = "What this worker's machines have cost since its process began."
            cost = CounterMetricFamily("nightshift_driver_cost", text, labels=["currency"])
            cost.add_metric([night.currency], (time.monotonic() - self.born) * night.price / 3600)
            yield cost

    def _rows(self, chunks: range | Iterator[int]) -> int:
        return sum(len(self.plan.chunk_range(chunk)) for chunk in chunks)
