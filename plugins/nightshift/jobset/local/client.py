"""The client side of the local runtime: files only, no agent needed for any call to return."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import chain, count, takewhile
from pathlib import Path
from typing import Any

from nightshift.jobset.labels import JUDGED_ANNOTATION, PAUSED_ANNOTATION, RUN_LABEL
from nightshift.jobset.local.folder import STATUS_VERSION, JobSetFolder, StateFolder
from nightshift.jobset.local.shape import is_dns_label, must_be_a_jobset
from nightshift.jobset.observation import Observation, moment
from nightshift.jobset.runtime import JobSetExists, JobSetNotFound, RuntimeUnavailable
from nightshift.settings import Settings


def local_runtime(settings: Settings) -> LocalRuntime | None:
    """The runtime of FOLDER for the setting ``local:FOLDER``; None if JobSets run elsewhere."""
    return LocalRuntime(Path(settings.local_folder)) if settings.local_folder else None


class LocalRuntime:
    """`nightshift.jobset.runtime.Runtime` over the state folder of an agent. Every call may be repeated."""

    def __init__(self, state_dir: str | Path) -> None:
        self._state = StateFolder(Path(state_dir))

    def submit(self, manifest: Mapping[str, Any]) -> str:
        """Returns '': local JobSets have no uids. Raises RequestRefused for anything but a JobSet.

        A JobSet that the agent does not support is created, and fails as soon as the agent reads it.
        """
        must_be_a_jobset(manifest)
        name = str(manifest["metadata"]["name"])
        with _reachable():
            try:
                self._state.create(name, manifest)
            except FileExistsError as error:
                raise JobSetExists(name) from error
        return ""

    def observe(self, name: str, *, closely: bool = False) -> Observation:
        """What the agent wrote last; until then, the JobSet as submitted."""
        try:
            folder = self._folder(name)
            with _reachable(name):
                written = folder.read_status()
                manifest = folder.manifest() if written is None else {}
                stopped_at, judge, paused = folder.stop_asked_at(), folder.judge(), folder.paused()
        except JobSetNotFound:
            return Observation(None)
        if written is None:
            written = {"version": STATUS_VERSION, "jobset": manifest, "jobs": [], "pods": [], "events": []}
        if written.get("version") != STATUS_VERSION:
            raise RuntimeUnavailable(
                f"an agent of another release wrote the state of JobSet {name}; restart the local runtime's agent "
                "(make down, then make up), which refuses the JobSet, and clear the task"
            )
        metadata = dict(written["jobset"]["metadata"])
        notes = {JUDGED_ANNOTATION: judge, PAUSED_ANNOTATION: paused}
        if any(notes.values()):
            noted = {name: value for name, value in notes.items() if value}
            metadata["annotations"] = {**(metadata.get("annotations") or {}), **noted}
        jobset = {**written["jobset"], "metadata": metadata}
        if paused:
            jobset["spec"] = {**jobset["spec"], "suspend": True}
        if stopped_at is not None:
            metadata["deletionTimestamp"] = moment(stopped_at)
        return Observation(
            jobset,
            jobs=tuple(written["jobs"]),
            pods=tuple(written["pods"]),
            events=tuple(written["events"]) if closely else (),
        )

    def claim(self, name: str, uid: str, owner: str) -> None:
        """Only checks that it exists: here no signature is needed to end a JobSet."""
        with _reachable(name):
            self._folder(name).created_at()

    def mark_judged(self, name: str, uid: str, by: str) -> None:
        with _reachable(name):
            self._folder(name).note_judge(by)

    def jobsets(self, run_id: str) -> list[dict[str, Any]]:
        seen = [self.observe(name).jobset for name in self._state.names()]
        return [dict(each) for each in seen if each and (each["metadata"].get("labels") or {}).get(RUN_LABEL) == run_id]

    def pause(self, name: str, note: str) -> None:
        with _reachable(name):
            self._folder(name).pause(note)

    def resume(self, name: str) -> None:
        with _reachable(name):
            self._folder(name).resume()

    def stop(self, name: str, uid: str = "") -> None:
        """Without an agent the request waits for one; until it is carried out, the JobSet exists and its name is taken."""
        with contextlib.suppress(JobSetNotFound), _reachable(name):
            self._folder(name).ask_stop()

    def logs(self, name: str, pod: str, container: str, *, last: int | None = None) -> Iterator[str]:
        """Nothing for a container that has not started. Lines have no line ends; bytes that are not UTF-8 are replaced."""
        folder = self._folder(name)
        with _reachable(name):
            folder.created_at()
        if not (is_dns_label(pod) and is_dns_label(container)):
            return iter(())
        lives = takewhile(Path.exists, (folder.log(pod, container, life) for life in count()))
        lines = chain.from_iterable(map(_lines, lives))
        return iter(lines) if last is None else iter(deque(lines, maxlen=last))

    def _folder(self, name: str) -> JobSetFolder:
        if not is_dns_label(name):
            raise JobSetNotFound(name)
        return self._state.jobset(name)


@contextlib.contextmanager
def _reachable(name: str = "") -> Iterator[None]:
    """Maps errors of the file system: a missing file is a missing JobSet; after any other its state is unknown."""
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
