"""Job files for the tests of the spec: the demo's with some values changed, and what is wrong with one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from nightshift.spec import SpecErrors, load

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "dags/jobs/package-embeddings.yaml"


def job(**changes: Any) -> dict[str, Any]:
    """The demo's job with some values changed."""
    return changed(DEMO, **changes)


def changed(file: Path, **changes: Any) -> dict[str, Any]:
    """A YAML file with some values changed; ``destination__column`` is a key below another."""
    value: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    for path, change in changes.items():
        *parents, key = path.split("__")
        part = value
        for parent in parents:
            part = part[parent]
        part[key] = change
    return value


def write(folder: Path, value: Any, name: str = "job.yaml") -> Path:
    path = folder / name
    path.write_text(value if isinstance(value, str) else yaml.safe_dump(value), encoding="utf-8")
    return path


def mistakes(folder: Path, value: Any) -> list[str]:
    """``FIELD: problem. remedy.`` of each mistake."""
    path = write(folder, value)
    try:
        load(path)
    except SpecErrors as errors:
        return [str(error).split(" ", 1)[1] for error in errors.errors]
    return []
