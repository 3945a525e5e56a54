"""P20: CPU seconds per short row of every process, with one API server of vLLM and with two."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.engines import ON_THE_CPU
from benchmarks.report import Report, say, spread
from benchmarks.runs import short_sentences
from benchmarks.vllm_throughput import WARM_UP, Case, Served, cpu_s_of, rate
from local import hub
from tests.builders import a_spec
from tests.integration.driver.vllm import Vllm

TURNS: Final = 3
METHOD: Final = """
Embeddings of short rows (14 tokens) by MiniLM through the driver, to a vLLM with one API server and to one with two, as a
job's manifest starts them: with `vllm.entrypoints.openai.api_server`, and with `vllm serve --api-server-count=2`. Both are
up all the time, one of them idle, and take turns. On these two cores the model is the bound, so the figure is CPU seconds
per row, not rows/s: what several API servers cost in all. Every run must answer each row once.
"""


@dataclass(frozen=True)
class Several(Case):
    """servers: how many API servers."""

    servers: int = 1

    @property
    def settings(self) -> dict[str, Any]:
        return {**super().settings, "engine__args": {**ON_THE_CPU["engine__args"], "api-server-count": self.servers}}


@contextmanager
def _served(servers: int, folder: Path) -> Iterator[Served]:
    case = Several("short rows", hub.REPOSITORY, hub.REVISION, False, 4_000, 64, None, short_sentences, servers=servers)
    folder.mkdir()
    # A process for the engine's core beside one API server, too.
    vllm = Vllm(a_spec(**case.settings), folder / "vllm.log", variables={"VLLM_ENABLE_V1_MULTIPROCESSING": "1"})
    try:
        vllm.await_health()
        yield Served(vllm, vllm._process.pid, case, folder)
    finally:
        vllm.kill()


def measure(report: Report, folder: Path, quick: bool) -> None:
    rows, turns = (200, 1) if quick else (4_000, TURNS)
    found: dict[int, list[dict[str, float]]] = {1: [], 2: []}
    with ExitStack() as stack:
        sides = {servers: stack.enter_context(_served(servers, folder / str(servers))) for servers in found}
        for side in sides.values():
            side.compute(WARM_UP)
        for turn in range(turns):
            for servers in (1, 2) if turn % 2 else (2, 1):
                found[servers].append(sides[servers].compute(rows))
            say(", ".join(f"{servers}: {rate(runs[-1], rows):.1f} rows/s" for servers, runs in found.items()))
    spent = {servers: median([cpu_s_of(run) for run in runs]) for servers, runs in found.items()}
    report.add("CPU seconds of all processes per row, two API servers / one", f"{spent[2] / spent[1]:.3f}", "stated")
    for servers, runs in found.items():
        middle = sorted(runs, key=cpu_s_of)[len(runs) // 2]
        parts = ", ".join(
            f"{name} {1000 * seconds / rows:.3f}" for name, seconds in middle.items() if name not in ("seconds", "tokens")
        )
        rates = spread([rate(run, rows) for run in runs], ".1f")
        report.note(f"API servers: {servers}; CPU ms per row: {parts}; {rates} rows/s, each of {rows:,} rows answered once")
