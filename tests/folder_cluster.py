"""A cluster without processes or sockets: its JobSets are in the folder of `tests.jobsets.Agent`, which says how they are.

`FolderRuntime` is what a task has of it, `FolderApi` what a follower has.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from local.runtime.folder import AgentFolder, AgentJobSetFolder
from nightshift.jobset.labels import JUDGED_ANNOTATION, OWNER_ANNOTATION, PAUSED_ANNOTATION, RUN_LABEL
from nightshift.jobset.observation import Observation, moment
from nightshift.jobset.runtime import JobSetExists, JobSetNotFound
from nightshift.triggers.jobset import KubernetesJobSetTrigger


class FolderRuntime:
    """`nightshift.jobset.runtime.Runtime`."""

    def __init__(self, folder: Path) -> None:
        self._state = AgentFolder(folder)

    def submit(self, manifest: Mapping[str, Any]) -> str:
        name = str(manifest["metadata"]["name"])
        try:
            self._state.create(name, manifest)
        except FileExistsError as error:
            raise JobSetExists(name) from error
        return str(self._state.jobset(name).object()["metadata"]["uid"])

    def observe(self, name: str, *, closely: bool = False) -> Observation:
        try:
            folder = self._folder(name)
            seen = {"jobset": {}, "jobs": [], "pods": [], "events": [], **(folder.read_status() or {})}
            jobset = {**folder.object(), "status": seen["jobset"].get("status", {})}
        except (JobSetNotFound, FileNotFoundError):
            return Observation(None)
        said = seen["jobset"].get("metadata", {}).get("annotations") or {}
        annotations = {**(jobset["metadata"].get("annotations") or {}), **said}
        jobset["metadata"] = {**jobset["metadata"], "annotations": annotations, "resourceVersion": "1"}
        if stopped_at := folder.stop_asked_at():
            jobset["metadata"]["deletionTimestamp"] = moment(stopped_at)
        return Observation(jobset, tuple(seen["jobs"]), tuple(seen["pods"]), events=tuple(seen["events"]) if closely else ())

    def patch(self, name: str, patch: Mapping[str, Any]) -> dict[str, Any]:
        folder = self._folder(name)
        jobset = folder.object()
        annotations = {**(jobset["metadata"].get("annotations") or {}), **patch.get("metadata", {}).get("annotations", {})}
        jobset["metadata"]["annotations"] = {key: value for key, value in annotations.items() if value is not None}
        jobset["spec"] = {**jobset["spec"], **patch.get("spec", {})}
        folder.write_object(jobset)
        return jobset

    def claim(self, name: str, uid: str, owner: str) -> None:
        self.patch(name, {"metadata": {"annotations": {OWNER_ANNOTATION: owner}}})

    def mark_judged(self, name: str, uid: str, by: str) -> None:
        self.patch(name, {"metadata": {"annotations": {JUDGED_ANNOTATION: by}}})

    def jobsets(self, run_id: str) -> list[dict[str, Any]]:
        seen = [self.observe(name).jobset for name in self._state.names()]
        return [dict(each) for each in seen if each and (each["metadata"].get("labels") or {}).get(RUN_LABEL) == run_id]

    def pause(self, name: str, note: str) -> None:
        self.patch(name, {"metadata": {"annotations": {PAUSED_ANNOTATION: note}}, "spec": {"suspend": True}})

    def resume(self, name: str) -> None:
        self.patch(name, {"metadata": {"annotations": {PAUSED_ANNOTATION: None}}, "spec": {"suspend": False}})

    def stop(self, name: str, uid: str = "") -> None:
        try:
            self._folder(name).ask_stop()
        except JobSetNotFound:
            return

    def logs(self, name: str, pod: str, container: str, *, last: int | None = None) -> Iterator[str]:
        """Of all lives of the container."""
        folder = self._folder(name)
        lives = takewhile(Path.exists, (folder.log(pod, container, life) for life in count()))
        lines = [line for life in lives for line in life.read_text().splitlines()]
        return iter(lines if last is None else deque(lines, maxlen=last))

    def _folder(self, name: str) -> AgentJobSetFolder:
        if name not in self._state.names():
            raise JobSetNotFound(name)
        return self._state.jobset(name)


class FolderApi:
    """What a follower calls of `AsyncJobSetApi`; a watch reports what the next look shows."""

    def __init__(self, runtime: FolderRuntime) -> None:
        self._runtime = runtime

    async def list_jobset(self, name: str) -> tuple[list[dict[str, Any]], str]:
        jobset = self._runtime.observe(name).jobset
        return [dict(jobset)] if jobset else [], "1"

    async def get_jobset(self, name: str) -> dict[str, Any]:
        found, _ = await self.list_jobset(name)
        if not found:
            raise JobSetNotFound(name)
        return found[0]

    async def delete_jobset(self, name: str, *, uid: str, resource_version: str) -> None:
        self._runtime.stop(name, uid)

    async def list_pods(self, name: str) -> tuple[list[dict[str, Any]], str]:
        return [dict(pod) for pod in self._runtime.observe(name).pods], "1"

    def watch_jobset(self, name: str, version: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        return self._watch(name, lambda seen: [seen.jobset] if seen.jobset else [])

    def watch_pods(self, name: str, version: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        return self._watch(name, lambda seen: list(seen.pods))

    async def _watch(self, name: str, part: Any) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        known: dict[str, Any] = {}
        while True:
            found = {each["metadata"]["name"]: each for each in part(self._runtime.observe(name))}
            for gone in [each for each in known if each not in found]:
                yield "DELETED", known.pop(gone)
            for each, value in found.items():
                if known.get(each) != value:
                    known[each] = value
                    yield "MODIFIED", {**value, "metadata": {**value["metadata"], "resourceVersion": "1"}}
            await asyncio.sleep(0.01)

    async def list_events(self, name: str) -> list[dict[str, Any]]:
        return [dict(each) for each in self._runtime.observe(name, closely=True).events]

    async def get_workload(self, uid: str) -> None:
        return None

    async def patch_jobset(self, name: str, patch: Mapping[str, Any]) -> dict[str, Any]:
        return self._runtime.patch(name, patch)


class FolderTrigger(KubernetesJobSetTrigger):
    """The trigger of production, on such a cluster. Copies no logs."""

    def __init__(self, runtime: FolderRuntime, **given: Any) -> None:
        super().__init__(**{"namespace": "nightshift", "get_logs": False, **given})
        self.get_logs = False
        self._runtime = runtime

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Any]:
        yield FolderApi(self._runtime)


def trigger_of(runtime: FolderRuntime) -> Any:
    """As `nightshift.operators.infer.trigger_for`."""
    return partial(FolderTrigger, runtime)


def a_trigger(runtime: FolderRuntime, *names: str, seconds: float = 60.0, **given: Any) -> FolderTrigger:
    """seconds: until its deadline."""
    seen = {name: runtime.observe(name).jobset for name in names}
    jobsets = [{"name": name, "uid": found["metadata"]["uid"] if found else ""} for name, found in seen.items()]
    return FolderTrigger(runtime, jobsets=jobsets, deadline=time.time() + seconds, **given)
