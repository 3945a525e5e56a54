"""The engines of `benchmarks.gpu`: real vLLM as servers and in process, on models without weights."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from benchmarks.gpu_models import REVISION, Model, Words
from benchmarks.processes import cpu_s, tree
from benchmarks.report import ROOT
from local.ports import new_port
from local.runtime.expansion import expand
from nightshift.jobset.manifest.server import SERVE, server_args
from tests.builders import a_spec

START_S: Final = 240.0
GIB: Final = 1 << 30
OFFLINE: Final = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "TOKENIZERS_PARALLELISM": "false"}
ON_A_GPU: Final = {"VLLM_USE_FLASHINFER_SAMPLER": "0"}
"""FlashInfer compiles its kernels at the first use, and has not always been carried."""


@dataclass(frozen=True)
class Sizes:
    """embedding, chat, large: names of `MODELS`. prefixes: beginnings of `prefix_tokens` tokens, of `shared_by` rows each."""

    embedding: str
    chat: str
    large: str | None
    turns: int
    embedding_rows: int
    embedding_tokens: int
    servers: tuple[int, ...]
    chat_rows: int
    interrupted_rows: int
    large_rows: int
    tokens_in: int
    tokens_out: int
    prefixes: int
    shared_by: int
    prefix_tokens: int
    own_tokens: int
    order_seats: int
    cached_prefixes: int
    block: int


@dataclass(frozen=True)
class Bench:
    """python: the engines' interpreter. gpu: the name of the card; None on the CPU. profile: of the jobs."""

    python: str
    gpu: str | None
    profile: str
    sizes: Sizes
    folder: Path
    hub: Path
    tokenizers: Path
    emit: Callable[[dict[str, Any]], None]

    def words(self, model: Model) -> Words:
        return Words(self.tokenizers / ("llama" if model.generates else "bert") / "tokenizer.json")

    def variables(self) -> dict[str, str]:
        """Of an engine."""
        found = {**os.environ, **OFFLINE, "HF_HUB_CACHE": str(self.hub), "VLLM_CACHE_ROOT": str(self.folder / "vllm")}
        if self.gpu is None:
            return found | {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_WAIT_POLICY": "PASSIVE"}
        return found | ON_A_GPU


@dataclass(frozen=True)
class Side:
    """An engine to start: a server for the driver, or the offline class in process (inside). memory_gib: of a GPU, in all.
    cache_gib: of it, for keys and values. tokens_out: instead of the usual number. args: of ``engine.args``."""

    name: str
    model: Model
    length: int
    memory_gib: float = 0.0
    cache_gib: float = 0.0
    inside: bool = False
    seats: int | None = None
    tokens_out: int | None = None
    args: Mapping[str, Any] = field(default_factory=dict)


class Failed(Exception):
    """A step cannot go on; the message says why."""


def settings(bench: Bench, side: Side) -> dict[str, Any]:
    """Of the job, as `a_spec` takes them."""
    args = {"load-format": "dummy", **_memory(bench, side, "-"), **side.args}
    if bench.gpu is None:
        args["enforce-eager"] = True
    found: dict[str, Any] = {
        "model__uri": f"hf://{side.model.repository}",
        "model__revision": REVISION,
        "compute__profile": bench.profile,
        "engine": {"dtype": _dtype(bench, side.model), "max_model_len": side.length, "max_num_seqs": side.seats, "args": args},
    }
    if not side.model.generates:
        return {**found, "request": {"input": "{{ text }}"}}
    request = {"prompt": "{{ text }}", "max_tokens": side.tokens_out or bench.sizes.tokens_out, "temperature": 0.0}
    return {**found, "task": "completion", "request": request, "destination__column": "answer"}


def _dtype(bench: Bench, model: Model) -> str:
    return "float32" if bench.gpu is None else "bfloat16" if model.generates else "float16"


def _memory(bench: Bench, side: Side, dash: str) -> dict[str, Any]:
    if bench.gpu is None:
        return {}
    share = round(side.memory_gib / _card_gib(), 3)
    found: dict[str, Any] = {f"gpu{dash}memory{dash}utilization": share}
    if side.cache_gib:
        found[f"kv{dash}cache{dash}memory{dash}bytes"] = int(side.cache_gib * GIB)
    return found


class Engine:
    """A vLLM server as the manifest starts it."""

    def __init__(self, bench: Bench, side: Side, log: Path) -> None:
        self.side, self._log = side, log
        self.url = f"http://127.0.0.1:{(port := new_port())}"
        spec = a_spec(**settings(bench, side))
        arguments = [expand(each, {"ENGINE_PORT": str(port)}) for each in server_args(spec)]
        command = [bench.python, *SERVE[1:], *arguments]
        self._began = time.monotonic()
        with log.open("ab") as sink:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=bench.variables(), stdout=sink, stderr=subprocess.STDOUT, start_new_session=True
            )

    def await_ready(self) -> float:
        """Seconds since its start. Raises Failed."""
        while True:
            if self.process.poll() is not None or time.monotonic() - self._began > START_S:
                raise Failed(f"{self.side.name}: the engine does not answer: {_last_words(self._log)}")
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=5).close()
                return time.monotonic() - self._began
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)

    def spent(self) -> dict[str, float]:
        """CPU seconds of its processes."""
        found: dict[str, float] = {}
        for pid, title in tree(self.process.pid).items():
            # vLLM's processes name themselves "VLLM::EngineCore" and the like; the first one keeps its command.
            name = title.removeprefix("VLLM::").split("_")[0] if title.startswith("VLLM::") else "server"
            found[name] = found.get(name, 0.0) + cpu_s(pid)
        return found

    def end(self) -> None:
        _end(self.process)


class Inside:
    """`benchmarks.inprocess`: the offline class ``LLM``."""

    def __init__(self, bench: Bench, side: Side, log: Path) -> None:
        self.side, self._log = side, log
        self._began = time.monotonic()
        with log.open("w") as sink:
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": sink}
            self.process = subprocess.Popen(
                [bench.python, "-m", "benchmarks.inprocess"],
                cwd=ROOT,
                env=bench.variables(),
                text=True,
                start_new_session=True,
                **pipes,
            )
        llm: dict[str, Any] = {
            "model": side.model.repository,
            "revision": REVISION,
            "load_format": "dummy",
            "runner": "generate" if side.model.generates else "pooling",
            "max_model_len": side.length,
            "dtype": _dtype(bench, side.model),
            "enforce_eager": bench.gpu is None,
            **_memory(bench, side, "_"),
        }
        task = "generate" if side.model.generates else "embed"
        self._write({"task": task, "max_tokens": bench.sizes.tokens_out, "llm": llm})

    def await_ready(self) -> float:
        """As `Engine.await_ready`."""
        self._read()
        return time.monotonic() - self._began

    def compute(self, texts: Sequence[str]) -> dict[str, Any]:
        self._write({"texts": texts})
        answer = self._read()
        return {"seconds": answer["seconds"], "tokens": answer["tokens"]}

    def end(self) -> None:
        _end(self.process)

    def _write(self, body: Mapping[str, Any]) -> None:
        pipe: IO[str] | None = self.process.stdin
        assert pipe is not None
        pipe.write(json.dumps(body) + "\n")
        pipe.flush()

    def _read(self) -> Any:
        assert self.process.stdout is not None
        if not (line := self.process.stdout.readline()):
            raise Failed(f"{self.side.name}: {_last_words(self._log)}")
        return json.loads(line)


def _end(process: subprocess.Popen[Any]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_words(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line]
    return " | ".join([*errors[:2], *lines[-3:]])[-1500:]


@contextmanager
def group(bench: Bench, sides: Sequence[Side]) -> Iterator[dict[str, Any]]:
    """Engines that start together, by the names of their sides. One that fails is reported and left out."""
    with ExitStack() as stack:
        started = {}
        for side in sides:
            kind = Inside if side.inside else Engine
            started[side.name] = stack.enter_context(_running(kind(bench, side, bench.folder / f"{_file(side.name)}.log")))
        ready = {}
        for name, engine in started.items():
            try:
                seconds = engine.await_ready()
            except Failed as error:
                bench.emit({"step": "start", "side": name, "failed": str(error)})
                continue
            bench.emit({"step": "start", "side": name, "model": engine.side.model.words, "seconds": round(seconds, 1)})
            ready[name] = engine
        yield ready
    if bench.gpu is not None:
        time.sleep(2)  # The card's memory is free a moment after the process has ended.


@contextmanager
def _running(engine: Any) -> Iterator[Any]:
    try:
        yield engine
    finally:
        engine.end()


def _file(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower())


def _smi(what: str) -> str:
    command = ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader,nounits"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()


def card() -> str:
    try:
        return f"{_smi('name')}, driver {_smi('driver_version')}"
    except (FileNotFoundError, subprocess.CalledProcessError):
        sys.exit("There is no NVIDIA GPU here (nvidia-smi). To try the benchmark on the CPU: make bench-gpu CPU=1")


def _card_gib() -> float:
    return float(_smi("memory.total")) / 1024


def profile_of(name: str) -> str:
    for word in ("H200", "B200", "H100", "A100", "L4"):
        if word in name:
            return f"gpu-{word.lower()}-spot"
    sys.exit(f"No profile is known for {name}. Name one: --profile gpu-l4-spot")


def vllm_version(bench: Bench) -> str:
    code = "import vllm, torch; print(vllm.__version__, 'torch', torch.__version__)"
    done = subprocess.run([bench.python, "-c", code], capture_output=True, text=True, env=bench.variables())
    return done.stdout.strip().splitlines()[-1] if done.returncode == 0 else f"unknown: {done.stderr[-500:]}"
