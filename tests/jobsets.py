"""JobSets for tests: a manifest of a small run, and what the local runtime's agent would have written about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nightshift.jobset.local.folder import StateFolder
from nightshift.jobset.manifest import render
from nightshift.jobset.runtime import JobSetStatus
from nightshift.settings import Settings
from tests.builders import RUN, a_plan, a_spec

BUCKET = "runs"


def a_manifest(name: str) -> dict[str, Any]:
    return render(a_spec(), RUN, a_plan(8), Settings(bucket=BUCKET, project="acme"), name=name)


class Agent:
    """Stands in for the agent by the files that are its interface: what it would say of a JobSet, and what it was asked."""

    def __init__(self, folder: Path) -> None:
        self._state = StateFolder(folder)

    def names(self) -> list[str]:
        """JobSets that were submitted and not deleted."""
        return sorted(self._state.names())

    def create(self, name: str) -> None:
        self._state.create(name, a_manifest(name))

    def says(self, name: str, phase: Any, *, annotations: Mapping[str, str] | None = None, **fields: Any) -> None:
        """annotations: over those of the manifest."""
        folder = self._state.jobset(name)
        given = {**folder.manifest()["metadata"]["annotations"], **(annotations or {})}
        folder.write_status({"status": asdict(JobSetStatus(name, phase, annotations=given, **fields))})

    def log(self, name: str, pod: str, container: str, text: str) -> None:
        path = self._state.jobset(name).log(pod, container)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def was_asked_to_stop(self, name: str) -> bool:
        return self._state.jobset(name).stop_asked()

    def remove(self, name: str) -> None:
        self._state.jobset(name).remove()
