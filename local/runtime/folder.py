"""The folder of one agent: each file is written so that no reader sees half of it.

STATE/agent.lock                        held by the agent; a second one refuses to start
STATE/agent.json                        exists while an agent is ready: {"pid", "started"}; touched every second
STATE/jobsets/NAME/manifest.json        what was submitted; created once, never changed
STATE/kubeconfig                        leads to the agent's API (`local.runtime.api`)
STATE/jobsets/NAME/object.json          the JobSet as the API has it, once it was changed there; without its status
STATE/jobsets/NAME/status.json          {"version", "jobset", "jobs", "pods", "events", "state"}; replaced atomically. The
                                        objects are what a cluster's API serves; "state": the agent's own records
STATE/jobsets/NAME/pods.json            live pods: {POD: {"ports": containerPort's name -> port, "pids": container ->
                                        process id of its main process}}, for tests that kill
STATE/jobsets/NAME/stop                 exists from the time at which its deletion was asked for
STATE/jobsets/NAME/evict/POD            the pod is to be evicted: SIGTERM, its grace period, SIGKILL
STATE/jobsets/NAME/logs/POD/CONTAINER.log   output of a container; of its later lives: CONTAINER.1.log, ...
STATE/jobsets/NAME/pods/POD             working folder of the pod's processes, removed when the pod ends
STATE/ended/TIME-NAME/                  status.json, manifest.json and logs/ of a JobSet that is gone; the last 20 are kept,
                                        and of each log its end
"""

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

from nightshift.jobset.observation import moment

STATUS_VERSION: Final = 2
"""The format of status.json, in its field ``version``."""
REFUSED: Final = "ManifestRefused"
"""Reason of the condition Failed if the agent cannot run the JobSet's manifest; the message says why."""

ENDED: Final = "ended"
"""The folder with what is kept of JobSets that are gone: TIME-NAME/, with their last status and their logs."""
ENDED_MOST: Final = 20
"""The newest JobSets that are kept there."""
LOG_BYTES_MOST: Final = 1 << 20
LOGS_MOST: Final = 200
"""What is kept of a JobSet that is gone: the end of so many logs, the newest."""
SOCKET_PATH_MOST: Final = 107
"""Bytes of the path of a socket, by Linux."""
SOCKET_NAME_MOST: Final = 40
"""Of these, for the name that a program gives a socket among its temporary files: vLLM gives three a UUID each."""
_ID_BYTES: Final = 6


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


class AgentJobSetFolder:
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

    def log(self, pod: str, container: str, life: int = 0) -> Path:
        """life: how often the container was started before. Names of containers have no dots."""
        return self.path / "logs" / pod / (f"{container}.{life}.log" if life else f"{container}.log")

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


class AgentFolder:
    """The whole folder of one node."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()

    def jobset(self, name: str) -> AgentJobSetFolder:
        return AgentJobSetFolder(self.path, name)

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
