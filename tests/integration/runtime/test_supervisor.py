"""Several engines in one container: the program that starts them, as a process, with small servers in the engines' place."""

import contextlib
import inspect
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from local.environments import ROOT
from local.ports import new_port
from nightshift.driver.engine import EngineClient
from nightshift.jobset.manifest import supervisor
from nightshift.jobset.verdict.last_words import Words

pytestmark = [pytest.mark.integration, pytest.mark.gate]

ENGINE = """
import os, signal, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

folder, port = Path(sys.argv[1]), int(sys.argv[-1].removeprefix("--port="))
told = lambda what: (folder / f"{what}-{port}").exists()
core = subprocess.Popen(["sleep", "600"])
orphan = subprocess.run(["sh", "-c", "sleep 0.1 & echo $!"], capture_output=True, text=True).stdout.strip()

def note(what):
    with open(folder / "notes", "a") as file:
        file.write(f"{port} {what} {os.getpid()} {core.pid} {time.monotonic()} {os.environ.get('OMP_NUM_THREADS')}\\n")

def stop(*_):
    note("stopped")
    core.kill()
    os._exit(0)

signal.signal(signal.SIGTERM, stop)
note("began")
if told("fails"):
    print("ValueError: no such model", flush=True)
    os._exit(7)
if told("hangs"):
    time.sleep(600)
time.sleep(0.3)

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        while told("silent"):
            time.sleep(0.05)
        note("answers")
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_): ...

HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
HURRIED = """
import ctypes
from nightshift.driver.engine import EngineClient
from nightshift.jobset.manifest import supervisor
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # As process 1 of a container it gets the orphans.
supervisor.LOOK_S, supervisor.ANSWER_S = 0.05, 0.5
supervisor.PAUSE_LEAST_S, supervisor.PAUSE_MOST_S = 0.05, 0.2
supervisor.main()
"""
SOURCE = inspect.getsource(supervisor)
PLUGINS = ROOT / "plugins"


class Container:
    """What a kubelet sees: one process, and the folder by which its engines are told what to do."""

    def __init__(
        self, folder: Path, program: str = HURRIED, *, engines: int = 2, patience_s: float = 60, silence_s: float = 60
    ) -> None:
        self.folder = folder
        self.ports = [new_port() for _ in range(engines)]
        self.log = folder / "log"
        self._program, self._limits = program, [str(patience_s), str(silence_s)]

    @contextlib.contextmanager
    def started(self) -> Iterator[subprocess.Popen[bytes]]:
        engine = [sys.executable, "-c", ENGINE, str(self.folder)]
        command = [sys.executable, "-c", self._program, ",".join(map(str, self.ports)), *self._limits, *engine]
        with open(self.log, "wb") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": str(PLUGINS), "OMP_NUM_THREADS": "6"}
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            for _, _, *pids, _, _ in self.notes():
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)

    def tell(self, what: str, engine: int) -> Path:
        file = self.folder / f"{what}-{self.ports[engine]}"
        file.touch()
        return file

    def notes(self) -> list[list[str]]:
        """Port, what, process, core, time, threads."""
        with contextlib.suppress(FileNotFoundError):
            return [line.split() for line in (self.folder / "notes").read_text().splitlines()]
        return []

    def noted(self, what: str, engine: int) -> list[list[str]]:
        return [note for note in self.notes() if note[:2] == [str(self.ports[engine]), what]]

    def processes(self, engine: int) -> list[int]:
        return [int(note[2]) for note in self.noted("began", engine)]

    def answers(self, engine: int, life: int = 1) -> bool:
        begun = self.processes(engine)
        return len(begun) >= life and any(int(note[2]) == begun[life - 1] for note in self.noted("answers", engine))

    def wait_for(self, what: Callable[[], Any]) -> None:
        deadline = time.monotonic() + 60
        while not what():
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)

    def said(self) -> list[str]:
        return self.log.read_text().splitlines()


def is_there(pid: int) -> bool:
    """Whether it runs: a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_they_start_one_after_another_and_sigterm_ends_all(tmp_path: Path) -> None:
    """As the manifest starts it: the source alone, of an interpreter that has no packages."""
    container = Container(tmp_path, SOURCE, engines=3)
    with container.started() as process:
        container.wait_for(lambda: container.answers(2))
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143
        for engine in (1, 2):
            [began], before = container.noted("began", engine), container.noted("answers", engine - 1)
            assert float(began[4]) > float(before[0][4]), "it began while the one before it had not answered"
        assert [len(container.noted("stopped", engine)) for engine in range(3)] == [1, 1, 1]
        assert {note[5] for note in container.notes()} == {"2"}, "each has its part of the threads"


def test_one_that_is_killed_comes_back_alone(tmp_path: Path) -> None:
    container = Container(tmp_path)
    with container.started() as process:
        container.wait_for(lambda: container.answers(1))
        for life in (1, 2):
            core = int(container.noted("began", 0)[-1][3])
            os.kill(container.processes(0)[-1], signal.SIGKILL)
            container.wait_for(partial(container.answers, 0, life + 1))
            assert not is_there(core), "what it left behind has its memory"
        assert len(container.processes(1)) == 1
        assert process.poll() is None
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert sorted(map(int, children)) == sorted([container.processes(0)[-1], *container.processes(1)]), "it reaps orphans"

    ended = [line for line in container.said() if "ended" in line]
    assert ended == [f"nightshift: engine 0 ended with exit code 137, and starts again in {pause:g} s" for pause in (0.05, 0.1)]


def test_one_that_ends_before_it_answered_ends_the_container(tmp_path: Path) -> None:
    container = Container(tmp_path)
    container.tell("fails", 1)
    with container.started() as process:
        assert process.wait(60) == 7
        assert not any(is_there(int(pid)) for note in container.notes() for pid in note[2:4])

    assert Words(container.said()).cause == "ValueError: no such model"
    assert container.said()[-2:] == [
        "ValueError: no such model",
        "nightshift: engine 1 ended with exit code 7, before it answered: the container ends",
    ]


def test_one_that_does_not_come_back_ends_the_container(tmp_path: Path) -> None:
    container = Container(tmp_path)
    with container.started() as process:
        container.wait_for(lambda: container.answers(1))
        container.tell("fails", 0)
        os.kill(container.processes(0)[0], signal.SIGKILL)
        assert process.wait(60) == 7

    assert len(container.processes(0)) == 1 + supervisor.STARTS_MOST
    assert container.said()[-1].endswith("5 times in a row without an answer: the container ends")


def test_one_that_answers_no_more_is_killed_and_comes_back(tmp_path: Path) -> None:
    container = Container(tmp_path, silence_s=1)
    with container.started() as process:
        container.wait_for(lambda: container.answers(1))
        silent = container.tell("silent", 0)
        container.wait_for(lambda: len(container.processes(0)) == 2)
        silent.unlink()
        container.wait_for(lambda: container.answers(0, 2))
        assert process.poll() is None
        assert len(container.processes(1)) == 1

    assert "nightshift: engine 0 has not answered for 1 s: it is killed" in container.said()


def test_one_that_the_driver_says_is_ill_comes_back_alone(tmp_path: Path) -> None:
    """By the client that the driver has."""
    container = Container(tmp_path)
    with container.started() as process:
        container.wait_for(lambda: container.answers(1))
        ill = EngineClient(f"http://127.0.0.1:{container.ports[0]}", "m")
        ill.ask_restart()
        container.wait_for(lambda: container.answers(0, 2))
        [second] = container.processes(1)
        assert is_there(second)
        assert process.poll() is None

    assert "nightshift: engine 0 answers no request: it is killed" in container.said()


def test_one_that_has_not_answered_in_this_life_is_not_killed_for_the_last_one(tmp_path: Path) -> None:
    container = Container(tmp_path)
    with container.started():
        container.wait_for(lambda: container.answers(1))
        hangs = container.tell("hangs", 0)
        ill = EngineClient(f"http://127.0.0.1:{container.ports[0]}", "m")
        ill.ask_restart()
        container.wait_for(lambda: len(container.processes(0)) == 2)
        for _ in range(5):
            ill.ask_restart()
            time.sleep(0.05)
        hangs.unlink()
        assert is_there(container.processes(0)[1])
        assert len(container.processes(0)) == 2


def test_an_engine_elsewhere_is_asked_for_nothing() -> None:
    """A datagram is for the supervisor in the same pod alone."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listens:
        listens.bind(("127.0.0.1", 0))
        listens.settimeout(0.2)
        port = listens.getsockname()[1]
        for host in ("localhost", "127.0.0.2", "[::1]"):
            EngineClient(f"http://{host}:{port}", "m").ask_restart()
        with pytest.raises(TimeoutError):
            listens.recv(64)
        EngineClient(f"http://127.0.0.1:{port}", "m").ask_restart()
        assert listens.recv(64) == supervisor.RESTART


def test_one_that_does_not_answer_in_time_counts_as_ended(tmp_path: Path) -> None:
    container = Container(tmp_path, patience_s=1)
    container.tell("hangs", 0)
    with container.started() as process:
        assert process.wait(60) == 137

    assert not container.processes(1)


def test_a_program_that_is_not_there_is_said(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SOURCE, str(new_port()), "9", "9", "/no/such/program"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)

    assert (done.returncode, done.stdout.split(":")[:2]) == (127, ["nightshift", " cannot start '/no/such/program'"])
