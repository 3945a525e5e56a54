"""An environment with the wheel and what its metadata asks for without an extra: what ``pip install`` of its name makes."""

from __future__ import annotations

import re
import sys
import venv
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from local import package


def make(folder: Path) -> Path:
    """The Python of a new environment in the folder. Its packages are links to those of this process: it takes no index."""
    venv.EnvBuilder(symlinks=True).create(folder)
    (site,) = folder.glob("lib/python*/site-packages")
    for part in package.installed().iterdir():
        (site / part.name).symlink_to(part)
    (wheel,) = metadata.distributions(path=[str(package.installed())])
    for name in _closure(wheel.requires or []):
        for top in _tops(metadata.distribution(name)):
            if not (site / top.name).exists():
                (site / top.name).symlink_to(top)
    return folder / "bin" / Path(sys.executable).name


def _closure(requires: list[str]) -> set[str]:
    """Names of the distributions that these requirements need, and those that they need in turn."""
    found: set[str] = set()
    waiting = list(requires)
    while waiting:
        needed = Requirement(waiting.pop())
        name = re.sub(r"[-_.]+", "-", needed.name).lower()
        if name not in found and (needed.marker is None or needed.marker.evaluate({"extra": ""})):
            found.add(name)
            waiting += metadata.requires(name) or []
    return found


def _tops(distribution: metadata.Distribution) -> set[Path]:
    """The folders and files of a distribution directly below its site-packages."""
    files = distribution.files or []
    return {Path(str(distribution.locate_file(file.parts[0]))) for file in files if file.parts[0] != ".."}
