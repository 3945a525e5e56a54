"""P14: `nightshift batcher`, compared with KServe's algorithm on the same engine."""

from __future__ import annotations

import asyncio
import math
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

import orjson
import uvloop

from benchmarks.engines import one_thread, running
from benchmarks.processes import Canned, Server, cpu_s
from benchmarks.report import ROOT, Report, say, spread
from nightshift.driver.http import ConnectionLost, HttpClient
from tests.builders import a_spec
from tests.integration.driver.vllm import MINILM
from tests.integration.stream.servers import BatcherProcess

ITEMS: Final = 32
LATENCY_MS: Final = 20
PATH: Final = "/v1/models/m:predict"
TEXT: Final = "package number {n} reads settings files and checks each value"
OVERLONG: Final = "a sentence about trains. " * 200
TIMES: Final = 3
STEP_S: Final = 4.0
HALVINGS: Final = 3
"""Of the step between a rate that holds and one that does not: a factor of 1.5 becomes one of 1.05."""
ENGINE_SEATS: Final = 128
SERVICE_S: Final = (0.02, 0.05)
LEAST: Final = 1.0
"""Callers a second. An engine that cannot keep the bound for so few is not measured."""
QUIET_S: Final = 10.0
QUIET_RATE: Final = 300.0
METHOD: Final = """
Callers send single instances to KServe's V1 `:predict` at random times (Poisson), whatever becomes of earlier ones.
Throughput at equal p99 is the highest rate at which 99% of the answers come within the bound and all of them are right. Steps
of 1.5 and three halvings find it, 4 s each. The bound is twice the batcher's 20 ms plus three times the engine's time, and
500 ms for vLLM. Latency counts from when a caller meant to send. Both batchers have 32 items and 20 ms. KServe's algorithm
(`benchmarks/kserve/main.go`) is our own re-implementation in Go, after its public source: its module was not available. There
are two engines. The canned one has 128 seats and takes 20 or 50 ms for a request, as an accelerator takes nearly as long for
one row as for 32. The other is a real vLLM on the CPU (MiniLM, one thread, rows of 14 tokens) behind our V1 predictor
(`benchmarks/predictor.py`), which both batchers use. "Bad" is a text that is too long, in one full batch of 32 callers. CPU
is the batcher's process alone, at 300 callers a second and with none, in front of an engine that answers at once. The sides
take turns; medians are compared.
"""


@dataclass(frozen=True)
class Batcher:
    """A batcher that runs."""

    url: str
    pid: int


Start = Callable[[str, int], AbstractContextManager[Batcher]]
"""Starts a batcher in front of a URL, which waits up to that number of milliseconds."""


@dataclass
class Load:
    """What callers saw. wrong: no answer, an error, or not one prediction."""

    took: list[float] = field(default_factory=list)
    wrong: int = 0
    given_up: bool = False

    def holds(self, bound_s: float) -> bool:
        slow = sum(each > bound_s for each in self.took)
        return not self.given_up and not self.wrong and slow <= len(self.took) / 100


def measure(report: Report, folder: Path, quick: bool) -> None:
    sides: dict[str, Start] = {"ours": _ours, "KServe's": partial(_kserve, _built(folder))}
    times, step_s = (1, 1.5) if quick else (TIMES, STEP_S)
    for seconds in SERVICE_S:
        with Canned(seats=ENGINE_SEATS, seconds=seconds, width=8) as engine:
            name = f"canned engine, {seconds * 1000:.0f} ms a request"
            _compare(report, name, sides, engine.url, 2 * LATENCY_MS / 1000 + 3 * seconds, 600.0, times, step_s)
    with _vllm(folder) as url:
        _compare(report, "vLLM on the CPU, MiniLM", sides, url, 0.5, 100.0, times, step_s)
        lost = {name: uvloop.run(_bad(start, url)) for name, start in sides.items()}
        ours, theirs = lost.values()
        name = f"callers of {ITEMS} without an answer if one request is bad: ours / KServe's"
        report.add(name, f"{ours} / {theirs}", "1", ours == 1)
    with Canned(width=8) as engine:
        _overhead(report, sides, engine.url)


def _compare(
    report: Report, name: str, sides: dict[str, Start], url: str, bound_s: float, start: float, times: int, step_s: float
) -> None:
    rates: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(times):
        for side, begin in sides.items():
            with begin(url, LATENCY_MS) as batcher:
                rates[side].append(_most(batcher.url, bound_s, start, step_s))
            say(f"{name}, {side}: {rates[side][-1]:.0f} callers/s")
    ours, theirs = (median(each) for each in rates.values())
    ratio = ours / theirs
    report.add(f"callers/s with p99 <= {bound_s * 1000:.0f} ms, {name}: ours / KServe's", f"{ratio:.2f}", ">= 1", ratio >= 1)
    for side, each in rates.items():
        report.note(f"{name}, {side}: {spread(each, ',.0f')} callers/s")


def _most(url: str, bound_s: float, rate: float, step_s: float) -> float:
    """The highest rate that holds the bound, from `rate` on upwards (or downwards, if that does not hold)."""
    step = 1.5
    if _holds(url, rate, bound_s, step_s):
        while _holds(url, rate * step, bound_s, step_s):
            rate *= step
        low = rate
    else:
        while not _holds(url, rate / step, bound_s, step_s):
            rate /= step
            if rate < LEAST:
                raise RuntimeError(f"not even {LEAST:g} caller a second is answered within {bound_s:g} s: is the machine busy?")
        low = rate / step
    for _ in range(HALVINGS):
        step = math.sqrt(step)
        if _holds(url, low * step, bound_s, step_s):
            low *= step
    return low


def _holds(url: str, rate: float, bound_s: float, step_s: float) -> bool:
    load = uvloop.run(_offer(url, rate, step_s, 8 * bound_s))
    say(f"{rate:.0f}/s: {sorted(load.took)[-len(load.took) // 100 - 1]:.3f} s, {load.wrong} wrong")
    return load.holds(bound_s)


async def _offer(url: str, rate: float, seconds: float, hopeless_s: float) -> Load:
    """Callers at random times. Gives up as soon as one has waited hopelessly long, and waits until all are answered."""
    loop, rng, load = asyncio.get_running_loop(), random.Random(14), Load()
    waiting: set[asyncio.Task[None]] = set()
    async with HttpClient(url, headers={"Content-Type": "application/json"}) as client:

        async def call(number: int, due: float) -> None:
            right = await _predict(client, TEXT.format(n=number))
            load.took.append(loop.time() - due)
            load.wrong += not right
            load.given_up |= load.took[-1] > hopeless_s

        due, end, number = loop.time(), loop.time() + seconds, 0
        while due < end and not load.given_up:
            await asyncio.sleep(due - loop.time())
            task = loop.create_task(call(number, due))
            waiting.add(task)
            task.add_done_callback(waiting.discard)
            number += 1
            due += rng.expovariate(rate)
        await asyncio.gather(*waiting)
    return load


async def _predict(client: HttpClient, text: str) -> bool:
    """Whether a caller got its prediction."""
    try:
        reply = await client.request("POST", PATH, orjson.dumps({"instances": [text]}), timeout_s=60)
    except (ConnectionLost, TimeoutError):
        return False
    # KServe's batcher reports errors with status 200.
    return reply.status == 200 and len(orjson.loads(reply.body).get("predictions") or ()) == 1


async def _bad(start: Start, url: str) -> int:
    """How many callers of one full batch get no prediction if one of them is bad."""
    with start(url, 5_000) as batcher:
        async with HttpClient(batcher.url, headers={"Content-Type": "application/json"}) as client:
            texts = [OVERLONG, *(TEXT.format(n=n) for n in range(ITEMS - 1))]
            got = await asyncio.gather(*(_predict(client, text) for text in texts))
    return got.count(False)


def _overhead(report: Report, sides: dict[str, Start], url: str) -> None:
    spent, idle = {}, {}
    for name, start in sides.items():
        with start(url, LATENCY_MS) as batcher:
            uvloop.run(_offer(batcher.url, QUIET_RATE, 1.0, 60.0))
            began = cpu_s(batcher.pid)
            load = uvloop.run(_offer(batcher.url, QUIET_RATE, QUIET_S, 60.0))
            spent[name] = (cpu_s(batcher.pid) - began) / len(load.took) * 1e6
            began = cpu_s(batcher.pid)
            time.sleep(QUIET_S)
            idle[name] = (cpu_s(batcher.pid) - began) / QUIET_S
    for name in sides:
        report.add(f"CPU of the batcher a caller, at {QUIET_RATE:.0f} callers/s, {name}", f"{spent[name]:.0f} us")
        report.add(f"CPU of the batcher without callers, {name}", f"{idle[name]:.1%} of a core")


@contextmanager
def _ours(url: str, latency_ms: int) -> Iterator[Batcher]:
    with BatcherProcess(url, "--max-batch-size", ITEMS, "--max-latency", latency_ms / 1000) as process:
        yield Batcher(process.url, process.process.pid)


@contextmanager
def _kserve(program: Path, url: str, latency_ms: int) -> Iterator[Batcher]:
    with Server([str(program), url, str(ITEMS), str(latency_ms)]) as server:
        yield Batcher(server.url, server.pid)


@contextmanager
def _vllm(folder: Path) -> Iterator[str]:
    """A real vLLM behind the predictor: the predictor's URL."""
    one_thread()
    spec, name = a_spec(**{**MINILM, "engine__max_num_seqs": 64}), MINILM["model__name"]
    with (
        running(spec, folder / "vllm.log") as server,
        Server([sys.executable, "-m", "benchmarks.predictor", server.url, name]) as predictor,
    ):
        yield predictor.url


def _built(folder: Path) -> Path:
    """KServe's algorithm, as a program. Raises RuntimeError without Go."""
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        raise RuntimeError("this compares with a program in Go, and there is no 'go' on the PATH or in /usr/local/go/bin")
    program = folder / "kserve"
    subprocess.run([go, "build", "-o", str(program), "."], cwd=ROOT / "benchmarks" / "kserve", check=True)
    return program
