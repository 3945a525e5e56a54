"""Many schedules, spread over processes."""

from __future__ import annotations

import contextlib
import gc
import itertools
import multiprocessing
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Final

from tests.simulation.check import Violated
from tests.simulation.world import Report, simulate

BATCH: Final = 50
PARTS: Final = 10
"""Tests over which random seeds are spread."""


def random_part(most: int, part: int) -> range:
    """One of PARTS parts of `most` seeds from the one on that NIGHTSHIFT_SEEDS names, or from a random one.

    NIGHTSHIFT_SEEDS=A:B ends before B if that is sooner. The processes of a test run draw the same. Prints the seeds of all
    parts, for NIGHTSHIFT_SEEDS.
    """
    if named := os.environ.get("NIGHTSHIFT_SEEDS"):
        first, *end = map(int, named.split(":"))
    else:
        run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or str(random.SystemRandom().random())
        first, end = random.Random(run).randrange(1 << 40), []
    seeds = range(first, min([first + most, *end]))
    print(f"NIGHTSHIFT_SEEDS={seeds.start}:{seeds.stop}")
    return seeds[part::PARTS]


@dataclass
class Total:
    """What many schedules came to."""

    schedules: int = 0
    rows: int = 0
    computed: int = 0
    pods: int = 0
    hours: float = 0.0
    seen: Counter[str] = field(default_factory=Counter)
    failed: list[int] = field(default_factory=list)

    def add(self, report: Report) -> None:
        self.rows += report.rows
        self.computed += report.computed
        self.pods += report.pods
        self.seen += report.seen
        self.hours += report.took_s / 3600


def run_many(seeds: Iterable[int], without: frozenset[str], processes: int, failed: Callable[[int, str], None]) -> Total:
    """Runs the schedules; failed(seed, what was violated) is called for each that fails, at once."""
    total = Total()
    batches = _batches(seeds)
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        # A few batches ahead and no more: the seeds may come without end.
        running = {pool.submit(run_batch, batch, without) for batch in itertools.islice(batches, 2 * processes)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            running |= {pool.submit(run_batch, batch, without) for batch in itertools.islice(batches, len(done))}
            for seed, outcome in itertools.chain.from_iterable(future.result() for future in done):
                total.schedules += 1
                if isinstance(outcome, Report):
                    total.add(outcome)
                else:
                    total.failed.append(seed)
                    failed(seed, outcome)
    return total


def run_batch(seeds: list[int], without: frozenset[str]) -> list[tuple[int, Report | str]]:
    """Some schedules, one after the other; of each its report or what it violated."""
    with uncollected():
        return [(seed, _run(seed, without)) for seed in seeds]


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Leaves garbage for the end: looking for it after each schedule takes a third of the time."""
    # What is imported by now stays.
    gc.freeze()
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
        gc.collect()
        gc.unfreeze()


def _run(seed: int, without: frozenset[str]) -> Report | str:
    try:
        return simulate(seed, without=without)
    except Violated as error:
        return str(error)
    except Exception as error:  # The simulator's own mistake must not end the others' runs.
        return f"seed {seed}: {error!r}"


def _batches(seeds: Iterable[int]) -> Iterator[list[int]]:
    source = iter(seeds)
    while batch := list(itertools.islice(source, BATCH)):
        yield batch
