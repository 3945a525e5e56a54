"""P10: the driver, compared with a worker that holds its shard in memory and writes once."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import pyarrow.parquet as pq

from benchmarks import long_tailed
from benchmarks.processes import Canned, Client, Driver, Ended, ending
from benchmarks.report import ROOT, Report, spread
from benchmarks.runs import Run, prepare

ROWS: Final = 8_000
TIMES: Final = 3
SIZES: Final = (10_000, 50_000, 200_000)
METHOD: Final = """
The peer (`benchmarks/semaphore.py`) is our own re-implementation of the shape of the public reference worker for offline
batches, not its code. It has a semaphore of 100 requests in flight over aiohttp, holds the shard and all answers in memory,
writes once at the end, and cannot resume. Both sides are processes, from the same Parquet rows to Parquet answers in a
folder, a chat request a row. Undisturbed and killed: the canned engine of P5 (64 seats, 0.5 ms a token, answers of
exponential length with a mean of 338 tokens). The kill is SIGKILL when half of the rows have reached the engine; the same
command follows at once. The time is from the start of the first process to the end of the last one, so it includes starting
Python. CPU and memory: an engine that answers at once, so the client is the bottleneck. CPU seconds are the client process's,
including its start. Memory is its peak RSS (VmHWM, read every 0.2 s). The sides take turns; medians are compared.
"""
Start = Callable[[str], Client]
"""Starts a client for the engine at an address."""


@dataclass(frozen=True)
class Work:
    """Rows, and how each side starts on them. check: raises unless all of the side's answers exist."""

    name: str
    start: Start
    check: Callable[[], None]


def measure(report: Report, folder: Path, quick: bool) -> None:
    rows, times, sizes = (600, 1, SIZES[:1]) if quick else (ROWS, TIMES, SIZES)
    for kill in (False, True):
        _throughput(report, folder / f"kill-{kill}", rows, times, kill=kill)
    _quick_rows(report, folder, sizes, times)


def _throughput(report: Report, folder: Path, rows: int, times: int, *, kill: bool) -> None:
    lengths = long_tailed.lengths(rows, seed=10)
    seconds: dict[str, list[float]] = {"ours": [], "peer": []}
    again: dict[str, list[float]] = {"ours": [], "peer": []}
    for number in range(times):
        for work in _works(folder / str(number), rows, lengths):
            with long_tailed.engine() as engine:
                began = time.monotonic()
                if kill:
                    _killed_at(rows // 2, work.start(engine.url), engine)
                _complete(work.start(engine.url))
                seconds[work.name].append(time.monotonic() - began)
                again[work.name].append(engine.counts()["rows"] - rows)
            work.check()
    ours, theirs = median(seconds["ours"]), median(seconds["peer"])
    words = "one kill at half" if kill else "undisturbed"
    goal = 1.2 if kill else 0.97
    report.add(f"throughput, {words}: ours / peer", f"{theirs / ours:.3f}", f">= {goal}", theirs / ours >= goal)
    for name, each in seconds.items():
        computed = f"; rows computed again: {spread(again[name], ',.0f')}" if kill else ""
        report.note(f"{rows:,} rows, {words}, {name}: {spread(each, '.1f')} s{computed}")


def _killed_at(rows: int, client: Client, engine: Canned) -> None:
    with ending(client):
        while engine.counts()["rows"] < rows:
            assert client.process.poll() is None, "the client ended before it could be killed"
            time.sleep(0.02)
        client.kill()
        client.process.wait()


def _quick_rows(report: Report, folder: Path, sizes: tuple[int, ...], times: int) -> None:
    found: dict[tuple[str, int], list[Ended]] = {}
    for number in range(times):
        for rows in sizes:
            for work in _works(folder / f"{rows}-{number}", rows, None):
                with Canned() as engine:
                    ended = _complete(work.start(engine.url))
                work.check()
                found.setdefault((work.name, rows), []).append(ended)
    for rows in sizes:
        ours, theirs = (_cpu_us(found[name, rows], rows) for name in ("ours", "peer"))
        met = ours <= theirs if rows == sizes[-1] else None
        goal = "<= 1" if rows == sizes[-1] else ""
        text = f"{ours / theirs:.2f} ({ours:.0f} / {theirs:.0f} us)"
        report.add(f"CPU a row, {rows:,} rows: ours / peer", text, goal, met)
    for name in ("ours", "peer"):
        peaks = [median([ended.peak_mib for ended in found[name, rows]]) for rows in sizes]
        line = ", ".join(f"{rows:,}: {peak:.0f} MiB" for rows, peak in zip(sizes, peaks, strict=True))
        # Below 50,000 rows the interpreter's own pools are still filling (P6).
        growth = f"{peaks[-1] / peaks[0]:.2f} ({line})"
        met = peaks[-1] <= 1.25 * peaks[0] if name == "ours" else None
        report.add(
            f"peak memory at {sizes[-1]:,} rows / at {sizes[0]:,}, {name}", growth, "<= 1.25" if met is not None else "", met
        )
        for rows in sizes:
            report.note(f"{rows:,} quick rows, {name}: {spread([ended.wall_s for ended in found[name, rows]], '.1f')} s")


def _cpu_us(runs: list[Ended], rows: int) -> float:
    return 1e6 * median([ended.cpu_s for ended in runs]) / rows


def _complete(client: Client) -> Ended:
    ended = client.complete()
    assert ended.code == 0, f"exit code {ended.code}"
    return ended


def _works(folder: Path, rows: int, lengths: list[int] | None) -> tuple[Work, Work]:
    """Both sides on the same rows. lengths: tokens in each row's answer; None if it does not matter."""

    def texts(ordinals: range) -> list[str]:
        return [long_tailed.prompt(n, lengths[n] if lengths else 1) for n in ordinals]

    run = prepare(folder, rows, chunk_rows=500, texts=texts, **long_tailed.JOB)
    target = folder / "answers.parquet"
    return Work("ours", lambda url: Driver(run.url, url, folder / "driver.log"), lambda: run.check(0)), Work(
        "peer", lambda url: _peer(run, target, url), lambda: _whole(target, rows)
    )


def _peer(run: Run, target: Path, url: str) -> Client:
    (shard,) = (run.folder / file.path for file in run.plan.files)
    command = [sys.executable, "-m", "benchmarks.semaphore", str(shard), str(target), url]
    return Client(command, {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}, target.with_suffix(".log"))


def _whole(target: Path, rows: int) -> None:
    assert pq.read_metadata(target).num_rows == rows
