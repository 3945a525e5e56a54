"""P1: rows per second through driver, HTTP and vLLM, compared with `vllm.LLM` in process."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks import models
from benchmarks.engines import ON_THE_CPU, running
from benchmarks.processes import Driver, cpu_s, tree
from benchmarks.report import ROOT, Report, say, spread
from benchmarks.runs import prepare, sentences, short_sentences
from local import hub, vllm
from local import models as local_models
from local.environments import python_of
from tests.builders import a_spec

WARM_UP: Final = 128
MAX_TOKENS: Final = 32
METHOD: Final = """
The same rows go two ways: (A) `python -m nightshift.driver` -> HTTP -> `vllm serve`, from Parquet to committed Parquet; (B)
`LLM.embed` or `LLM.generate` on a list of texts in memory. Both use one vLLM build with the same model, dtype, max_num_seqs,
max_model_len and variables (`local/vllm.py`), eager and greedy, so both generate the same tokens. Short rows have about 14
tokens, the others of MiniLM and BERT about 22. Both engines are up all the time, one of them idle. A and B alternate; medians
are compared. A's time is from "resumed" to the last commit, by the driver's log. It excludes the start of the process and,
like B's, a warm-up of 128 rows. CPU seconds are those of the median run's processes.
"""


@dataclass(frozen=True)
class Case:
    """One model and how it is used. rows: enough for about a quarter of a minute. max_num_seqs: None for the default of either
    side. rows_per_request: as in a job. chats: whether a generating model gets each text as a user's message. args: for the
    engine of both sides, beside those of `ON_THE_CPU`."""

    name: str
    repository: str
    revision: str
    generates: bool
    rows: int
    max_num_seqs: int | None
    rows_per_request: int | None = 1
    texts: Callable[[range], list[str]] = sentences
    chats: bool = False
    max_tokens: int = MAX_TOKENS
    args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        """Of the job."""
        changes: dict[str, Any] = {
            "model__uri": f"hf://{self.repository}",
            "model__revision": self.revision,
            "engine__max_num_seqs": self.max_num_seqs,
            **ON_THE_CPU,
            "engine__args": {**ON_THE_CPU["engine__args"], **self.args},
        }
        if self.generates:
            task, text = ("chat", "user") if self.chats else ("completion", "prompt")
            request = {text: "{{ text }}", "max_tokens": self.max_tokens, "temperature": 0.0}
            return {**changes, "task": task, "request": request, "destination__column": "answer"}
        return {**changes, "request__rows_per_request": self.rows_per_request}


def cases(quick: bool) -> list[Case]:
    llama = local_models.ensure(local_models.TINY_LLAMA)
    every = [
        Case("MiniLM, 16 rows a request", hub.REPOSITORY, hub.REVISION, False, 6_000, 64, 16),
        Case("MiniLM, short rows, 16 a request", hub.REPOSITORY, hub.REVISION, False, 12_000, 64, 16, short_sentences),
        Case("MiniLM, short rows, by length", hub.REPOSITORY, hub.REVISION, False, 12_000, 64, None, short_sentences),
        Case("BERT base size, 16 rows a request", models.ensure(models.BERT), models.REVISION, False, 600, 64, 16),
        Case("tiny Llama, 32 tokens", llama.repository, llama.revision, True, 800, 64),
        Case("Llama of 100 M weights, 32 tokens", models.ensure(models.LLAMA), models.REVISION, True, 160, 16),
    ]
    if only := os.environ.get("P1"):
        every = [case for case in every if only in case.name]
    return every


def measure(report: Report, folder: Path, quick: bool) -> None:
    for case in cases(quick):
        rows, times = (200, 1) if quick else (case.rows, 3)
        _compare(report, case, rows, times, folder / case.name.replace(" ", "-"))


def _compare(report: Report, case: Case, rows: int, times: int, folder: Path) -> None:
    folder.mkdir()
    ours: list[dict[str, float]] = []
    theirs: list[dict[str, float]] = []
    with in_process(case, folder) as process, served(case, folder) as server:
        process.compute(WARM_UP)
        server.compute(WARM_UP)
        for _ in range(times):
            ours.append(server.compute(rows))
            theirs.append(process.compute(rows))
            say(f"{case.name}: {rate(ours[-1], rows):.1f} and {rate(theirs[-1], rows):.1f} rows/s")
    ratio = median([rate(one, rows) for one in ours]) / median([rate(one, rows) for one in theirs])
    report.add(case.name, f"{ratio:.3f}", ">= 0.98", ratio >= 0.98)
    for words, runs in (("through the driver", ours), ("in process", theirs)):
        middle = sorted(runs, key=lambda one: one["seconds"])[len(runs) // 2]
        cpu = ", ".join(f"{name} {spent:.1f}" for name, spent in middle.items() if name not in ("seconds", "tokens"))
        rates = spread([rate(one, rows) for one in runs], ".1f")
        report.note(f"{case.name}, {words}: {rates} rows/s; {middle['seconds']:.1f} s, CPU seconds: {cpu}; {_tokens(middle)}")


def _tokens(one: dict[str, float]) -> str:
    return f"{one['tokens']:,.0f} tokens or vectors"


def rate(one: dict[str, float], rows: int) -> float:
    return rows / one["seconds"]


def cpu_s_of(one: dict[str, float]) -> float:
    """CPU seconds of all processes of a run."""
    return sum(spent for name, spent in one.items() if name not in ("seconds", "tokens"))


class InProcess:
    """`benchmarks.inprocess`, ready."""

    def __init__(self, process: subprocess.Popen[str], case: Case) -> None:
        self._process = process
        self._case = case

    def compute(self, rows: int) -> dict[str, float]:
        answer = self.ask({"texts": self._case.texts(range(rows))})
        return {"seconds": answer["seconds"], "tokens": answer["tokens"], **_merged(answer["cpu"])}

    def ask(self, question: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self.answer()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


@contextmanager
def in_process(case: Case, folder: Path) -> Iterator[InProcess]:
    """`vllm.LLM` in a process of its own, ready. folder: for its log."""
    setup = {
        "task": ("chat" if case.chats else "generate") if case.generates else "embed",
        "max_tokens": case.max_tokens,
        "llm": {
            "model": case.repository,
            "revision": case.revision,
            "runner": "generate" if case.generates else "pooling",
            "max_model_len": 256,
            "dtype": "float32",
            "enforce_eager": True,
            **({"max_num_seqs": case.max_num_seqs} if case.max_num_seqs else {}),
            **{name.replace("-", "_"): value for name, value in case.args.items()},
        },
    }
    environment = {**os.environ, **vllm.environment()}
    command = [str(python_of("server")), "-m", "benchmarks.inprocess"]
    with (folder / "inprocess.log").open("w") as log:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
        process = subprocess.Popen(command, cwd=ROOT, env=environment, text=True, start_new_session=True, **pipes)
    try:
        ready = InProcess(process, case)
        ready.ask(setup)
        yield ready
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


class Served:
    """A vLLM server, or several beside each other, and drivers that use it."""

    def __init__(self, servers: Mapping[str, int], case: Case, folder: Path) -> None:
        """servers: of each URL the process."""
        self._servers = servers
        self._case = case
        self._folder = folder
        self._runs = 0

    def compute(self, rows: int) -> dict[str, float]:
        """A separate run through a driver process."""
        self._runs += 1
        folder, chunk_rows = self._folder / f"run-{self._runs}", max(64, rows // 10)
        run = prepare(folder, rows, chunk_rows=chunk_rows, texts=self._case.texts, **self._case.settings)
        before = self._cpu()
        ended = Driver(run.url, ",".join(self._servers), self._folder / f"driver-{self._runs}.log").complete()
        run.check(ended.code)
        spent = {name: seconds - before.get(name, 0.0) for name, seconds in self._cpu().items()}
        last = [line for line in ended.log if line["message"] == "done"][-1]
        tokens = last["output_tokens"] if self._case.generates else last["rows_answered"]
        return {"seconds": ended.working_s, "tokens": tokens, "driver": ended.cpu_s, **_merged(spent)}

    def _cpu(self) -> dict[str, float]:
        return {
            ("API server" if pid == server else title[:40]) + f" {pid}": cpu_s(pid)
            for server in self._servers.values()
            for pid, title in tree(server).items()
        }


def _merged(spent: dict[str, float]) -> dict[str, float]:
    """Without process ids, and without idle processes."""
    found: dict[str, float] = {}
    for name, seconds in spent.items():
        if seconds >= 0.05:
            words = name.rsplit(" ", 1)[0] if name.rsplit(" ", 1)[-1].isdigit() else name
            found[words] = found.get(words, 0.0) + seconds
    return found


@contextmanager
def served(case: Case, folder: Path) -> Iterator[Served]:
    """A vLLM server that answers. folder: for its log, and for the runs of drivers."""
    with running(a_spec(**case.settings), folder / "vllm.log") as server:
        yield Served({server.url: server._process.pid}, case, folder)
