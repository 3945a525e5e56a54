"""What decides the outcome of the simulation: every file that it imports, the pins, and the version of Python.

PYTHONPATH=plugins python -m tests.simulation.inputs      the key, then the files
"""

from __future__ import annotations

import hashlib
import importlib
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
OURS: Final = tuple(ROOT / name for name in ("plugins", "tests"))


def inputs() -> list[Path]:
    """The files, sorted. Imports are followed by importing: a fresh process loads every module of the simulation.

    Beside what is loaded then, the files of this folder that are not modules, pytest's settings and every file of pins count.
    """
    command = [sys.executable, "-m", "tests.simulation.inputs", "--loaded"]
    paths = {"PYTHONPATH": f"{ROOT / 'plugins'}:{ROOT}"}
    listed = subprocess.run(command, cwd=ROOT, env=paths, check=True, capture_output=True, text=True).stdout
    found = {ROOT / line for line in listed.splitlines()}
    found |= {file for file in Path(__file__).parent.iterdir() if file.is_file()}
    found |= {ROOT / "pyproject.toml", ROOT / "tests" / "conftest.py", *(ROOT / "requirements").glob("*.txt")}
    return sorted(found)


def key(files: Iterable[Path]) -> str:
    """A digest of the files' names and contents, and of the version of Python."""
    digest = hashlib.sha256(sys.version.encode())
    for file in files:
        content = file.read_bytes()
        digest.update(f"{file.relative_to(ROOT)} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _loaded() -> list[Path]:
    """Our files that are imported by the modules of this folder, and by a schedule of each kind."""
    folder = Path(__file__).parent
    for module in sorted(file.stem for file in folder.glob("*.py") if file.stem != "__init__"):
        importlib.import_module(f"{__package__}.{module}")
    # What is imported only when it is needed.
    for world in ("world", "publishing"):
        importlib.import_module(f"{__package__}.{world}").simulate(0)
    files = {Path(file) for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))}
    return sorted(file for file in files if any(file.is_relative_to(place) for place in OURS))


if __name__ == "__main__":
    if sys.argv[1:] == ["--loaded"]:
        print(*(file.relative_to(ROOT) for file in _loaded()), sep="\n")
    else:
        print(key(inputs()), *(file.relative_to(ROOT) for file in inputs()), sep="\n")
