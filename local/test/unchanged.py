"""What of `make test` need not run again, because it passed on this machine with the same inputs.

A tier is here only if a program can list everything that decides its outcome. This holds for the simulation: it uses no
process, clock or network, and `tests.simulation.inputs` follows its imports. Groups whose tests are of stand-ins alone
(`local/`) are here, too: what they import, with the folders that they test, decides, since those are the programs they start.
"""

from __future__ import annotations

import ast
import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from local.environments import ENVIRONMENTS, ROOT, cache_dir, environment_dir, python_of
from local.test.groups import TOPS, Group

INPUTS: Final[Mapping[str, str]] = {"simulation": "tests.simulation.inputs"}
"""Tier -> the module that prints the key of its inputs on its first line, and the inputs after it."""


def key_of(tier: str) -> str | None:
    """The key of a tier's inputs, including the test environment's pins; None for a tier that always runs.

    Also None if its inputs cannot be listed, because one of them cannot be imported: then the tier runs, and says so.
    """
    if tier not in INPUTS:
        return None
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'plugins'}:{ROOT}"}
    command = [str(python_of("test")), "-m", INPUTS[tier]]
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)
    if done.returncode:
        return None
    return f"{done.stdout.splitlines()[0][:32]}-{environment_dir('test').name}"


def key_of_group(group: Group) -> str | None:
    """The same of a group that tests nothing but folders of ``local/``, and beside them; None for one that always runs."""
    if not all(path.startswith("local/") for path in (*group.covers, *group.places)):
        return None
    digest = hashlib.sha256(sys.version.encode())
    for file in sorted(_inputs(group)):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(ROOT)} {len(content)}\n".encode() + content)
    for name in sorted(group.needs & set(ENVIRONMENTS)):
        digest.update(environment_dir(name).name.encode())
    return digest.hexdigest()[:32]


def _inputs(group: Group) -> set[Path]:
    """All files of the folders that it tests and in which its tests are, and the modules that these import, and so on."""
    found = {ROOT / "pyproject.toml", *(ROOT / top / "conftest.py" for top in TOPS)}
    for place in map(ROOT.joinpath, (*group.covers, *group.places)):
        found |= {file for file in place.rglob("*") if file.is_file() and "__pycache__" not in file.parts}
    waiting = {file for file in found if file.suffix == ".py" and file.exists()}
    while waiting:
        imported = _imported(waiting.pop()) - found
        found |= imported
        waiting |= imported
    return {file for file in found if file.exists()}


def _imported(file: Path) -> set[Path]:
    """The modules of this repository that a file imports, and their packages."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    found = set()
    for name in names:
        parts = name.split(".")
        for top in (ROOT, ROOT / "plugins"):
            paths = [top.joinpath(*parts[:length]) for length in range(1, len(parts) + 1)]
            found |= {path.with_suffix(".py") for path in paths} | {path / "__init__.py" for path in paths}
    return {path for path in found if path.exists()}


def has_passed(what: str, key: str) -> bool:
    """what: a tier or a group."""
    return _mark(what, key).exists()


def note_passed(what: str, key: str) -> None:
    mark = _mark(what, key)
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()


def _mark(what: str, key: str) -> Path:
    return cache_dir() / "passed" / f"{what.replace('/', '-')}-{key}"
