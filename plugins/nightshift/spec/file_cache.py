"""What files said when they were read last, by their bytes: Airflow parses a folder of jobs every half minute, twice.

Most of a file's time goes into SQL, templates and YAML, which a file that has not changed need not cost again. The memory is a
file of one machine's user in the folder for temporary files. It holds jobs and mistakes as JSON, by the digest of the bytes and
of the code that read them, so it is never out of date. Without it, or with one that cannot be read, files are read as ever.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from nightshift.fields.mistakes import FieldPath
from nightshift.spec import profile_names
from nightshift.spec.errors import SpecError, SpecErrors
from nightshift.spec.model import JobSpec
from nightshift.spec.stream import StreamSpec

BYTES_MAX: Final = 64 << 20
"""Of the file. What does not fit is read again each time."""
_ROOMS: Final = ("fields", "profiles", "spec", "tasks")
_PACKAGES: Final = ("jinja2", "pydantic", "PyYAML", "sqlglot")
_NOTES: Final = "notes"
_DAYS_KEPT: Final = 7
"""Of the memory of a folder that is not read any more."""


@dataclass(frozen=True)
class Said:
    """What a good file says. lines: where it says what it must have for itself, from 1."""

    spec: JobSpec | StreamSpec
    lines: Mapping[FieldPath, int]


@dataclass
class Memory:
    """file: where it is kept; None for no memory."""

    file: Path | None = None
    _before: dict[str, Any] = field(default_factory=dict)
    _now: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path) -> Memory:
        """The memory of a folder of jobs; an empty one if there is none that can be used."""
        home = _home()
        if home is None:
            return cls()
        name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
        found = cls(home / f"{name}-{_code()}.json")
        with contextlib.suppress(OSError, ValueError, RecursionError):
            body = json.loads(found.file.read_bytes())  # type: ignore[union-attr]
            found._before = body if isinstance(body, dict) else {}
        return found

    def get(self, content: bytes, file: Path) -> Said | SpecErrors | None:
        """What a file with these bytes said. file: its name in messages: it may have been moved."""
        key = hashlib.sha256(content).hexdigest()
        found: Said | SpecErrors | None = None
        with contextlib.suppress(KeyError, TypeError, ValueError):
            entry = self._before[key]
            if "mistakes" in entry:
                found = SpecErrors(SpecError(file, *each) for each in entry["mistakes"])
            else:
                found = Said(JobSpec.model_validate(entry["job"]), {tuple(path): line for path, line in entry["lines"]})
            self._now[key] = entry
        return found

    def put(self, content: bytes, said: Said) -> None:
        # A folder of jobs has no streams.
        if self.file and isinstance(said.spec, JobSpec):
            lines = [[list(path), line] for path, line in said.lines.items()]
            self._now[hashlib.sha256(content).hexdigest()] = {"job": said.spec.model_dump(mode="json"), "lines": lines}

    @property
    def noted(self) -> dict[Path, str]:
        """What `note` was last given."""
        noted = self._before.get(_NOTES)
        return {Path(path): str(why) for path, why in noted.items()} if isinstance(noted, dict) else {}

    def note(self, unmade: Mapping[Path, str]) -> None:
        """Why good files came to nothing this time, for the next process that shows it. Replaces the last notes."""
        self._now[_NOTES] = {str(path): why for path, why in unmade.items()}
        self.save()

    def put_errors(self, content: bytes, errors: SpecErrors) -> None:
        if self.file:
            found = [[each.line, each.field, each.problem, each.remedy] for each in errors.errors]
            self._now[hashlib.sha256(content).hexdigest()] = {"mistakes": found}

    def save(self) -> None:
        """Keeps what this reading has met, if it differs. Never fails: the next reading only takes longer."""
        if _NOTES in self._before:
            self._now.setdefault(_NOTES, self._before[_NOTES])
        if self.file is None or (self._now.keys() == self._before.keys() and self._now.get(_NOTES) == self._before.get(_NOTES)):
            return
        self._before = dict(self._now)
        with contextlib.suppress(OSError, ValueError):
            body = json.dumps(self._now).encode()
            if len(body) > BYTES_MAX:
                return
            with tempfile.NamedTemporaryFile(dir=self.file.parent, delete=False) as new:
                new.write(body)
            Path(new.name).replace(self.file)
            for other in self.file.parent.iterdir():
                if other.stat().st_mtime < time.time() - _DAYS_KEPT * 86_400:
                    other.unlink(missing_ok=True)


def _home() -> Path | None:
    """A folder that only this user can write; None if there is none."""
    home = Path(tempfile.gettempdir()) / f"nightshift-{os.getuid()}"
    try:
        home.mkdir(mode=0o700, exist_ok=True)
        found = home.lstat()
    except OSError:
        return None
    private = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    return home if private else None


def _code() -> str:
    """A digest of what reads files: a release, or a developer's change, reads all of them again."""
    package = Path(__file__).parent.parent
    files = sorted(each for room in _ROOMS for each in (package / room).glob("**/*.py"))
    parts = [f"{each}:{(found := each.stat()).st_mtime_ns}:{found.st_size}" for each in files]
    parts += [profile_names.digest_of_file(), sys.version, *(version(package) for package in _PACKAGES)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
