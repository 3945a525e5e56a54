"""P2: what a request costs the client's CPU: the driver, compared with bare aiohttp and the OpenAI SDK.

``python -m benchmarks.http_cpu CLIENT URL REQUESTS [BUCKET]`` is one client in its own process; it prints its figures as JSON.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.processes import Canned, environment
from benchmarks.report import ROOT, Report, spread
from benchmarks.runs import SENTENCE, prepare

IN_FLIGHT: Final = 64
WARM_UP: Final = 1_000
CHUNK_ROWS: Final = 2_000
METHOD: Final = """
CPU seconds (user and system) of the client's process / requests. A request has one row; 64 are in flight, with keep-alive.
One canned server, in another process, answers at once with a reply of vLLM's form (chat: 0.6 KB; embedding: 384 floats, 2.4
KB). "Driver" is the real Worker as `nightshift.driver` starts it, under uvloop, from Parquet rows to committed Parquet chunks
of 2,000 rows. That includes decode, template, send, validate, record, encode and commit, but not the process's start.
"aiohttp" posts a ready body and parses the reply with `json` (asyncio's own loop, and uvloop). "SDK" is
`AsyncOpenAI.chat.completions.create` with httpx under asyncio. Each client warms up with 1,000 requests. Clients alternate;
medians are compared.
"""
KINDS: Final[dict[str, dict[str, Any]]] = {
    "chat": {"task": "chat", "request": {"user": "Label this: {{ text }}"}, "destination__column": "label"},
    "embedding": {"request__rows_per_request": 1},
}


def measure(report: Report, folder: Path, quick: bool) -> None:
    requests, times = (2_000, 1) if quick else (20_000, 5)
    clients = ("driver-chat", "driver-embedding", "aiohttp", "aiohttp-uvloop", "sdk")
    found: dict[str, list[dict[str, float]]] = {name: [] for name in clients}
    with Canned() as engine:
        for number in range(times):
            for name in clients:
                count = requests // 10 if name == "sdk" else requests
                found[name].append(_client(name, engine.url, count, folder / f"{name}-{number}"))
    micros = {name: [1e6 * one["cpu_s"] / one["requests"] for one in runs] for name, runs in found.items()}
    rates = {name: [one["requests"] / one["wall_s"] for one in runs] for name, runs in found.items()}
    chat, sdk = median(micros["driver-chat"]), median(micros["sdk"])
    for name in ("driver-chat", "driver-embedding"):
        cost = median(micros[name])
        report.add(f"CPU per request, {name.replace('-', ', ')}", f"{spread(micros[name], '.0f')} us", "<= 200 us", cost <= 200)
    report.add("driver (chat) / OpenAI SDK", f"1/{sdk / chat:.1f}", "<= 1/20", sdk / chat >= 20)
    best = max(rates["driver-chat"])
    text = f"{spread(rates['driver-chat'], ',.0f')} requests/s"
    report.add("driver (chat) with a core of its own", text, ">= 4,000 requests/s", median(rates["driver-chat"]) >= 4000)
    for name in ("aiohttp", "aiohttp-uvloop", "sdk"):
        report.add(f"CPU per request, {name}", f"{spread(micros[name], '.0f')} us")
    report.note(f"best rate of the driver {best:,.0f} requests/s; rates need an idle machine, CPU time hardly does")


def _client(name: str, url: str, requests: int, bucket: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.http_cpu", name, url, str(requests), str(bucket)]
    done = subprocess.run(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


async def _driver(url: str, requests: int, bucket: Path, kind: str) -> dict[str, float]:
    await _work(url, WARM_UP, bucket / "warm", kind)
    return await _work(url, requests, bucket / "run", kind)


async def _work(url: str, rows: int, bucket: Path, kind_name: str) -> dict[str, float]:
    """One worker on its own run, assembled as in `nightshift.driver.main`."""
    from nightshift.driver.codec import ParquetCodec
    from nightshift.driver.engine import EngineClient
    from nightshift.driver.stats import Stats
    from nightshift.driver.tracing import traces_of
    from nightshift.driver.worker import Worker, WorkerLimits
    from nightshift.run.inputs import InputReader
    from nightshift.run.ledger import Ledger
    from nightshift.store import ObjectStorage, open_store
    from nightshift.tasks.base import load_kind

    run = prepare(bucket, rows, chunk_rows=CHUNK_ROWS, **KINDS[kind_name])
    store = open_store(f"file://{bucket}")
    kind = load_kind(run.spec)
    cpu, wall = time.process_time(), time.monotonic()
    async with EngineClient(url, "m") as engine:
        worker = Worker(
            plan=run.plan,
            index=0,
            ledger=Ledger(ObjectStorage(store), run.run, run.plan),
            reader=InputReader(store, run.run, run.plan, ("id", *kind.columns)),
            kind=kind,
            engines=[engine],
            codec=ParquetCodec(
                run_id=run.run.run_id,
                plan_uid=run.plan.uid,
                attempt="a",
                node="n",
                model={},
                engine_version="0",
                prediction_type=kind.prediction_type,
            ),
            carried=("id",),
            attempt="a",
            limits=WorkerLimits(window_start=IN_FLIGHT, window_most=IN_FLIGHT),
            rng=random.Random(1),
            stats=Stats(),
            traces=traces_of("benchmark", {}),
        )
        code = await worker.run()
    figures = {"cpu_s": time.process_time() - cpu, "wall_s": time.monotonic() - wall, "requests": rows}
    run.check(code)
    return figures


async def _together(requests: int, send: Callable[[int], Awaitable[None]]) -> dict[str, float]:
    """Sends `requests` requests, 64 at a time, after a warm-up."""
    numbers = iter(range(WARM_UP + requests))

    async def sender(until: int) -> None:
        for number in numbers:
            await send(number)
            if number >= until:
                return

    await asyncio.gather(*(sender(WARM_UP - IN_FLIGHT) for _ in range(IN_FLIGHT)))
    left = WARM_UP + requests - next(numbers)
    cpu, wall = time.process_time(), time.monotonic()
    await asyncio.gather(*(sender(WARM_UP + requests) for _ in range(IN_FLIGHT)))
    return {"cpu_s": time.process_time() - cpu, "wall_s": time.monotonic() - wall, "requests": left}


def _messages(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"Label this: {SENTENCE.format(n=number)}"}]


async def _aiohttp(url: str, requests: int) -> dict[str, float]:
    import aiohttp

    body = json.dumps({"model": "m", "messages": _messages(0), "max_tokens": 256, "seed": 0}).encode()
    headers = {"Content-Type": "application/json"}
    connector = aiohttp.TCPConnector(limit=IN_FLIGHT)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=600)) as session:

        async def send(_: int) -> None:
            async with session.post(f"{url}/v1/chat/completions", data=body, headers=headers) as reply:
                json.loads(await reply.read())

        return await _together(requests, send)


async def _sdk(url: str, requests: int) -> dict[str, float]:
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600) as client:

        async def send(number: int) -> None:
            messages: Any = _messages(number)
            reply = await client.chat.completions.create(model="m", messages=messages, max_tokens=256, seed=0)
            assert reply.choices[0].message.content

        return await _together(requests, send)


def main(name: str, url: str, requests: str, bucket: str) -> None:
    import uvloop

    count = int(requests)
    run = asyncio.run if name in ("aiohttp", "sdk") else uvloop.run
    if name == "sdk":
        figures = run(_sdk(url, count))
    elif name.startswith("aiohttp"):
        figures = run(_aiohttp(url, count))
    else:
        figures = run(_driver(url, count, Path(bucket), name.removeprefix("driver-")))
    print(json.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
