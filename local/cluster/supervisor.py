"""The supervisor: ``python -m local.cluster.supervisor --state DIR [--nodes N] [--kwok N] [--no-kueue] [--image TAR ...]
[--tie FD]``.

Starts a cluster, restarts what dies, and removes every trace at its end: on SIGTERM, SIGINT, or when the pipe FD ends. It
describes the cluster in cluster.json, first with the state "starting". Exit codes: 0 after an orderly end, 2 if a part does
not start (cluster.json then says why, until the folder is removed), 3 if another supervisor has the folder.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import logging
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final, TextIO

from local.cluster import control_plane, controllers, images, network, nodes
from local.cluster.build import Programs
from local.cluster.context import Context
from local.cluster.layout import Layout
from local.cluster.pki import Authority
from local.cluster.processes import ProgramGroup, StartError
from local.cluster.teardown import teardown
from local.ports import new_port

log = logging.getLogger("cluster")

TICK_S: Final = 0.5
LOCK_TRIES: Final = 10
MACHINE: Final = Path("/run/nightshift-cluster.lock")
FAILED: Final = 2
LOCKED: Final = 3


class Supervisor:
    """One run of a cluster."""

    def __init__(self, layout: Layout, tie: int | None) -> None:
        self._layout = layout
        self._tie = tie
        self._ended = False
        self._state = "starting"
        self._machine: TextIO | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        layout.path.mkdir(parents=True)
        self._group = ProgramGroup(layout)
        self._write()

    def start(self, real: int, kwok: int, kueue: bool, more_images: list[Path]) -> None:
        """Raises StartError."""
        layout, programs = self._layout, Programs()
        network.make_bridge(layout)
        context = Context(layout, programs, Authority(layout.pki), self._group, new_port())
        real_names = [f"node-{number}" for number in range(1, real + 1)]
        for name in real_names:
            nodes.start_runtime(context, name)
        pause = images.pause(programs, layout.path, nodes.PAUSE)
        # Takes longest, and does not need the rest.
        with images.loading(layout, real_names, [pause, *more_images]):
            control_plane.start(context)
            controllers.start_jobset(context)
            if kueue:
                controllers.start_kueue(context)
        for number, name in enumerate(real_names, 1):
            nodes.start(context, name, number)
        if real:
            # Not sooner: a start that fails before this point leaves other clusters alone.
            self._machine = _take_machine(layout)
            network.start_services(context)
        if kwok:
            nodes.start_kwok(context, kwok)
        names = real_names + [f"kwok-{number}" for number in range(1, kwok + 1)]
        if names:
            self._group.wait_for("nodes", lambda: len(context.kubectl("get", "nodes", "-o", "name").split()) == len(names))
            context.kubectl("wait", "--for=condition=Ready", "--timeout=60s", *(f"node/{name}" for name in names))

    def hold(self) -> None:
        """Runs until a signal ends it."""
        self._state = "up"
        watched = [] if self._tie is None else [self._tie]
        while not self._ended:
            self._group.revive()
            self._write()
            if select.select(watched, [], [], TICK_S)[0]:
                log.info("the process that this cluster is tied to has ended")
                break

    def fail(self, reason: str) -> None:
        self._state = "failed"
        self._write(reason)

    def _signalled(self, number: int, _frame: object) -> None:
        if self._state == "starting":
            # A start is a series of blocking commands; teardown cleans up if it ends in the middle.
            raise StartError(f"{signal.Signals(number).name} received during the start")
        self._ended = True

    def _write(self, error: str | None = None) -> None:
        document: dict[str, Any] = {
            "state": self._state,
            "error": error,
            "supervisor": os.getpid(),
            "kubeconfig": str(self._layout.kubeconfig),
            "gateway": self._layout.gateway,
            "pids": self._group.pids(),
            "starts": self._group.starts(),
        }
        text = json.dumps(document, indent=1)
        fresh = self._layout.document.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self._layout.document)


def _take_machine(layout: Layout) -> TextIO:
    """Held to its end by the only cluster of this machine that has nodes: kube-proxy's rules are global. Raises StartError."""
    file = open(MACHINE, "a+")  # noqa: SIM115 -- closed by the end of the process
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        other = file.read()
        advice = f"python -m local.cluster --state {other} down"
        raise StartError(f"a machine can run only one cluster, and the one of {other} is up: {advice}") from None
    file.truncate(0)
    file.write(str(layout.path))
    file.flush()
    return file


def _lock(layout: Layout) -> TextIO | None:
    """Held to the end; the file lies beside the folder, which is removed."""
    layout.path.parent.mkdir(parents=True, exist_ok=True)
    file = open(layout.lock, "a+")  # noqa: SIM115 -- closed by the end of the process
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Another process may only be checking whether it is held.
            time.sleep(TICK_S / 5)
        else:
            return file
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m local.cluster.supervisor")
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--kwok", type=int, default=4)
    parser.add_argument("--no-kueue", action="store_true")
    parser.add_argument("--image", type=Path, action="append", default=[])
    parser.add_argument("--tie", type=int)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    if arguments.tie is not None:
        os.set_inheritable(arguments.tie, False)
    layout = Layout.at(arguments.state)
    lock = _lock(layout)
    if lock is None:
        log.error("another supervisor has %s", layout.path)
        return LOCKED
    # Left by a killed supervisor.
    teardown(layout)
    supervisor = Supervisor(layout, arguments.tie)
    try:
        supervisor.start(arguments.nodes, arguments.kwok, not arguments.no_kueue, arguments.image)
    except Exception as error:
        log.exception("the cluster does not start")
        supervisor.fail(str(error))
        return FAILED
    supervisor.hold()
    log.info("stopping")
    teardown(layout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
