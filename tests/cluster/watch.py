"""A watch of the tests' own, beside whatever else looks at the cluster."""

from __future__ import annotations

import json
import subprocess
import threading
from types import TracebackType
from typing import Any, Final, Self

from local.cluster import build
from tests.cluster.kube import OURS, Namespace

AGAIN_S: Final = 0.5


class Watch:
    """All that happens to the objects of a kind in a namespace: only a watch hears how a pod that is deleted ended.

    A context manager. An API server that ends, as some tests have it do, ends kubectl's watch too: then another begins, which
    tells of all that there is as if it were new.
    """

    def __init__(self, namespace: Namespace, kind: str = "pods") -> None:
        self._changes: list[tuple[str, dict[str, Any]]] = []
        kubectl = build.Programs()["kubectl"] if OURS else "kubectl"
        command = [str(kubectl), "--kubeconfig", str(namespace.cluster.kubeconfig), "--namespace", namespace.name]
        self._command = [*command, "get", kind, "--watch", "--output-watch-events", "--output", "json"]
        self._ended = threading.Event()
        self._process = self._begin()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        while self._thread.is_alive():
            self._process.kill()
            self._thread.join(AGAIN_S)

    def changes(self) -> list[tuple[str, dict[str, Any]]]:
        """ADDED, MODIFIED or DELETED, and the object as it was then; the oldest first."""
        return list(self._changes)

    def objects(self) -> list[dict[str, Any]]:
        """Each as it was last seen, also when it is gone, in the order of their creation."""
        found = {each["metadata"]["uid"]: each for _, each in self.changes()}
        return sorted(found.values(), key=lambda each: (each["metadata"]["creationTimestamp"], each["metadata"]["name"]))

    def _begin(self) -> subprocess.Popen[str]:
        return subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)

    def _follow(self) -> None:
        self._read(self._process)
        while not self._ended.wait(AGAIN_S):
            self._process = self._begin()
            self._read(self._process)

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if not line.endswith("\n"):
                break  # It was killed in the middle of it.
            event = json.loads(line)
            if event["type"] in ("ADDED", "MODIFIED", "DELETED"):
                self._changes.append((event["type"], event["object"]))
        process.wait()
