"""The supervisor: ``python -m local.stack.supervisor --state DIR --life ID --parts A,B --dags DIR --airflow ENV
[--by-the-clock] [--kubernetes FILE] [--tie FD --owner PID]``.

Holds the state folder's lock as long as it runs. Shuts down in order on SIGTERM, SIGINT, or when the pipe FD closes, and at
once on a second signal. Exit codes: 0 after an orderly end, 2 if a part cannot be started here, 3 if another has the lock.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import logging
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from local.environments import SetupError
from local.package import installed
from local.stack import airflow, environment, marks, parts
from local.stack.folder import ROOT, Folder
from local.stack.kubernetes import Kubernetes
from local.stack.service import Service

log = logging.getLogger("stack")

TICK_S: Final = 0.2
MISSING: Final = 2
LOCKED: Final = 3
_PR_SET_CHILD_SUBREAPER: Final = 36


class Supervisor:
    """One life of a stack."""

    def __init__(
        self,
        folder: Folder,
        life: str,
        names: tuple[str, ...],
        choice: airflow.Choice,
        kubernetes: Kubernetes | None,
        tie: int | None,
        owner: int | None,
    ) -> None:
        self._folder = folder
        self._life = life
        self._tie = tie
        ports = folder.ports([port for name in names for port in parts.PORTS[name]])
        self._services = [
            Service(part, folder, environment.base(), life)
            for part in parts.build(folder, life, names, ports, choice, kubernetes)
        ]
        self._reaper: subprocess.Popen[bytes] | None = None
        self._pipe: int | None = None
        self._signals = 0
        self._wakeup, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._fixed: dict[str, Any] = {
            "version": 1,
            "life": life,
            "supervisor": os.getpid(),
            "owner": owner,
            "dags": str(choice.dags),
            "airflow_environment": choice.environment,
            "gateway": kubernetes.gateway if kubernetes else None,
            "environment": environment.clients(folder, ports, kubernetes),
        }
        if "airflow" in names:
            login = {"url": airflow.url(ports), "user": airflow.USER, "password": folder.secrets()["password"]}
            self._fixed["airflow"] = login
            self._fixed["package"] = str(installed())
            self._fixed["environment"] |= airflow.settings(folder, ports, choice, installed())
        self._written: dict[str, Any] = {}

    def run(self) -> None:
        while not self._signals and not self._untied():
            self._reap()
            self._guard()
            for service in self._services:
                service.step()
            self._write("up")
            self._sleep()
        self._write("stopping")
        log.info("stopping")
        for service in reversed(self._services):
            service.stop(self._reap, lambda: self._signals > 1)
        self._dismiss_reaper()
        with contextlib.suppress(FileNotFoundError):
            self._folder.document.unlink()
        log.info("stopped")

    def _signalled(self, number: int, _frame: object) -> None:
        log.info("%s received", signal.Signals(number).name)
        self._signals += 1

    def _untied(self) -> bool:
        """Whether the stack was tied to a process that is gone."""
        if self._tie is None or not select.select([self._tie], [], [], 0)[0]:
            return False
        log.info("the process that this stack is tied to has ended")
        return True

    def _sleep(self) -> None:
        """Waits until something happens, at most a tick."""
        watched = [self._wakeup] if self._tie is None else [self._wakeup, self._tie]
        if self._wakeup in select.select(watched, [], [], TICK_S)[0]:
            os.read(self._wakeup, 4096)

    def _reap(self) -> None:
        """Reaps children that have died: parts, the reaper, and what dead parts had started (see `main`)."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                for service in self._services:
                    if service.pid == pid:
                        service.exited(status)
                if self._reaper and self._reaper.pid == pid:
                    self._reaper.returncode = status
                    self._reaper = None
                    log.error("the reaper DIED; starting another")

    def _guard(self) -> None:
        if self._reaper is not None:
            return
        if self._pipe is not None:
            os.close(self._pipe)
        read_end, self._pipe = os.pipe()
        marked = {marks.STACK: str(self._folder.path), marks.LIFE: self._life, marks.PART: "reaper"}
        self._reaper = subprocess.Popen(
            [sys.executable, "-S", "-m", "local.stack.reaper", str(self._folder.path), self._life],
            cwd=ROOT,
            env={**environment.base(), **marked},
            stdin=read_end,
            start_new_session=True,
        )
        os.close(read_end)

    def _dismiss_reaper(self) -> None:
        if self._reaper is None or self._pipe is None:
            return
        os.close(self._pipe)
        try:
            self._reaper.wait(5)
        except subprocess.TimeoutExpired:
            self._reaper.kill()
            self._reaper.wait()

    def _write(self, state: str) -> None:
        document = {
            **self._fixed,
            "state": state,
            "reaper": self._reaper.pid if self._reaper else None,
            "parts": {service.part.name: service.report() for service in self._services},
        }
        if document != self._written:
            self._folder.write(document)
            self._written = document


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m local.stack.supervisor")
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--life", required=True)
    parser.add_argument("--parts", required=True)
    parser.add_argument("--dags", type=Path, required=True)
    parser.add_argument("--airflow", required=True)
    parser.add_argument("--by-the-clock", action="store_true")
    parser.add_argument("--kubernetes", type=Path)
    parser.add_argument("--tie", type=int)
    parser.add_argument("--owner", type=int)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    if arguments.tie is not None:
        os.set_inheritable(arguments.tie, False)
    folder = Folder.at(arguments.state)
    lock = folder.lock()
    if lock is None:
        log.error("another supervisor has %s", folder.path)
        return LOCKED
    # What a dead part leaves behind becomes the supervisor's child, so that it gets reaped.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        strays = marks.sweep({marks.STACK: str(folder.path)})
        if strays:
            log.warning("killed %d processes that an earlier life left", strays)
        kubernetes = Kubernetes.read(arguments.kubernetes) if arguments.kubernetes else None
        names = tuple(arguments.parts.split(","))
        choice = airflow.Choice(arguments.dags, arguments.airflow, arguments.by_the_clock)
        supervisor = Supervisor(folder, arguments.life, names, choice, kubernetes, arguments.tie, arguments.owner)
    except (parts.Missing, SetupError) as error:
        log.error("%s", error)
        return MISSING
    supervisor.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
