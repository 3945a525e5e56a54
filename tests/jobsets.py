"""JobSets for tests: a manifest of a small run, and what the local runtime's agent would have written about it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from local.runtime.folder import REFUSED, STATUS_VERSION, AgentFolder
from local.runtime.objects import container_status, objects, refused, terminated
from local.runtime.policy import JobEnd
from local.runtime.records import JobSetRecord, PodRecord
from local.runtime.spec import read_manifest
from nightshift.jobset.manifest.render import render
from nightshift.settings import Settings
from tests.builders import RUN, a_plan, a_spec

BUCKET = "runs"
ENDS = {
    "Completed": JobEnd(True, "CompletionsReached", "Reached expected number of succeeded pods"),
    "Failed": JobEnd(False, "FailedIndexes", "Job has failed indexes"),
}


def a_manifest(name: str) -> dict[str, Any]:
    return render(a_spec(), RUN, a_plan(8), Settings(bucket=BUCKET, project="acme"), name=name)


def an_ended_pod(name: str, *, code: int, reason: str = "") -> PodRecord:
    """Of index 0. code: of its driver. reason: of what took it away."""
    now = time.time()
    driver = container_status("driver", "driver:1", state=terminated(code, at=(now, now)))
    return PodRecord(
        name,
        0,
        1,
        now,
        phase="Failed" if code else "Succeeded",
        bound=True,
        reason=reason,
        disrupted_at=now if reason else 0.0,
        containers={"initContainerStatuses": [], "containerStatuses": [driver]},
        ruling="Count" if code else "Succeeded",
        ended_at=now,
    )


class Agent:
    """Stands in for the agent by the files that are its interface: what it would say of a JobSet, and what it was asked."""

    def __init__(self, folder: Path) -> None:
        self._state = AgentFolder(folder)

    def names(self) -> list[str]:
        """JobSets that were submitted and not deleted."""
        return sorted(self._state.names())

    def create(self, name: str) -> None:
        self._state.create(name, a_manifest(name))

    def says(
        self,
        name: str,
        phase: Literal["Running", "Completed", "Failed"],
        *,
        pods: Sequence[PodRecord] = (),
        annotations: Mapping[str, str] | None = None,
        events: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """annotations: over those of the manifest. events: beside those that say which pods were deleted."""
        folder = self._state.jobset(name)
        manifest, now = folder.manifest(), time.time()
        record = JobSetRecord(now, now, now, ENDS[phase], list(pods)) if phase in ENDS else JobSetRecord(now, pods=list(pods))
        found = objects(folder.object(), read_manifest(manifest), record, "here")
        metadata = found["jobset"]["metadata"]
        metadata["annotations"] = {**metadata["annotations"], **(annotations or {})}
        found["events"] += events
        folder.write_status({"version": STATUS_VERSION, **found, "state": record.to_dict()})

    def refuses(self, name: str, why: str) -> None:
        folder = self._state.jobset(name)
        found = refused(folder.object(), REFUSED, why, time.time())
        folder.write_status({"version": STATUS_VERSION, **found, "state": None})

    def of_another_release(self, name: str) -> None:
        """A JobSet that an agent of another release has taken up."""
        self._state.jobset(name).write_status({"version": STATUS_VERSION + 1, "state": {"begun": True}})

    def log(self, name: str, pod: str, container: str, text: str) -> None:
        path = self._state.jobset(name).log(pod, container)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def was_asked_to_stop(self, name: str) -> bool:
        return self._state.jobset(name).stop_asked_at() is not None

    def remove(self, name: str) -> None:
        self._state.jobset(name).remove()
