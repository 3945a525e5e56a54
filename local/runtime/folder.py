"""The agent's half of the state folder (`nightshift.jobset.local.folder` has the client's): what only the agent writes."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any, Final

from nightshift.jobset.local.folder import ENDED, ENDED_MOST, JobSetFolder, StateFolder, sync_folder, write_atomic
from nightshift.jobset.observation import moment

LOG_BYTES_MOST: Final = 1 << 20
LOGS_MOST: Final = 200
"""What is kept of a JobSet that is gone: the end of so many logs, the newest."""
SOCKET_PATH_MOST: Final = 107
"""Bytes of the path of a socket, by Linux."""
SOCKET_NAME_MOST: Final = 40
"""Of these, for the name that a program gives a socket among its temporary files: vLLM gives three a UUID each."""
_ID_BYTES: Final = 6


class AgentJobSetFolder(JobSetFolder):
    """Files of one JobSet. Methods raise FileNotFoundError if the folder is gone."""

    def write_status(self, value: dict[str, Any]) -> None:
        write_atomic(self.path / "status.json", value)

    def write_pods(self, value: dict[str, Any]) -> None:
        write_atomic(self.path / "pods.json", value, durable=False)

    def object(self) -> dict[str, Any]:
        """The JobSet as the API has it, without its status: what was submitted, or what was made of it since."""
        try:
            return dict(json.loads((self.path / "object.json").read_text("utf-8")))
        except FileNotFoundError:
            manifest, created = self.manifest(), self.created_at()
            uid = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{self.name}/{created}"))
            metadata = {"namespace": "default", **manifest["metadata"], "uid": uid, "generation": 1}
            return {**manifest, "metadata": {**metadata, "creationTimestamp": moment(created)}}

    def write_object(self, value: dict[str, Any]) -> None:
        write_atomic(self.path / "object.json", value)

    def resume_asked(self) -> bool:
        return (self.path / "resume").exists()

    def evictions_asked(self) -> list[str]:
        try:
            return sorted(entry.name for entry in (self.path / "evict").iterdir())
        except FileNotFoundError:
            return []

    def ask_eviction(self, pod: str) -> None:
        (self.path / "evict").mkdir(exist_ok=True)
        (self.path / "evict" / pod).touch()

    def forget_eviction(self, pod: str) -> None:
        (self.path / "evict" / pod).unlink(missing_ok=True)

    def scratch(self, pod: str) -> Path:
        """Working folder of a pod's processes."""
        return self.path / "pods" / pod

    def temporary(self, pod: str) -> Path:
        """Folder for the temporary files of a pod's processes. Not in `scratch`, whose path is too long for sockets."""
        return _temporary(self.state) / _short(f"{self.name}/{pod}")

    def make_temporary(self, pod: str) -> None:
        self.temporary(pod).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.temporary(pod).mkdir(exist_ok=True)

    def remove_temporary(self, pod: str) -> None:
        shutil.rmtree(self.temporary(pod), ignore_errors=True)
        with contextlib.suppress(OSError):
            # While another pod has one, it is not empty.
            self.temporary(pod).parent.rmdir()

    def remove(self) -> None:
        trash = self.state / "trash" / f"{self.name}.{secrets.token_hex(4)}"
        trash.parent.mkdir(exist_ok=True)
        self.path.rename(trash)
        sync_folder(self.path.parent)
        with contextlib.suppress(OSError):
            # What is kept serves people: a full disk must not keep the JobSet.
            _keep(trash, self.state / ENDED, self.name)
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
        shutil.rmtree(_temporary(self.path), ignore_errors=True)
        (self.path / "agent.json").unlink(missing_ok=True)

    def write_kubeconfig(self, url: str) -> None:
        """STATE/kubeconfig leads to this agent's API."""
        cluster = {"name": "local", "cluster": {"server": url}}
        context = {"name": "local", "context": {"cluster": "local", "user": "local"}}
        document = {"apiVersion": "v1", "kind": "Config", "current-context": "local", "clusters": [cluster]}
        write_atomic(self.path / "kubeconfig", {**document, "contexts": [context], "users": [{"name": "local", "user": {}}]})

    def announce(self, started: float) -> None:
        write_atomic(self.path / "agent.json", {"pid": os.getpid(), "started": started}, durable=False)

    def beat(self) -> None:
        os.utime(self.path / "agent.json")

    def withdraw(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self.path / "agent.json").unlink()


def _temporary(state: Path) -> Path:
    """Where the pods of a state folder have their temporary files: in it, unless its path leaves no room for a socket's."""
    inside = state / "tmp"
    needed = len(os.fsencode(inside)) + 1 + 2 * _ID_BYTES + 1 + SOCKET_NAME_MOST
    return inside if needed <= SOCKET_PATH_MOST else Path(tempfile.gettempdir()) / f"nightshift-{_short(str(state))}"


def _short(name: str) -> str:
    """Hex digits that stand for a name."""
    return hashlib.blake2b(name.encode(), digest_size=_ID_BYTES).hexdigest()


def _keep(gone: Path, ended: Path, name: str) -> None:
    """Moves what people may want to read of a JobSet that is gone, and forgets the oldest of what was kept before."""
    target = ended / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{name}"
    target.mkdir(parents=True, exist_ok=True)
    logs = sorted((gone / "logs").rglob("*.log"), key=lambda each: each.stat().st_mtime)
    for log in logs[-LOGS_MOST:]:
        kept = target / log.relative_to(gone)
        kept.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_BYTES_MOST))
            kept.write_bytes(file.read())
    for each in ("status.json", "manifest.json"):
        with contextlib.suppress(FileNotFoundError):
            (gone / each).rename(target / each)
    for old in sorted(each for each in ended.iterdir())[:-ENDED_MOST]:
        shutil.rmtree(old, ignore_errors=True)
