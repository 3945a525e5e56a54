"""The client side of the local runtime: files only, no agent needed for any call to return."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nightshift.jobset.local.folder import JobSetFolder, StateFolder
from nightshift.jobset.local.records import status_from_dict
from nightshift.jobset.local.spec import read_manifest
from nightshift.jobset.runtime import JobSetExists, JobSetNotFound, JobSetStatus, RuntimeUnavailable

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


class PodNotFound(LookupError):
    """The JobSet has no pod of this name that could still be evicted."""


class LocalRuntime:
    """`nightshift.jobset.runtime.Runtime` over the state folder of an agent. Every call may be repeated."""

    def __init__(self, state_dir: str | Path) -> None:
        self._state = StateFolder(Path(state_dir))

    def submit(self, manifest: dict[str, Any]) -> None:
        """Also raises ManifestError for a manifest that the local runtime cannot carry out."""
        name = read_manifest(manifest).name
        with _reachable():
            try:
                self._state.create(name, manifest)
            except FileExistsError as error:
                raise JobSetExists(name) from error

    def status(self, name: str) -> JobSetStatus:
        """Running, without pods, for a JobSet that no agent has looked at yet (Suspended when its manifest says so)."""
        folder = self._folder(name)
        with _reachable(name):
            written = folder.read_status()
            if written is not None:
                return status_from_dict(written["status"])
            manifest = read_manifest(folder.manifest())
        return JobSetStatus(name, "Suspended" if manifest.suspended else "Running", annotations=dict(manifest.annotations))

    def stop(self, name: str) -> None:
        """Without an agent the request waits for one; until it has been carried out the JobSet is there and its name taken."""
        with contextlib.suppress(JobSetNotFound), _reachable(name):
            self._folder(name).ask_stop()

    def logs(self, name: str, pod: str, container: str) -> Iterator[str]:
        """Nothing for a container that has not started. Lines come without line ends; bytes that are not UTF-8 are replaced."""
        folder = self._folder(name)
        with _reachable(name):
            folder.created_at()
        if not (_NAME.fullmatch(pod) and _NAME.fullmatch(container)):
            return iter(())
        return _lines(folder.log(pod, container))

    def resume(self, name: str) -> None:
        """Starts a JobSet that was submitted with ``suspend: true``; nothing for another. Raises JobSetNotFound."""
        with _reachable(name):
            self._folder(name).ask_resume()

    def evict(self, name: str, pod: str) -> None:
        """What the Eviction API does: SIGTERM, the grace period, SIGKILL; the pod gets DisruptionTarget
        (EvictionByEvictionAPI).

        Returns at once. Raises JobSetNotFound, PodNotFound (no such pod, or it has ended).
        """
        live = {status.name for status in self.status(name).pods if status.phase in ("Pending", "Running")}
        if pod not in live:
            raise PodNotFound(pod)
        with _reachable(name):
            self._folder(name).ask_eviction(pod)

    def _folder(self, name: str) -> JobSetFolder:
        if not _NAME.fullmatch(name):
            raise JobSetNotFound(name)
        return self._state.jobset(name)


@contextlib.contextmanager
def _reachable(name: str = "") -> Iterator[None]:
    """Maps errors of the file system: a missing file is a missing JobSet, anything else says nothing about it."""
    try:
        yield
    except FileNotFoundError as error:
        if not name:
            raise RuntimeUnavailable(str(error)) from error
        raise JobSetNotFound(name) from error
    except OSError as error:
        raise RuntimeUnavailable(str(error)) from error


def _lines(path: Path) -> Iterator[str]:
    with contextlib.suppress(FileNotFoundError), open(path, encoding="utf-8", errors="replace", newline="\n") as file:
        for line in file:
            yield line.rstrip("\n")
