"""A stack's state folder: where things are, and the small files that outlive processes."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO

from local.ports import is_free, new_port

ROOT: Final = Path(__file__).resolve().parents[2]
"""The repository."""
HOST: Final = "127.0.0.1"
LOCK_WAIT_S: Final = 5.0


@dataclass(frozen=True)
class Folder:
    """One state folder; `path` is absolute."""

    path: Path

    @classmethod
    def at(cls, state: Path) -> Folder:
        return cls(state.resolve())

    @property
    def document(self) -> Path:
        return self.path / "stack.json"

    @property
    def runtime(self) -> Path:
        return self.path / "runtime"

    @property
    def runtime_config(self) -> Path:
        return self.path / "runtime.json"

    @property
    def kubernetes(self) -> Path:
        """The stack's settings for its cluster, if it has one."""
        return self.path / "kubernetes.json"

    @property
    def pod_patch(self) -> Path:
        return self.path / "pod-patch.yaml"

    @property
    def airflow_home(self) -> Path:
        return self.path / "airflow"

    @property
    def passwords(self) -> Path:
        return self.path / "airflow-passwords.json"

    @property
    def postgres(self) -> Path:
        return self.path / "postgres"

    @property
    def lineage(self) -> Path:
        return self.path / "lineage" / "events.jsonl"

    def log(self, name: str) -> Path:
        return self.path / "logs" / f"{name}.log"

    def make(self) -> None:
        for folder in (self.path, self.log("any").parent, self.lineage.parent, self.airflow_home):
            folder.mkdir(parents=True, exist_ok=True)

    def read(self) -> dict[str, Any] | None:
        """What the running supervisor wrote; None if none runs, or it has not written yet."""
        supervisor = self.held()
        document: dict[str, Any] | None = _read(self.document)
        return document if document and supervisor and document["supervisor"] == supervisor else None

    def write(self, document: dict[str, Any]) -> None:
        _write(self.document, document)

    def lock(self) -> TextIO | None:
        """Takes the supervisor's lock, to be held for life; None if another supervisor has it."""
        deadline = time.monotonic() + LOCK_WAIT_S
        file = open(self.path / "stack.lock", "a+")  # noqa: SIM115 -- closed by the end of the process
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                # Another process may only be checking, see `held`.
                if self.held() and time.monotonic() > deadline:
                    file.close()
                    return None
                time.sleep(0.05)
            else:
                file.truncate(0)
                file.write(str(os.getpid()))
                file.flush()
                return file

    def held(self) -> int | None:
        """The pid of the living supervisor, or None."""
        try:
            with open(self.path / "stack.lock") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return int(file.read() or 0)
        except FileNotFoundError:
            pass
        return None

    def ports(self, names: Iterable[str]) -> dict[str, int]:
        """A port for each name: the one it had, unless something else listens there now."""
        file = self.path / "ports.json"
        kept: dict[str, int] = _read(file) or {}
        chosen = dict(kept)
        for name in names:
            if name not in chosen or not is_free(chosen[name]):
                chosen[name] = new_port(chosen.values())
        if chosen != kept:
            _write(file, chosen)
        return {name: chosen[name] for name in names}

    def secrets(self) -> dict[str, str]:
        """Airflow's password and keys, made by the first call."""
        makers: dict[str, Callable[[], str]] = {
            "password": lambda: secrets.token_urlsafe(12),
            "fernet_key": lambda: base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            "jwt_secret": lambda: secrets.token_urlsafe(48),
            "session_secret": lambda: secrets.token_urlsafe(32),
        }
        file = self.path / "secrets.json"
        kept: dict[str, str] = _read(file) or {}
        if missing := makers.keys() - kept.keys():
            kept.update({name: makers[name]() for name in missing})
            _write(file, kept)
        return kept


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text())
    except FileNotFoundError:
        return None


def _write(file: Path, content: Any) -> None:
    """Writes in one step, readable only by the owner: the files contain passwords."""
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as target:
        json.dump(content, target, indent=1)
    fresh.replace(file)
