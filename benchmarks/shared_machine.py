"""P11: workers that share one machine, over the real local runtime with real vLLM."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.engines import ON_THE_CPU
from benchmarks.processes import json_lines
from benchmarks.report import PLUGINS, Report, say, spread
from benchmarks.runs import Run, prepare, short_sentences
from local import hub, vllm
from local.environments import python_of
from nightshift.jobset.manifest.constants import DRIVER
from nightshift.jobset.manifest.render import render
from nightshift.settings import Settings
from tests.integration.runtime.agents import AgentProcess, LocalUnderTest

ROWS: Final = 20_000
TIMES: Final = 3
PATIENCE_S: Final = 1_800.0
SETTINGS: Final = Settings(bucket="folder", project="local")
JOB: Final[dict[str, Any]] = {
    "model__uri": f"hf://{hub.REPOSITORY}",
    "model__revision": hub.REVISION,
    "engine__max_num_seqs": 64,
    **ON_THE_CPU,
    "request": {"input": "{{ text }}"},
}
METHOD: Final = """
Embeddings of short rows (14 tokens) by MiniLM. The local runtime's agent runs the JobSet that the product renders, as real
pods of vLLM and driver; the run is in a folder. One worker has all cores; each of two has half of them. "Every engine on
every core" is two workers under an agent that believes the machine has twice its cores, so each engine starts a thread for
every real core, as vLLM does by default. Rows/s are measured while all workers are up: rows committed between the last
driver's "resumed" and the last commit. "With start-up" is the time from submitting the JobSet to its end, both engines'
starts included. The sides take turns; medians are compared.
"""


@dataclass(frozen=True)
class Side:
    """workers: of the JobSet. cores: how many the agent believes to have, as a multiple of the machine's."""

    name: str
    workers: int
    cores: int = 1


SIDES: Final = (Side("1 worker", 1), Side("2 workers", 2), Side("2 workers, every engine on every core", 2, 2))


@dataclass(frozen=True)
class Night:
    """rate: rows a second while all workers were up. seconds: from the submission to the end."""

    rate: float
    seconds: float


def measure(report: Report, folder: Path, quick: bool) -> None:
    rows = 1_000 if quick else int(os.environ.get("P11_ROWS", ROWS))
    nights: dict[str, list[Night]] = {side.name: [] for side in SIDES}
    for number in range(1 if quick else TIMES):
        for place, side in enumerate(SIDES):
            night = _night(folder / f"{number}-{place}", side, rows)
            nights[side.name].append(night)
            say(f"{side.name}: {night.rate:.0f} rows/s, {night.seconds:.0f} s with start-up")
    rates = {name: median([night.rate for night in each]) for name, each in nights.items()}
    one, two, crowded = (rates[side.name] for side in SIDES)
    report.add("rows/s of 2 workers / of 1", f"{two / one:.3f}", ">= 0.9", two >= 0.9 * one)
    report.add("the same, every engine on every core", f"{crowded / one:.3f}")
    for name, each in nights.items():
        seconds = spread([night.seconds for night in each], ".0f")
        report.note(f"{name}: {spread([night.rate for night in each], '.0f')} rows/s; {seconds} s with start-up")
    report.note(f"{rows:,} rows; {len(os.sched_getaffinity(0))} cores")


def _night(folder: Path, side: Side, rows: int) -> Night:
    """One run through the local runtime, from scratch."""
    chunk_rows = max(64, rows // 50)
    run = prepare(folder / "bucket", rows, chunk_rows=chunk_rows, texts=short_sentences, workers=side.workers, **JOB)
    with _agent(folder, side) as agent:
        began = time.monotonic()
        LocalUnderTest(agent.state).submit(_manifest(run))
        drivers = _to_the_end(agent, side.workers, began + PATIENCE_S)
        seconds = time.monotonic() - began
    run.check(0)
    return Night(_rate(drivers), seconds)


def _manifest(run: Run) -> dict[str, Any]:
    """The product's own, except for the run's place."""
    manifest = render(run.spec, run.run, run.plan, SETTINGS, name="night")
    replicated = manifest["spec"]["replicatedJobs"][0]
    for variable in replicated["template"]["spec"]["template"]["spec"]["containers"][0]["env"]:
        if variable["name"] == "NIGHTSHIFT_RUN_URL":
            variable["value"] = run.url
    return manifest


@contextmanager
def _agent(folder: Path, side: Side) -> Iterator[AgentProcess]:
    images = {
        SETTINGS.driver_image: {"path": [str(python_of("driver").parent)], "env": {"PYTHONPATH": PLUGINS}},
        SETTINGS.cpu_server_image: {"path": [str(python_of("server").parent)], "env": vllm.environment()},
    }
    cores = side.cores * len(os.sched_getaffinity(0))
    agent = AgentProcess(folder, images=images, max_pods=2, cores=cores)
    agent.start()
    try:
        yield agent
    finally:
        agent.close()


def _to_the_end(agent: AgentProcess, workers: int, deadline: float) -> list[list[dict[str, Any]]]:
    """The lines of each driver, once all are done."""
    while True:
        drivers = [json_lines(path) for path in agent.state.glob(f"jobsets/night/logs/*/{DRIVER}.log")]
        if sum(any(line["message"] == "done" for line in lines) for lines in drivers) == workers:
            return drivers
        if time.monotonic() > deadline:
            raise RuntimeError(f"the JobSet did not end: {agent.state}/jobsets/night/logs")
        time.sleep(0.2)


def _rate(drivers: list[list[dict[str, Any]]]) -> float:
    """Rows a second from the moment when the last driver began to the last commit."""
    began = max(_at(line) for lines in drivers for line in lines if line["message"] == "resumed")
    commits = [line for lines in drivers for line in lines if line["message"] == "committed" and line["first_writer"]]
    rows = sum(line["rows"] for line in commits if _at(line) > began)
    seconds = (max(map(_at, commits)) - began).total_seconds()
    return float(rows / seconds)


def _at(line: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(line["time"])
