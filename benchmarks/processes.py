"""The processes of a measure: the canned engine, a driver as a pod starts it, and what the kernel reports about them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Self

from benchmarks.report import PLUGINS, ROOT

NIGHTSHIFT: Final = (sys.executable, "-m", "nightshift.cli")
"""The command ``nightshift``."""
TICKS: Final = os.sysconf("SC_CLK_TCK")
RSS_EVERY_S: Final = 0.2


class Server:
    """A process that prints its port."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Canned(Server):
    """A canned engine in its own process. The options are those of `benchmarks.canned`."""

    def __init__(self, **options: float) -> None:
        words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        super().__init__([sys.executable, "-m", "benchmarks.canned", *words])

    def counts(self) -> dict[str, float]:
        """rows and requests that arrived; first, last: when (the machine's monotonic clock); busy: seat seconds."""
        with urllib.request.urlopen(f"{self.url}/canned", timeout=10) as reply:
            counts: dict[str, float] = json.load(reply)
            return counts


@dataclass(frozen=True)
class Ended:
    """A process that has ended. code: its exit code; peak_mib: its peak resident memory; log: its JSON lines.

    spent: (the machine's monotonic clock, CPU seconds so far), every `RSS_EVERY_S`.
    """

    code: int
    wall_s: float
    cpu_s: float
    peak_mib: float
    log: list[dict[str, Any]]
    spent: list[tuple[float, float]]

    def cpu_since(self, when: float) -> float:
        """CPU seconds from then (the machine's monotonic clock) to the end."""
        return self.cpu_s - max((cpu for at, cpu in self.spent if at <= when), default=0.0)

    @property
    def working_s(self) -> float:
        """Of a driver: seconds from "resumed" to the last commit, by its log."""
        times = [datetime.fromisoformat(line["time"]) for line in self.log if line["message"] in ("resumed", "committed")]
        return (times[-1] - times[0]).total_seconds()

    def at(self, message: str) -> dict[str, Any]:
        return next(line for line in self.log if line["message"] == message)


class Client:
    """A process whose memory is watched. log: the file for its output."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        self._log = log
        self._began = time.monotonic()
        with log.open("ab") as sink:
            self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=sink)
        self.rss: list[tuple[float, float]] = []
        self._spent: list[tuple[float, float]] = []
        self._peak = 0.0
        self._ended = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._sampler.start()

    def _sample(self) -> None:
        # ru_maxrss would count what the parent had at the fork; VmHWM starts again with the program.
        while not self._ended.wait(RSS_EVERY_S):
            self._read()

    def _read(self) -> None:
        sizes = memory_mib(self.process.pid)
        if sizes is not None:
            self._peak = max(self._peak, sizes[0])
            self.rss.append((time.monotonic() - self._began, sizes[1]))
            with suppress(OSError):  # It has ended meanwhile.
                self._spent.append((time.monotonic(), cpu_s(self.process.pid)))

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)

    def lines(self) -> list[dict[str, Any]]:
        return json_lines(self._log)

    def complete(self) -> Ended:
        """Waits for the end; kills the process if the wait fails."""
        with ending(self):
            return self.end()

    def end(self) -> Ended:
        """Waits for the end."""
        _, status, usage = os.wait4(self.process.pid, 0)
        self.ended_at = time.monotonic()
        self.process.returncode = os.waitstatus_to_exitcode(status)
        self._ended.set()
        self._sampler.join()
        cpu = usage.ru_utime + usage.ru_stime
        return Ended(self.process.returncode, self.ended_at - self._began, cpu, self._peak, self.lines(), self._spent)


class Driver(Client):
    """``python -m nightshift.driver`` on a run. log: the file that gets its lines."""

    def __init__(self, run_url: str, engine_url: str, log: Path, *, index: int | None = 0, **settings: str) -> None:
        variables = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": PLUGINS,
            "NIGHTSHIFT_RUN_URL": run_url,
            "ENGINE_URL": engine_url,
            **({} if index is None else {"JOB_COMPLETION_INDEX": str(index)}),
            **settings,
        }
        if emulator := os.environ.get("STORAGE_EMULATOR_HOST"):
            variables["STORAGE_EMULATOR_HOST"] = emulator
        super().__init__([sys.executable, "-m", "nightshift.driver"], variables, log)

    def wait_for(self, message: str, times: int = 1) -> None:
        while sum(line["message"] == message for line in self.lines()) < times:
            if self.process.poll() is not None:
                raise RuntimeError(f"the driver ended before {message!r}: {self._log.read_text()[-2000:]}")
            time.sleep(0.02)


def environment(**variables: str) -> dict[str, str]:
    """This process's, with the product on the path."""
    return {**os.environ, "PYTHONPATH": PLUGINS, **variables}


def counter(url: str, name: str) -> float:
    """A counter on a server's page /metrics, over all its series."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as reply:
        body = reply.read().decode()
    return sum(map(float, re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", body, re.M)))


def json_lines(log: Path) -> list[dict[str, Any]]:
    """The complete lines of a driver's log."""
    return [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]


def memory_mib(pid: int) -> tuple[float, float] | None:
    """(peak, current) resident memory; None if the process is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    found = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("Vm")}
    return (found["VmHWM"], found["VmRSS"]) if "VmHWM" in found else None


def cpu_s(pid: int) -> float:
    """User and system seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def tree(pid: int) -> dict[int, str]:
    """A process and its descendants, by pid, each with its command line."""
    found = {pid: _title(pid)}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            child, parent = int(path.parent.name), int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            found |= tree(child)
    return found


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


@contextmanager
def ending(*drivers: Client) -> Iterator[None]:
    """Ends what a failed measure left behind."""
    try:
        yield
    finally:
        for driver in drivers:
            if driver.process.poll() is None:
                driver.kill()
                driver.process.wait()
