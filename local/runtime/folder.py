"""The agent's half of the state folder (`nightshift.jobset.local.folder` has the client's): what only the agent writes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

from nightshift.jobset.local.folder import JobSetFolder, StateFolder, sync_folder, write_atomic


class AgentJobSetFolder(JobSetFolder):
    """Files of one JobSet. Methods raise FileNotFoundError if the folder is gone."""

    def write_status(self, value: dict[str, Any]) -> None:
        write_atomic(self.path / "status.json", value)

    def write_pods(self, value: dict[str, Any]) -> None:
        write_atomic(self.path / "pods.json", value, durable=False)

    def resume_asked(self) -> bool:
        return (self.path / "resume").exists()

    def evictions_asked(self) -> list[str]:
        try:
            return sorted(entry.name for entry in (self.path / "evict").iterdir())
        except FileNotFoundError:
            return []

    def forget_eviction(self, pod: str) -> None:
        (self.path / "evict" / pod).unlink(missing_ok=True)

    def scratch(self, pod: str) -> Path:
        """Working folder of a pod's processes."""
        return self.path / "pods" / pod

    def remove(self) -> None:
        trash = self.state / "trash" / f"{self.name}.{secrets.token_hex(4)}"
        trash.parent.mkdir(exist_ok=True)
        self.path.rename(trash)
        sync_folder(self.path.parent)
        shutil.rmtree(trash, ignore_errors=True)


class AgentFolder(StateFolder):
    """The whole folder of one node."""

    def jobset(self, name: str) -> AgentJobSetFolder:
        return AgentJobSetFolder(self.path, name)

    def lock(self) -> int | None:
        """Makes this process the agent of the folder, for as long as it lives. None if another one is."""
        self.path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def clean(self) -> None:
        """Removes what a killed process left half created or half removed. Only for the holder of the lock."""
        shutil.rmtree(self.path / "trash", ignore_errors=True)
        (self.path / "agent.json").unlink(missing_ok=True)

    def announce(self, started: float) -> None:
        write_atomic(self.path / "agent.json", {"pid": os.getpid(), "started": started}, durable=False)

    def beat(self) -> None:
        os.utime(self.path / "agent.json")

    def withdraw(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self.path / "agent.json").unlink()
