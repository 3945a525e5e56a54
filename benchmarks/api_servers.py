"""P20: CPU seconds per short row of every process: one API server of vLLM, two, and two engines beside each other."""

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
Embeddings of short rows (14 tokens) by MiniLM through the driver, to a vLLM with one API server, to one with two, and to two
with one each, all by `vllm serve`, as a job's manifest starts them. All are up all the time, those of the others idle, and
take turns. On these two cores the model is the bound, so the figure is CPU seconds per row, not rows/s: what several
processes cost in all. Every run must answer each row once.
"""


@dataclass(frozen=True)
class Several(Case):
    """servers: how many API servers. engines: how many of such engines."""

    servers: int = 1
    engines: int = 1

    @property
    def settings(self) -> dict[str, Any]:
        return {**super().settings, "engine__args": {**ON_THE_CPU["engine__args"], "api-server-count": self.servers}}


SIDES: Final = {
    f"{engines} x vLLM with {servers} API server(s)": Several(
        "short rows", hub.REPOSITORY, hub.REVISION, False, 4_000, 64, None, short_sentences, servers=servers, engines=engines
    )
    for servers, engines in ((1, 1), (2, 1), (1, 2))
}


@contextmanager
def _served(case: Several, folder: Path) -> Iterator[Served]:
    folder.mkdir()
    with ExitStack() as stack:
        servers = {}
        for number in range(case.engines):
            # A process for the engine's core beside one API server, too.
            variables = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
            vllm = Vllm(a_spec(**case.settings), folder / f"vllm-{number}.log", variables=variables)
            stack.callback(vllm.kill)
            vllm.await_health()
            servers[vllm.url] = vllm._process.pid
        yield Served(servers, case, folder)


def measure(report: Report, folder: Path, quick: bool) -> None:
    rows, turns = (200, 1) if quick else (4_000, TURNS)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in SIDES}
    with ExitStack() as stack:
        sides = {
            name: stack.enter_context(_served(case, folder / str(number))) for number, (name, case) in enumerate(SIDES.items())
        }
        for side in sides.values():
            side.compute(WARM_UP)
        for turn in range(turns):
            for name in SIDES if turn % 2 else reversed(SIDES):
                found[name].append(sides[name].compute(rows))
            say(", ".join(f"{name}: {rate(runs[-1], rows):.1f} rows/s" for name, runs in found.items()))
    one, servers, engines = (median([cpu_s_of(run) for run in runs]) for runs in found.values())
    report.add("CPU seconds of all processes per row, two API servers / one", f"{servers / one:.3f}", "stated")
    report.add("CPU seconds of all processes per row, two engines / one", f"{engines / one:.3f}", "stated")
    for label, runs in found.items():
        middle = sorted(runs, key=cpu_s_of)[len(runs) // 2]
        parts = ", ".join(
            f"{name} {1000 * seconds / rows:.3f}" for name, seconds in middle.items() if name not in ("seconds", "tokens")
        )
        rates = spread([rate(run, rows) for run in runs], ".1f")
        report.note(f"{label}; CPU ms per row: {parts}; {rates} rows/s, each of {rows:,} rows answered once")
