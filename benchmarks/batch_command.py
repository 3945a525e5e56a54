"""P8: `nightshift batch`, compared with `vllm run-batch`: one file, one model, the same flags; also with each killed once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.processes import NIGHTSHIFT
from benchmarks.report import PLUGINS, ROOT, Report, say, spread
from benchmarks.runs import SENTENCE
from local import models, vllm
from local.environments import python_of
from local.ports import new_port

SEATS: Final = 64
MAX_TOKENS: Final = 32
SERVED: Final = "m"
PAIRS: Final = 3
KILLS: Final = (0.5, 0.9)
"""Shares of the lines after which both are killed. By arithmetic alone, a kill at 50% can hardly save 40% of the time."""
METHOD: Final = """
A file of chat requests (32 tokens each, greedy) for the tiny Llama, float32, max_num_seqs 64, eager, with one build of vLLM.
"Both from nothing" starts the engine each time: `vllm run-batch`, against `vllm serve` and `nightshift batch` started
together. One kill: SIGKILL for the whole of run-batch, or for `nightshift batch`, or for `nightshift batch` and the server,
when that share of the lines has an answer; the same command follows at once. The time is from the first start to the output
file. run-batch starts from nothing again, as it keeps no progress. "From nothing" is the median of three each, in turn,
because an engine's start takes 45 to 65 s here; the others ran once. Both outputs have a line for each request.
"""
FLAGS: Final = ("--served-model-name", SERVED, "--max-num-seqs", str(SEATS), "--max-model-len", "512", "--dtype", "float32")


def measure(report: Report, folder: Path, quick: bool) -> None:
    lines = 100 if quick else int(os.environ.get("P8_LINES", "1500"))
    model = models.ensure(models.TINY_LLAMA)
    side = Side(folder, lines, (*FLAGS, "--enforce-eager", "--model", model.repository, "--revision", model.revision))
    pairs = [(side.nightshift(f"plain-{number}"), side.run_batch(kill_at=None)) for number in range(1 if quick else PAIRS)]
    ours, theirs = median([ours for ours, _ in pairs]), median([theirs for _, theirs in pairs])
    report.add("both from nothing", f"{ours / theirs:.3f} ({ours:.0f} s / {theirs:.0f} s)", "<= 1.0", ours <= theirs)
    with side.server() as url:
        side.batch(url, "warm", lines=SEATS)
        up = side.batch(url, "up")
        report.add("engine up already / run-batch from nothing", f"{up / theirs:.3f} ({up:.0f} s / {theirs:.0f} s)")
    for part in (0.5,) if quick else KILLS:
        at_lines = int(part * lines)
        their_kill = side.run_batch(kill_at=at_lines)
        goal = "< 0.6" if part == KILLS[0] else ""
        for what in ("client", "client and server"):
            ours = side.nightshift(f"{what}-{part}", kill=what, at_lines=at_lines)
            ratio = ours / their_kill
            text = f"{ratio:.3f} ({ours:.0f} s / {their_kill:.0f} s)"
            met = ratio < 0.6 if goal and what == "client" else None
            report.add(f"one kill at {part:.0%} of the lines, ours: {what}", text, goal if met is not None else "", met)
    report.note(
        f"{lines:,} lines; from nothing: {spread([ours for ours, _ in pairs], '.0f')} s, run-batch:"
        f" {spread([theirs for _, theirs in pairs], '.0f')} s"
    )


class Side:
    """Both commands on one file."""

    def __init__(self, folder: Path, lines: int, flags: tuple[str, ...]) -> None:
        self._folder = folder
        self._lines = lines
        self._flags = flags
        self._environment = {**os.environ, **vllm.environment()}
        self._log = folder / "log"

    def run_batch(self, *, kill_at: int | None) -> float:
        """Seconds of `vllm run-batch`; kill_at: after how many lines it is killed once."""
        count = self._lines
        out = self._folder / f"theirs-{time.monotonic_ns()}.jsonl"
        command = ["-m", "vllm.entrypoints.openai.run_batch", "-i", str(self._file(count)), "-o", str(out), *self._flags]
        began = time.monotonic()
        port = new_port()
        process = self._start([*command, "--enable-metrics", "--host", "127.0.0.1", "--port", str(port)])
        if kill_at is not None:
            while self._served(f"http://127.0.0.1:{port}") < kill_at:
                assert process.poll() is None, "run-batch ended before it could be killed"
                time.sleep(0.1)
            _kill(process)
            process = self._start(command)
        code = process.wait()
        seconds = time.monotonic() - began
        assert code == 0, self._log.read_text()[-2000:]
        _check(out, count)
        say(f"run-batch, {count} lines, kill at {kill_at}: {seconds:.1f} s")
        return seconds

    def nightshift(self, name: str, *, kill: str | None = None, at_lines: int = 0) -> float:
        """Seconds of server and `nightshift batch`, from nothing."""
        began = time.monotonic()
        with self.server(wait=False) as url:
            client = self._client(url, name)
            if kill:
                while self._served(url) < at_lines:
                    time.sleep(0.1)
                assert client.poll() is None, "nightshift batch ended before it could be killed"
                _kill(client)
            if kill != "client and server":
                return self._to_the_end(client if not kill else self._client(url, name), name, began)
        with self.server(wait=False) as url:
            return self._to_the_end(self._client(url, name), name, began)

    def _to_the_end(self, client: subprocess.Popen[bytes], name: str, began: float) -> float:
        code = client.wait()
        now = time.monotonic()
        assert code == 0, self._log.read_text()[-2000:]
        _check(self._out(name), self._lines)
        say(f"nightshift, {name}: {now - began:.1f} s")
        return now - began

    def batch(self, url: str, name: str, lines: int | None = None) -> float:
        """Seconds of `nightshift batch` with a running server."""
        began = time.monotonic()
        code = self._client(url, name, lines).wait()
        assert code == 0, self._log.read_text()[-2000:]
        _check(self._out(name), lines or self._lines)
        return time.monotonic() - began

    @contextmanager
    def server(self, *, wait: bool = True) -> Iterator[str]:
        port = new_port()
        process = self._start(["-m", "vllm.entrypoints.cli.main", "serve", "--port", str(port), *self._flags])
        url = f"http://127.0.0.1:{port}"
        try:
            while wait and not _page(f"{url}/health"):
                assert process.poll() is None, self._log.read_text()[-2000:]
                time.sleep(0.2)
            yield url
        finally:
            _kill(process)

    def _served(self, url: str) -> float:
        page = (_page(f"{url}/metrics") or b"").decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in page if line.startswith("vllm:request_success_total"))

    def _client(self, url: str, name: str, lines: int | None = None) -> subprocess.Popen[bytes]:
        files = ["-i", str(self._file(lines or self._lines)), "-o", str(self._out(name))]
        command = [*NIGHTSHIFT, "batch", "--base-url", url, *files]
        with self._log.open("ab") as log:
            environment = {"PATH": os.environ["PATH"], "PYTHONPATH": PLUGINS}
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)

    def _start(self, command: list[str]) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            whole = [str(python_of("server")), *command]
            options: dict[str, Any] = {"cwd": ROOT, "env": self._environment, "stdout": log, "stderr": log}
            return subprocess.Popen(whole, start_new_session=True, **options)

    def _out(self, name: str) -> Path:
        return self._folder / f"{name.replace(' ', '-')}.jsonl"

    def _file(self, lines: int) -> Path:
        path = self._folder / f"in-{lines}.jsonl"
        if not path.exists():
            path.write_text("".join(json.dumps(_line(number)) + "\n" for number in range(lines)))
        return path


def _line(number: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": SENTENCE.format(n=number)}]
    body = {"model": SERVED, "messages": messages, "max_tokens": MAX_TOKENS, "temperature": 0, "seed": 0}
    return {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}


def _check(out: Path, lines: int) -> None:
    """Every line has an answer."""
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    answered = sum(one["response"]["status_code"] == 200 for one in answers)
    assert answered == lines, f"{answered} of {lines} lines have an answer"


def _page(url: str) -> bytes | None:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            body: bytes = reply.read()
            return body or b" "
    except OSError:
        return None


def _kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL for it and everything that it started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
