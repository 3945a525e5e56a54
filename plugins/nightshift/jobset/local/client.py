"""The client side of the local runtime: files only, no agent needed for any call to return."""

from __future__ import annotations

import contextlib
import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nightshift.jobset.local.folder import JobSetFolder, StateFolder
from nightshift.jobset.observation import Observation
from nightshift.jobset.runtime import (
    JUDGED_ANNOTATION,
    JobSetExists,
    JobSetNotFound,
    JobSetStatus,
    RequestRefused,
    RuntimeUnavailable,
)
from nightshift.jobset.status import observation_of
from nightshift.settings import Settings

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def local_runtime(settings: Settings) -> LocalRuntime | None:
    """Where the settings say ``local:FOLDER``, the runtime of that folder; None where JobSets run elsewhere."""
    kind, _, folder = settings.runtime.partition(":")
    return LocalRuntime(Path(folder)) if kind == "local" and folder else None


class PodNotFound(LookupError):
    """The JobSet has no pod of this name that could still be evicted."""


class LocalRuntime:
    """`nightshift.jobset.runtime.Runtime` over the state folder of an agent. Every call may be repeated."""

    def __init__(self, state_dir: str | Path) -> None:
        self._state = StateFolder(Path(state_dir))

    def submit(self, manifest: Mapping[str, Any]) -> str:
        """There are no uids here. A manifest that the agent cannot carry out fails when it looks at it."""
        name = str((manifest.get("metadata") or {}).get("name", ""))
        if not _NAME.fullmatch(name):
            raise RequestRefused(f"metadata.name: {name!r} is not a DNS label")
        with _reachable():
            try:
                self._state.create(name, manifest)
            except FileExistsError as error:
                raise JobSetExists(name) from error
        return ""

    def observe(self, name: str, *, closely: bool = False) -> Observation:
        """The objects that a cluster would serve for what the agent says."""
        try:
            status = self.status(name)
            folder = self._folder(name)
            with _reachable(name):
                manifest, stopping, judge = folder.manifest(), folder.stop_asked(), folder.judge()
        except JobSetNotFound:
            return Observation(None)
        seen = observation_of(status, init_containers=_init_containers(manifest))
        assert seen.jobset is not None
        meta = dict(seen.jobset["metadata"])
        if judge:
            meta["annotations"] = {**meta["annotations"], JUDGED_ANNOTATION: judge}
        if stopping:
            # A cluster gives a time here; only that there is one is read.
            meta["deletionTimestamp"] = "asked"
        return replace(seen, jobset={**seen.jobset, "metadata": meta})

    def claim(self, name: str, uid: str, owner: str) -> None:
        """Nothing to note: no other attempt's trigger ends a JobSet here but by a person's wish."""
        self.status(name)

    def mark_judged(self, name: str, uid: str, by: str) -> None:
        with _reachable(name):
            self._folder(name).note_judge(by)

    def status(self, name: str) -> JobSetStatus:
        """Running, without pods, for a JobSet that no agent has looked at yet (Suspended when its manifest says so)."""
        folder = self._folder(name)
        with _reachable(name):
            written = folder.read_status()
            if written is not None:
                return JobSetStatus.from_dict(written["status"])
            manifest = folder.manifest()
        annotations = dict(manifest["metadata"].get("annotations") or {})
        return JobSetStatus(name, "Suspended" if manifest["spec"].get("suspend") else "Running", annotations=annotations)

    def stop(self, name: str, uid: str = "") -> None:
        """Without an agent the request waits for one; until it has been carried out the JobSet is there and its name taken."""
        with contextlib.suppress(JobSetNotFound), _reachable(name):
            self._folder(name).ask_stop()

    def logs(self, name: str, pod: str, container: str, *, last: int | None = None) -> Iterator[str]:
        """Nothing for a container that has not started. Lines come without line ends; bytes that are not UTF-8 are replaced."""
        folder = self._folder(name)
        with _reachable(name):
            folder.created_at()
        if not (_NAME.fullmatch(pod) and _NAME.fullmatch(container)):
            return iter(())
        lines = _lines(folder.log(pod, container))
        return lines if last is None else iter(deque(lines, maxlen=last))

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


def _init_containers(manifest: Mapping[str, Any]) -> list[str]:
    pod = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    return [each["name"] for each in pod.get("initContainers") or ()]


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
