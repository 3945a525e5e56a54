"""``python -m benchmarks.figures.measure [--quick]``: static against continuous batching, and sizes of requests.

Real vLLM on the CPU, one server after the other; the client is the driver's own HTTP client. Writes batching.json.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson
import uvloop

from benchmarks import long_tailed
from benchmarks.engines import ON_THE_CPU, one_thread, running
from benchmarks.figures.data import CONTINUOUS, FILE, STATIC, WAYS, Embedded, Figures, Generated, save
from benchmarks.report import commit, load, machine, say
from benchmarks.runs import short_sentences
from local import hub, models
from nightshift.driver.http import HttpClient
from tests.builders import a_spec

SEATS: Final = 64
"""`max_num_seqs` of both engines."""
MEAN_TOKENS: Final = 32
MOST_TOKENS: Final = 192
SIZES: Final = (1, 2, 4, 8, 16, 32, 64)
WAVES: Final = 24
"""Rows of a run for each request in flight: its beginning and its end are not at full speed."""
ROWS_LEAST: Final = 64
ROWS_PER_REQUEST: Final = (1, 2, 4, 8, 16, 32, 64)
IN_FLIGHT: Final = (1, 2, 4, 8)
REQUESTS_LEAST: Final = 64
VECTORS_LEAST: Final = 512
TIMES: Final = 3
TIMEOUT_S: Final = 600.0
SETTINGS: Final[dict[str, Any]] = {
    "engine__max_num_seqs": SEATS,
    **ON_THE_CPU,
}

Ask = Callable[[int], Awaitable[None]]
"""Sends the request of that number and waits for its answer."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.figures.measure", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, only to see that it works")
    parser.add_argument("--times", type=int, default=TIMES, help="how often each is measured (default: %(default)s)")
    parser.add_argument("--to", type=Path, default=FILE, help="the file to write (default: %(default)s)")
    options = parser.parse_args()
    began, load_before = datetime.now(UTC), load()
    one_thread()
    with tempfile.TemporaryDirectory(prefix="nightshift-figures-") as folder:
        generated, version = _generate(Path(folder), options.times, quick=options.quick)
        embedded = _embed(Path(folder), options.times, quick=options.quick)
    about = {
        "measured_at": f"{began:%Y-%m-%d %H:%M} UTC",
        "commit": commit(),
        "machine": machine(),
        "minutes": round((datetime.now(UTC) - began).total_seconds() / 60, 1),
        "load_before": load_before,
        "vllm": version,
        "seats": SEATS,
        "mean_tokens": MEAN_TOKENS,
        "most_tokens": MOST_TOKENS,
        "waves": WAVES,
        "times": options.times,
    }
    save(Figures(about, generated, embedded), options.to)
    return 0


def lengths(rows: int) -> list[int]:
    """Tokens of each answer: exponential, the form that P5 in docs/develop/benchmarks.md gives its sources for. The same each
    time."""
    return long_tailed.lengths(rows, seed=14, mean=MEAN_TOKENS, most=MOST_TOKENS)


def _generate(folder: Path, times: int, *, quick: bool) -> tuple[tuple[Generated, ...], str]:
    """Chat answers whose lengths are given. Returns the runs, and vLLM's version."""
    model = models.ensure(models.TINY_LLAMA)
    spec = a_spec(
        task="chat",
        request={"user": "{{ text }}"},
        model={"name": "m", "uri": model.uri, "revision": model.revision},
        destination__column="answer",
        **SETTINGS,
    )
    found = []
    with running(spec, folder / "chat.log") as server:
        uvloop.run(_chat(server.url, CONTINUOUS, SEATS, SEATS))
        for _ in range(times):
            for size in SIZES:
                rows = 2 * size if quick else max(ROWS_LEAST, WAVES * size)
                for way in WAYS:
                    found.append(uvloop.run(_chat(server.url, way, size, rows)))
                    say(f"{way}, {size} in flight: {found[-1].tokens_per_s:.0f} tokens/s, p99 {found[-1].p99_s:.2f} s")
        with urllib.request.urlopen(f"{server.url}/version", timeout=10) as reply:
            version = str(orjson.loads(reply.read())["version"])
    return tuple(found), version


async def _chat(url: str, way: str, size: int, rows: int) -> Generated:
    tokens = lengths(rows)
    took, usable = [0.0] * rows, [0.0] * rows
    async with HttpClient(url, headers={"Content-Type": "application/json"}) as client:

        async def ask(row: int) -> None:
            body = {
                "model": "m",
                "messages": [{"role": "user", "content": f"package {row} reads settings"}],
                "max_tokens": tokens[row],
                "ignore_eos": True,
                "temperature": 0,
            }
            began = time.perf_counter()
            reply = await client.request("POST", "/v1/chat/completions", orjson.dumps(body), timeout_s=TIMEOUT_S)
            took[row] = time.perf_counter() - began
            counted = orjson.loads(reply.body)["usage"]["completion_tokens"] if reply.status == 200 else reply.body
            if counted != tokens[row]:
                raise RuntimeError(f"requested {tokens[row]} tokens, got {counted!r}")

        began = time.perf_counter()
        if way == STATIC:
            await static(ask, rows, size, usable)
        else:
            await continuous(ask, rows, size)
            usable = took
        seconds = time.perf_counter() - began
    p50, p99 = percentiles(took)
    return Generated(way, size, rows, sum(tokens), round(seconds, 4), p50, p99, percentiles(usable)[1])


async def static(ask: Ask, rows: int, size: int, usable: list[float]) -> None:
    """Sends `size` requests, waits for the slowest, sends the next. usable: gets for each row how long its batch took."""
    for first in range(0, rows, size):
        batch = range(first, min(first + size, rows))
        began = time.perf_counter()
        await asyncio.gather(*map(ask, batch))
        usable[batch.start : batch.stop] = [time.perf_counter() - began] * len(batch)


async def continuous(ask: Ask, rows: int, size: int) -> None:
    """Keeps `size` requests in flight: each answer makes room for the next request."""
    left = iter(range(rows))

    async def seat() -> None:
        for row in left:
            await ask(row)

    await asyncio.gather(*(seat() for _ in range(size)))


def percentiles(seconds: Sequence[float]) -> tuple[float, float]:
    """The median, and the smallest value that 99% do not exceed."""
    ordered = sorted(seconds)
    return round(ordered[(len(ordered) - 1) // 2], 4), round(ordered[-(-99 * len(ordered) // 100) - 1], 4)


def _embed(folder: Path, times: int, *, quick: bool) -> tuple[Embedded, ...]:
    spec = a_spec(model__uri=f"hf://{hub.REPOSITORY}", model__revision=hub.REVISION, **SETTINGS)
    found = []
    with running(spec, folder / "embeddings.log") as server:
        uvloop.run(_vectors(server.url, SEATS, 1, SEATS * 4))
        for _ in range(times):
            for in_flight in IN_FLIGHT:
                for each in ROWS_PER_REQUEST:
                    requests = 2 * in_flight if quick else max(REQUESTS_LEAST, VECTORS_LEAST // each)
                    found.append(uvloop.run(_vectors(server.url, each, in_flight, requests * each)))
                    say(f"{each} rows a request, {in_flight} in flight: {found[-1].rows_per_s:.0f} rows/s")
    return tuple(found)


async def _vectors(url: str, rows_per_request: int, in_flight: int, rows: int) -> Embedded:
    texts = short_sentences(range(rows))
    took = [0.0] * (rows // rows_per_request)
    async with HttpClient(url, headers={"Content-Type": "application/json"}) as client:

        async def ask(number: int) -> None:
            part = texts[number * rows_per_request : (number + 1) * rows_per_request]
            body = orjson.dumps({"model": "m", "input": part, "encoding_format": "base64"})
            began = time.perf_counter()
            reply = await client.request("POST", "/v1/embeddings", body, timeout_s=TIMEOUT_S)
            took[number] = time.perf_counter() - began
            if reply.status != 200 or len(orjson.loads(reply.body)["data"]) != len(part):
                raise RuntimeError(f"{len(part)} texts, and the answer {reply.status} {reply.body[:200]!r}")

        began = time.perf_counter()
        await continuous(ask, len(took), in_flight)
        seconds = time.perf_counter() - began
    return Embedded(rows_per_request, in_flight, rows, round(seconds, 4), *percentiles(took))


if __name__ == "__main__":
    sys.exit(main())
