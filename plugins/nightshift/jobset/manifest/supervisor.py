"""Several engines in one container: starts them one after another, watches them, and starts each again alone.

It runs in the server's container, and its source travels in the manifest (`nightshift.jobset.manifest.server`), so it imports
Python's standard library alone::

    python3 -c SOURCE PORTS PATIENCE_S SILENCE_S COMMAND...

starts COMMAND with ``--port=PORT`` for each of PORTS, which have commas between them. PATIENCE_S: how long one may take until
it answers ``GET /health``. SILENCE_S: how long it may not answer later, before it is killed and started again.

- **Only one starts at a time.** vLLM measures the accelerator's free memory while it starts, so two that start together take
  each other's for their own.
- One that ends before it has ever answered ends the container with its exit code: the job is wrong, or the machine, and whoever
  waits for the pod sees it as with one engine. One that answered once is started again beside the others, when all its
  processes are gone (so its memory is free), after a pause that doubles. `STARTS_MOST` starts in a row without an answer end
  the container too: a new one may cure what ails the accelerator.
- One that answers ``GET /health`` may answer nothing else. The driver finds out, and says it by
  a datagram to 127.0.0.1 and the engine's port, which engines use for TCP alone. Then it is killed and started again.
- SIGTERM goes to all of them; when they have ended, it ends with 143.
- It is process 1 of the container, so it reaps what other processes leave behind.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time

LOOK_S = 2.0
ANSWER_S = 10.0
"""How long an engine may take to answer a look."""
PAUSE_LEAST_S = 1.0
PAUSE_MOST_S = 60.0
"""Before an engine starts again. One that has answered for so long begins again with the least."""
STARTS_MOST = 5
RESTART = b"restart"
GONE_S = 30.0
"""How long to wait for the processes of a killed engine: one that the kernel holds does not hinder the next start for ever."""


class Engine:
    """One engine, over all its lives. port: its own. answers: (life, when it first answered, when last), by `watch` alone."""

    def __init__(self, number: int, port: int, command: list[str], environment: dict[str, str]) -> None:
        self.number, self.port = number, port
        self._command, self._environment = [*command, f"--port={port}"], environment
        self.process: subprocess.Popen[bytes] | None = None
        self.life = 0
        self.doomed = 0
        """The last life that was ended for its silence, or as the driver asked."""
        self.since = 0.0
        """When this life began, or the pause after it."""
        self.answers = (0, 0.0, 0.0)
        self.ever = False
        """Whether it has answered in any of its lives."""
        self.failed = 0
        """Starts in a row without an answer."""
        self.due = 0.0
        self._pause = PAUSE_LEAST_S
        self._killed = 0
        self.asks = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.asks.setblocking(False)
        try:
            self.asks.bind(("127.0.0.1", port))
        except OSError as error:
            say(f"engine {number} cannot be asked for to start again: {error}")

    @property
    def answered(self) -> bool:
        """Whether it has in this life."""
        return self.process is not None and self.answers[0] == self.life

    def may_start(self, now: float) -> bool:
        return self.process is None and now >= self.due and (self._is_gone() or now >= self.since + GONE_S)

    def start(self, now: float) -> None:
        self.life += 1
        self.since = now
        self.process = subprocess.Popen(self._command, env=self._environment, start_new_session=True)
        say(f"engine {self.number} starts on port {self.port} as process {self.process.pid}")

    def watch(self) -> None:
        """Looks for ever; for a thread of its own, because an engine that hangs answers late."""
        while True:
            life = self.life
            if self.process is not None and healthy(self.port):
                now = time.monotonic()
                self.answers = (life, self.answers[1] if self.answers[0] == life else now, now)
            time.sleep(LOOK_S)

    def silent_s(self, now: float) -> float:
        """Since it answered last, or began."""
        return now - (self.answers[2] if self.answered else self.since)

    def is_asked_for(self) -> bool:
        """Whether the driver has asked since the last look for it to be started again."""
        asked = False
        with contextlib.suppress(OSError):
            while data := self.asks.recv(64):
                asked |= data == RESTART
        return asked

    def kill(self) -> None:
        """All its processes."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def ended(self, now: float) -> int:
        """After its main process has ended, which nobody has waited for yet. Returns its exit code, as a shell counts."""
        assert self.process is not None
        # Before the wait: until then no other process can get its number. Its core may outlive its API server.
        self.kill()
        life, first, _ = self.answers
        answered = life == self.life
        steady = answered and now - first >= PAUSE_MOST_S
        self._pause = PAUSE_LEAST_S if steady or self.life == 1 else min(PAUSE_MOST_S, 2 * self._pause)
        self.ever |= answered
        self.failed = 0 if answered else self.failed + 1
        self._killed, code = self.process.pid, self.process.wait()
        self.process = None
        self.since, self.due = now, now + self._pause
        return code if code >= 0 else 128 - code

    def _is_gone(self) -> bool:
        if self._killed:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._killed, 0)
                return False
        return True


class Supervisor:
    """patience_s, silence_s: as the module says."""

    def __init__(self, engines: list[Engine], patience_s: float, silence_s: float) -> None:
        self._engines = engines
        self._patience_s, self._silence_s = patience_s, silence_s
        self._asked = 0
        self._wakes, wake = os.pipe()
        for end in (self._wakes, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        # Process 1 gets only signals that it handles.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def run(self) -> int:
        """Returns the exit code of the container."""
        for engine in self._engines:
            threading.Thread(target=engine.watch, daemon=True).start()
        while not self._asked:
            now = time.monotonic()
            while (ended := self._next_ended()) is not None:
                if (over := self._judge(ended, ended.ended(now))) is not None:
                    return over
            self._kill_ill(now)
            self._start_next(now)
            self._wait()
        say("stops: SIGTERM to all engines")
        for engine in self._engines:
            if engine.process is not None:
                engine.process.terminate()
        self._wait_for_all()
        return 128 + self._asked

    def _judge(self, engine: Engine, code: int) -> int | None:
        """The exit code of the container if it is over."""
        if engine.ever and engine.failed < STARTS_MOST:
            say(f"engine {engine.number} ended with exit code {code}, and starts again in {engine.due - engine.since:g} s")
            return None
        # At once: their last words would hide this one's.
        for other in self._engines:
            other.kill()
        self._wait_for_all()
        how = f"{STARTS_MOST} times in a row without an answer" if engine.ever else "before it answered"
        say(f"engine {engine.number} ended with exit code {code}, {how}: the container ends")
        return code or 1

    def _kill_ill(self, now: float) -> None:
        for engine in self._engines:
            most = self._silence_s if engine.answered else self._patience_s
            asked = engine.is_asked_for() and engine.answered
            if engine.process is not None and (asked or engine.silent_s(now) > most) and engine.doomed != engine.life:
                engine.doomed = engine.life
                why = "answers no request" if asked else f"has not answered for {engine.silent_s(now):.0f} s"
                say(f"engine {engine.number} {why}: it is killed")
                engine.kill()

    def _start_next(self, now: float) -> None:
        if any(engine.process is not None and not engine.answered for engine in self._engines):
            return
        ready = [engine for engine in self._engines if engine.may_start(now)]
        if ready:
            min(ready, key=lambda engine: engine.due).start(now)

    def _next_ended(self) -> Engine | None:
        """One whose main process has ended. Reaps all other processes that have."""
        by_pid = {engine.process.pid: engine for engine in self._engines if engine.process is not None}
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if found.si_pid in by_pid:
                    return by_pid[found.si_pid]
                os.waitpid(found.si_pid, 0)
        return None

    def _wait_for_all(self) -> None:
        while any(engine.process is not None for engine in self._engines):
            while (engine := self._next_ended()) is not None:
                engine.ended(time.monotonic())
            self._wait()

    def _wait(self) -> None:
        """Until a process ends or a signal comes, a look at most."""
        select.select([self._wakes], [], [], LOOK_S / 2)
        with contextlib.suppress(BlockingIOError):
            os.read(self._wakes, 4096)

    def _ask(self, number: int, _: object) -> None:
        self._asked = self._asked or number


def healthy(port: int) -> bool:
    """By http.client, which knows no proxies."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def environment_of_one(environment: dict[str, str], engines: int) -> dict[str, str]:
    """With its part of the CPUs: threads that outnumber them wait for each other."""
    threads = environment.get("OMP_NUM_THREADS", "")
    if not threads.isdigit():
        return environment
    return {**environment, "OMP_NUM_THREADS": str(max(1, int(threads) // engines))}


def say(text: str) -> None:
    print(f"nightshift: {text}", flush=True)


def main() -> None:
    ports, patience, silence, *command = sys.argv[1:]
    numbers = [int(port) for port in ports.split(",")]
    environment = environment_of_one(dict(os.environ), len(numbers))
    engines = [Engine(number, port, command, environment) for number, port in enumerate(numbers)]
    try:
        code = Supervisor(engines, float(patience), float(silence)).run()
    except OSError as error:
        say(f"cannot start {command[0]!r}: {error}")
        code = 127
    sys.stdout.flush()
    # Not sys.exit, which would wait for nothing useful: threads may still wait for an engine that hangs.
    os._exit(code)


if __name__ == "__main__":
    main()
