"""The client's half of the state folder: each file is written so that no reader sees half of it.

The layout is in the package's docstring. Creating a JobSet is one rename, so it is atomic.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any, Final

STATUS_VERSION: Final = 2
"""The format of status.json, in its field ``version``."""
REFUSED: Final = "ManifestRefused"
"""Reason of the condition Failed if the agent cannot run the JobSet's manifest; the message says why."""

ENDED: Final = "ended"
"""The folder with what is kept of JobSets that are gone: TIME-NAME/, with their last status and their logs."""
ENDED_MOST: Final = 20
"""The newest JobSets that are kept there."""


def write_atomic(path: Path, value: Any, *, durable: bool = True) -> None:
    """Replaces a JSON file. durable: it survives a power loss once this has returned."""
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(value, file)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    temporary.replace(path)
    if durable:
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _touch(path: Path) -> None:
    """Creates an empty file, durably. Raises FileNotFoundError when its folder is gone."""
    path.touch()
    sync_folder(path.parent)


class JobSetFolder:
    """Files of one JobSet. Methods raise FileNotFoundError if the folder is gone."""

    def __init__(self, state: Path, name: str) -> None:
        self.name = name
        self.state = state
        self.path = state / "jobsets" / name

    def manifest(self) -> Any:
        return json.loads((self.path / "manifest.json").read_text("utf-8"))

    def created_at(self) -> float:
        return (self.path / "manifest.json").stat().st_mtime

    def read_status(self) -> dict[str, Any] | None:
        """What the agent wrote last; None before that."""
        try:
            return dict(json.loads((self.path / "status.json").read_text("utf-8")))
        except FileNotFoundError:
            self.created_at()
            return None

    def ask_stop(self) -> None:
        _touch(self.path / "stop")

    def stop_asked_at(self) -> float | None:
        """In seconds since the epoch; None without a request."""
        try:
            return (self.path / "stop").stat().st_mtime
        except FileNotFoundError:
            return None

    def note_judge(self, by: str) -> None:
        self.created_at()
        write_atomic(self.path / "judged", by)

    def judge(self) -> str:
        return self._noted("judged")

    def pause(self, note: str) -> None:
        self.created_at()
        write_atomic(self.path / "paused", note)

    def resume(self) -> None:
        _touch(self.path / "resume")
        (self.path / "paused").unlink(missing_ok=True)

    def paused(self) -> str:
        """Who paused it and when; '' if it is not paused."""
        return self._noted("paused")

    def _noted(self, name: str) -> str:
        try:
            return str(json.loads((self.path / name).read_text("utf-8")))
        except FileNotFoundError:
            return ""

    def log(self, pod: str, container: str, life: int = 0) -> Path:
        """life: how often the container was started before. Names of containers have no dots."""
        return self.path / "logs" / pod / (f"{container}.{life}.log" if life else f"{container}.log")


class StateFolder:
    """The whole folder of one node."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()

    def jobset(self, name: str) -> JobSetFolder:
        return JobSetFolder(self.path, name)

    def names(self) -> list[str]:
        try:
            return sorted(entry.name for entry in (self.path / "jobsets").iterdir())
        except FileNotFoundError:
            return []

    def create(self, name: str, manifest: Any) -> None:
        """Raises FileExistsError if the name is taken; if several race, one wins."""
        target = self.jobset(name).path
        target.parent.mkdir(parents=True, exist_ok=True)
        new = self.path / "new" / f"{name}.{secrets.token_hex(4)}"
        new.mkdir(parents=True)
        try:
            write_atomic(new / "manifest.json", manifest)
            try:
                # Renaming a folder onto one that is not empty fails: that is the create-only check.
                new.rename(target)
            except OSError as error:
                if target.exists():
                    raise FileExistsError(name) from error
                raise
            sync_folder(target.parent)
        finally:
            shutil.rmtree(new, ignore_errors=True)
