"""`Cluster`: starts, finds and stops a cluster from another process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from local.cluster import build, packages
from local.cluster.images import loading
from local.cluster.layout import DEFAULT_STATE, Layout
from local.cluster.processes import run, succeeds
from local.cluster.supervisor import FAILED
from local.cluster.teardown import teardown
from local.stack.folder import ROOT

STATE_VARIABLE: Final = "NIGHTSHIFT_CLUSTER"
"""Names the state folder of a running cluster, to be used instead of starting another."""
UP_S: Final = 600.0
DOWN_S: Final = 60.0
POLL_S: Final = 0.1


class ClusterError(Exception):
    """The cluster cannot be started or used as asked; the message says why and what to do."""


class Cluster:
    """The cluster of one state folder, no matter which process started it.

    ``with Cluster(state) as cluster:`` starts a cluster that ends with the block, or with this process, however it
    dies. A cluster that ``up`` has started is used and left up.

    nodes: real ones. kwok: simulated nodes. images: tars that every real node gets. say: gets one line per event.
    """

    def __init__(
        self,
        state: Path = DEFAULT_STATE,
        *,
        nodes: int = 2,
        kwok: int = 4,
        kueue: bool = True,
        images: Sequence[Path] = (),
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._layout = Layout.at(state)
        self._nodes = nodes
        self._kwok = kwok
        self._kueue = kueue
        self._images = tuple(images)
        self._say = say
        self._process: subprocess.Popen[bytes] | None = None
        self._tie: int | None = None

    def __enter__(self) -> Self:
        self.up(tied=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None:
            self.down()

    @property
    def state(self) -> Path:
        return self._layout.path

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self._layout.kubeconfig

    @property
    def gateway(self) -> str:
        """The address at which pods reach this machine."""
        return self._layout.gateway

    def up(self, *, tied: bool = False) -> None:
        """Builds what is missing, and returns when every node is ready. Does nothing if the cluster is up.

        Raises ClusterError if it does not start; then nothing is left of it.
        """
        try:
            packages.ensure(self._say)
            build.ensure(self._say)
        except (packages.Unsupported, build.BuildError) as error:
            raise ClusterError(str(error)) from error
        if self._held():
            self._must_be_up()
            return
        began = time.monotonic()
        self._spawn(tied)
        try:
            self._await_start(began)
        except BaseException:
            self.down()
            raise
        self._say(f"up in {time.monotonic() - began:.0f} s: export KUBECONFIG={self.kubeconfig}")

    def down(self) -> None:
        """Stops the cluster, no matter which process started it, and removes every trace, even of one that was killed."""
        document = self._layout.read()
        if document and self._held():
            with contextlib.suppress(ProcessLookupError):
                os.kill(document["supervisor"], signal.SIGTERM)
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(DOWN_S)
        end = time.monotonic() + DOWN_S
        while self._held() and time.monotonic() < end:
            time.sleep(POLL_S)
        if self._held():
            self._say("the supervisor does not stop; killing it")
            if document:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(document["supervisor"], signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
            self._process = None
        if self._tie is not None:
            os.close(self._tie)
            self._tie = None
        teardown(self._layout)

    def document(self) -> dict[str, Any]:
        """cluster.json of the living supervisor. Raises ClusterError."""
        document = self._layout.read() if self._held() else None
        if document is None:
            raise ClusterError(f"no cluster is up in {self._layout.path}: make cluster-up")
        return document

    def kubectl(self, *arguments: object, text: str | None = None) -> str:
        """Runs kubectl as administrator and returns its output; text: its input. Raises StartError with kubectl's message."""
        return run(build.Programs()["kubectl"], "--kubeconfig", self.kubeconfig, *arguments, text=text)

    def ready(self) -> bool:
        """Whether the API server reports that it is ready."""
        kubectl = build.Programs()["kubectl"]
        return succeeds(kubectl, "--kubeconfig", self.kubeconfig, "--request-timeout=5s", "get", "--raw=/readyz")

    def load(self, image: Path) -> None:
        """Loads the image in the tar on every real node; pods need ``imagePullPolicy: Never`` or ``IfNotPresent``."""
        with loading(self._layout, self.real_nodes(), [image]):
            pass

    def images(self) -> set[str]:
        """The names of the images that every real node has."""
        known = [
            set(run(build.Programs()["ctr"], "-a", self._layout.containerd(node), "-n", "k8s.io", "images", "ls", "-q").split())
            for node in self.real_nodes()
        ]
        return set.intersection(*known) if known else set()

    def real_nodes(self) -> list[str]:
        """The nodes that run containers. Raises ClusterError if the cluster is not up."""
        return [name.removesuffix("-containerd") for name in self.document()["pids"] if name.endswith("-containerd")]

    def _held(self) -> bool:
        """Whether a supervisor is alive."""
        try:
            with open(self._layout.lock) as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return True
        except FileNotFoundError:
            pass
        return False

    def _must_be_up(self) -> None:
        end = time.monotonic() + UP_S
        while (document := self._layout.read()) is None or document["state"] == "starting":
            if time.monotonic() > end:
                raise ClusterError(f"the cluster in {self._layout.path} does not become ready: make cluster-down")
            time.sleep(POLL_S)
        if document["state"] != "up":
            raise ClusterError(f"the cluster in {self._layout.path} has {document['state']}: make cluster-down")

    def _spawn(self, tied: bool) -> None:
        command = [sys.executable, "-m", "local.cluster.supervisor", "--state", str(self._layout.path)]
        command += ["--nodes", str(self._nodes), "--kwok", str(self._kwok), *([] if self._kueue else ["--no-kueue"])]
        for image in self._images:
            command += ["--image", str(image.resolve())]
        inherited = []
        if tied:
            end, self._tie = os.pipe()
            inherited.append(end)
            command += ["--tie", str(end)]
        self._layout.path.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=inherited,
            )
        for end in inherited:
            os.close(end)

    def _await_start(self, began: float) -> None:
        assert self._process is not None
        while True:
            document = self._layout.read()
            ours = document is not None and document["supervisor"] == self._process.pid
            if document is not None and ours and document["state"] == "up":
                return
            code = self._process.poll()
            if code is not None:
                reason = (
                    document["error"] if document is not None and ours and code == FAILED else self._log.read_text()[-2000:]
                )
                raise ClusterError(f"the cluster does not start: {reason}")
            if time.monotonic() - began > UP_S:
                raise ClusterError(f"the cluster is not up after {UP_S:.0f} s:\n{self._log.read_text()[-2000:]}")
            time.sleep(POLL_S)

    @property
    def _log(self) -> Path:
        """The supervisor's log; beside the folder, which is removed at the end."""
        return self._layout.path.with_name(f"{self._layout.path.name}.log")
