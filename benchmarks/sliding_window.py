"""P5: a sliding window, compared with a barrier after each batch, with answers of long-tailed length."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Final

import aiohttp

from benchmarks import long_tailed
from benchmarks.long_tailed import JOB, PER_TOKEN_S, SEATS, prompt
from benchmarks.processes import Canned, Driver
from benchmarks.report import Report
from benchmarks.runs import prepare

METHOD: Final = """
The lengths of answers are drawn from an exponential distribution with mean 338 tokens, cut at 2,048. The mean is ShareGPT's
output length in Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention" (SOSP 2023,
figure 11). The form is what Xiang et al., "ServeGen: Workload Characterization and Generation of Large Language Model Serving
in Production" (2025) found for output lengths in production. It is the mildest of the published forms: log-normal and log-t
tails are longer. The canned engine computes 64 requests at once, each for 0.5 ms a token whatever the others do, as in a
continuous batch on an accelerator that is not full; other requests wait. The peer sends batches with `asyncio.gather` over
aiohttp and waits for each batch to end. The driver keeps a queue at the engine, so the peer gets batches as large: of 64, of
128 (the largest window that the driver reaches here) and of 256. Time is from the first arrival at the engine to the last
answer.
"""


def measure(report: Report, folder: Path, quick: bool) -> None:
    rows = 600 if quick else 8_000
    lengths = long_tailed.lengths(rows, seed=5)
    ours, busy, window = _driver(folder, lengths)
    report.note(f"driver: {ours:.1f} s, seats {busy:.1%} busy, window at the end {window:.0f}; ideal {_ideal(lengths):.1f} s")
    for size in (SEATS, 2 * SEATS, 4 * SEATS):
        theirs, their_busy = _barrier(lengths, size)
        goal = (">= 1.5", theirs / ours >= 1.5) if size <= 2 * SEATS else ("", None)
        report.add(f"throughput of the window / of batches of {size}", f"{theirs / ours:.2f}", *goal)
        report.note(f"batches of {size}: {theirs:.1f} s, seats {their_busy:.1%} busy")


def _ideal(lengths: list[int]) -> float:
    return sum(lengths) * PER_TOKEN_S / SEATS


def _driver(folder: Path, lengths: list[int]) -> tuple[float, float, float]:
    run = prepare(
        folder,
        len(lengths),
        chunk_rows=500,
        texts=lambda part: [prompt(number, lengths[number]) for number in part],
        **JOB,
    )
    with long_tailed.engine() as engine:
        ended = Driver(run.url, engine.url, folder / "driver.log").complete()
        seconds, busy = _time(engine)
    run.check(ended.code)
    return seconds, busy, max((line["window"] for line in ended.log if "window" in line), default=0)


def _barrier(lengths: list[int], size: int) -> tuple[float, float]:
    with long_tailed.engine() as engine:
        asyncio.run(_batches(engine.url, lengths, size))
        return _time(engine)


async def _batches(url: str, lengths: list[int], size: int) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=size)) as session:

        async def ask(number: int) -> None:
            messages = [{"role": "user", "content": prompt(number, lengths[number])}]
            async with session.post(f"{url}/v1/chat/completions", json={"model": "m", "messages": messages}) as reply:
                json.loads(await reply.read())

        for start in range(0, len(lengths), size):
            await asyncio.gather(*(ask(number) for number in range(start, min(start + size, len(lengths)))))


def _time(engine: Canned) -> tuple[float, float]:
    """Seconds from the first arrival to the last answer, and the share of the seats that was busy."""
    counts = engine.counts()
    seconds = counts["last"] - counts["first"]
    return seconds, counts["busy"] / SEATS / seconds
