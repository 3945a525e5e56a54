"""``python -m tests.chaos.soak --faults N [--seed S]``: faults to all the processes of a night, and the proof after each run.

Real drivers (two with a home, one that helps), real vLLM, the Cloud Storage emulator as a process, and two proxies between
them. A fault strikes only after progress since the last one. Runs of new rows follow each other until N faults have been done.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import secrets
import shutil
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from nightshift.store import open_store
from tests.chaos import inputs
from tests.chaos.book import Book, EngineWitness, StoreWitness
from tests.chaos.faults import Mischief, deal
from tests.chaos.fleet import Fleet
from tests.chaos.inputs import Input, Prepared, Vector, Verdict
from tests.chaos.processes import Guard, Kept, storage, vllm
from tests.chaos.proxy import FaultProxy

BUCKET: Final = "soak"
POOL: Final = 480
ROWS: Final = 400
"""Good rows of one run, drawn from the pool."""
STUCK_S: Final = 600.0
"""No progress for so long, with every fault over, is no slowness any more."""
POLL_S: Final = 0.02


class Broken(AssertionError):
    """Something happened that must not, whatever was done to the processes."""


@dataclass
class Report:
    """What a soak did and saw. Times in seconds. worst_difference: largest of any number of any vector to the reference."""

    seed: int
    faults: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    rows: int = 0
    dead_letters: int = 0
    lost: int = 0
    duplicated: int = 0
    drivers: int = 0
    engine_starts: int = 0
    store_starts: int = 0
    drains: list[float] = field(default_factory=list)
    rows_sent_again: int = 0
    rows_sent_after_commit: int = 0
    rows_from_partials: int = 0
    worst_difference: float = 0.0
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        drains = sorted(self.drains)
        return {
            "seed": self.seed,
            "faults": self.faults.total(),
            "by_kind": dict(sorted(self.faults.items())),
            "runs": self.runs,
            "rows": self.rows,
            "dead_letters": self.dead_letters,
            "lost": self.lost,
            "duplicated": self.duplicated,
            "drivers_started": self.drivers,
            "engine_starts": self.engine_starts,
            "store_starts": self.store_starts,
            "drains": len(drains),
            "drain_median_s": round(drains[len(drains) // 2], 1) if drains else None,
            "drain_longest_s": round(drains[-1], 1) if drains else None,
            "rows_sent_again": self.rows_sent_again,
            "rows_sent_after_commit": self.rows_sent_after_commit,
            "rows_saved_by_drains": self.rows_from_partials,
            "worst_difference": self.worst_difference,
            "seconds": round(self.seconds),
        }


@dataclass
class Soak:
    """One soak in `folder`. Use through `soak`."""

    count: int
    seed: int
    folder: Path
    guard: Guard
    engine: Kept
    storage: Kept
    engine_proxy: FaultProxy
    store_proxy: FaultProxy
    engine_witness: EngineWitness
    store_witness: StoreWitness
    report: Report

    async def all(self) -> None:
        """Raises Broken."""
        pool = await asyncio.to_thread(inputs.real_texts, POOL, self.seed)
        say(f"reference: {len(pool)} texts, nobody disturbs")
        reference = await self._run(0, Input.of(pool, random.Random(self.seed)), [], None)
        kinds = deal(self.seed, self.count)
        while self.report.faults.total() < self.count:
            number = self.report.runs + 1
            rng = random.Random(f"run {self.seed} {number}")
            await self._run(number, Input.of(rng.sample(pool, ROWS), rng), kinds, reference)
            self.report.runs += 1

    async def _run(self, number: int, rows: Input, kinds: list[str], reference: dict[str, Vector] | None) -> dict[str, Vector]:
        """One run from its first process to its proof; its vectors."""
        prepared = await asyncio.to_thread(Prepared.make, open_store(f"gs://{BUCKET}"), inputs.a_job(), number, rows)
        book = Book(prepared.plan, rows.ordinals())
        self.engine_witness.book = self.store_witness.book = book

        async def home_committed(index: int | None) -> bool:
            return await asyncio.to_thread(prepared.missing, index) == 0

        url = f"gs://{BUCKET}/{prepared.run.prefix}"
        folder = self.folder / f"run-{number:03d}"
        fleet = Fleet(
            url, prepared.spec.model.revision, book, self.engine_proxy, self.store_proxy, folder, self.guard, home_committed
        )
        mischief = Mischief(fleet, self.engine, self.storage, self.engine_proxy, self.store_proxy)
        async with fleet:
            try:
                if kinds:
                    await self._disturb(mischief, kinds)
                await self._end(mischief)
            finally:
                mischief.cancel()
        verdict = await asyncio.to_thread(prepared.verdict, rows, book, reference)
        problems = [*fleet.failures, *verdict.problems, *book.violations()]
        if problems:
            shown = "\n".join(problems[:20])
            raise Broken(f"seed {self.seed}, run {number} ({folder}): {len(problems)} things went wrong\n{shown}")
        self._count(fleet, book, rows, verdict, disturbed=bool(kinds))
        return verdict.vectors

    async def _disturb(self, mischief: Mischief, kinds: list[str]) -> None:
        """Does faults, each after progress, until the run is over or all have been done."""
        fleet = mischief.fleet
        done = self.report.faults
        while done.total() < self.count:
            number = done.total()
            rng = random.Random(f"fault {self.seed} {number}")
            if not await self._progress(fleet, rng):
                return
            if fleet.failures:
                return
            what = await mischief.do(kinds[number], rng)
            if what is None:
                return
            done[what] += 1
            commits = f"{len(fleet.book.commits)}/{fleet.book.plan.chunk_count} chunks"
            say(f"fault {number + 1} of {self.count}, {commits}, {len(fleet.drivers)} drivers so far: {what}")

    async def _progress(self, fleet: Fleet, rng: random.Random) -> bool:
        """Waits for more requests answered or more chunks committed; False when the run is over before."""

        def now() -> int:
            return self.engine_witness.requests_done if by_requests else len(fleet.book.commits)

        by_requests = rng.random() < 0.6
        wanted = rng.randint(1, 8) if by_requests else rng.randint(1, 2)
        before, began = now(), time.monotonic()
        while now() < before + wanted:
            if fleet.settled or fleet.failures:
                return False
            if time.monotonic() - began > STUCK_S:
                raise Broken(f"seed {self.seed}: no progress for {STUCK_S:.0f} s; the drivers' logs are in {fleet.folder}")
            await asyncio.sleep(POLL_S)
        return True

    async def _end(self, mischief: Mischief) -> None:
        """Waits until every fault has passed and every driver has ended."""
        await mischief.undo()
        fleet = mischief.fleet
        before, since = -1, time.monotonic()
        while not fleet.finished and not fleet.failures:
            if self.engine_witness.requests_done + len(fleet.drivers) != before:
                before, since = self.engine_witness.requests_done + len(fleet.drivers), time.monotonic()
            if time.monotonic() - since > STUCK_S:
                raise Broken(f"seed {self.seed}: the run does not end; the drivers' logs are in {fleet.folder}")
            await asyncio.sleep(POLL_S)
        # A driver's end is judged a moment after it.
        await asyncio.sleep(0.2)

    def _count(self, fleet: Fleet, book: Book, rows: Input, verdict: Verdict, *, disturbed: bool) -> None:
        report = self.report
        again, late = book.rows_sent_again(), book.rows_sent_after_commit()
        say(f"run proven: {len(rows.texts)} rows, {len(fleet.drivers)} drivers, {again} rows sent again, {late} after commit")
        if not disturbed:
            return
        report.rows += len(rows.texts)
        report.dead_letters += len(rows.dead)
        report.lost += verdict.lost
        report.duplicated += verdict.duplicated
        report.drivers += len(fleet.drivers)
        report.drains += fleet.drains
        report.rows_sent_again += again
        report.rows_sent_after_commit += late
        report.rows_from_partials += sum(len(partial.ordinals) for partial in book.saved)
        report.worst_difference = max(report.worst_difference, verdict.worst)


def say(message: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {message}", file=sys.stderr, flush=True)


async def soak(count: int, seed: int, folder: Path) -> Report:
    """Does `count` faults; what happened. Raises Broken with the seed in it. No process outlives the call."""
    report = Report(seed)
    began = time.monotonic()
    async with Guard() as guard:
        async with _processes(count, seed, folder, guard, report) as one:
            await one.all()
            report.engine_starts, report.store_starts = one.engine.starts, one.storage.starts
        if left := guard.left():
            raise Broken(f"seed {seed}: processes outlived the soak: {left}")
    report.seconds = time.monotonic() - began
    return report


@contextlib.asynccontextmanager
async def _processes(count: int, seed: int, folder: Path, guard: Guard, report: Report) -> AsyncIterator[Soak]:
    engine_witness, store_witness = EngineWitness(), StoreWitness()
    async with contextlib.AsyncExitStack() as stack:
        engine = await stack.enter_async_context(vllm(inputs.a_job(), folder, guard))
        store = await stack.enter_async_context(storage(folder, guard))
        engine_proxy = await stack.enter_async_context(FaultProxy(engine.url, engine_witness))
        store_proxy = await stack.enter_async_context(FaultProxy(store.url, store_witness))
        stack.enter_context(_emulator(store.url))
        await store.healthy()
        await asyncio.to_thread(_make_bucket, store.url)
        await engine.healthy()
        yield Soak(count, seed, folder, guard, engine, store, engine_proxy, store_proxy, engine_witness, store_witness, report)


@contextlib.contextmanager
def _emulator(url: str) -> Iterator[None]:
    """This process, too, finds the store there, past the proxy."""
    before = os.environ.get("STORAGE_EMULATOR_HOST")
    os.environ["STORAGE_EMULATOR_HOST"] = url
    try:
        yield
    finally:
        if before is None:
            del os.environ["STORAGE_EMULATOR_HOST"]
        else:
            os.environ["STORAGE_EMULATOR_HOST"] = before


def _make_bucket(url: str) -> None:
    request = urllib.request.Request(
        f"{url}/storage/v1/b?project=local", json.dumps({"name": BUCKET}).encode(), {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request).close()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None, help="which faults in which order; drawn and printed when absent")
    options = parser.parse_args(arguments)
    seed = secrets.randbelow(1 << 31) if options.seed is None else options.seed
    say(f"{options.faults} faults, seed {seed}")
    folder = Path(tempfile.mkdtemp(prefix="nightshift-soak-"))
    try:
        report = asyncio.run(soak(options.faults, seed, folder))
    except Broken as error:
        print(f"BROKEN: {error}", file=sys.stderr)
        return 1
    shutil.rmtree(folder)
    print(json.dumps(report.to_json(), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
