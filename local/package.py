"""nightshift as a package: a wheel of this clone's source, and a folder in which it is installed. Standard library only.

The local stack gives that folder to Airflow and to the drivers, and gives Airflow no plugins folder, as Cloud Composer does. So
every demo and every test of the stack proves that the wheel holds what a deployment needs.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import runpy
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from local.environments import ROOT, SetupError, cache_dir, uv_environment, uv_program

WHAT_IT_IS_MADE_OF: Final = ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "plugins/nightshift/**/*.*")
"""Patterns below the repository's root; `tests/integration/package` compares them with what is in a wheel."""


@functools.cache
def installed() -> Path:
    """A folder for ``PYTHONPATH``, with the wheel of the source as it was when this process first asked.

    Kept in the cache, and made in a second if the source is new. Several processes may call it at once. Raises SetupError.
    """
    return _made() / "installed"


def wheel() -> Path:
    """The wheel of the source as it is now. Raises SetupError."""
    (found,) = _made().glob("*.whl")
    return found


def _made() -> Path:
    target = cache_dir() / "packages" / _digest()
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.parent / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            # In one step, so that a killed process leaves nothing that looks whole.
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=".") as folder:
                whole = Path(folder) / "whole"
                _build(whole)
                whole.rename(target)
    return target


def _digest() -> str:
    digest = hashlib.sha256()
    # A wheel names its commit, so the same files make another wheel once they are committed.
    described = runpy.run_path(str(ROOT / "plugins/nightshift/cli/version.py"))["described"]
    digest.update(f"{described(ROOT / 'plugins/nightshift')}\0".encode())
    for pattern in WHAT_IT_IS_MADE_OF:
        # Python may write its own files beside the source at any time; they are in no wheel.
        for file in sorted(file for file in ROOT.glob(pattern) if file.parent.name != "__pycache__"):
            content = file.read_bytes()
            digest.update(f"{file.relative_to(ROOT)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def _build(target: Path) -> None:
    """Builds the wheel into `target`, and installs it into a folder there."""
    uv = uv_program()
    build = (uv, "build", "--quiet", "--wheel", "--python", sys.executable, "--out-dir", str(target), str(ROOT))
    # What builds it is in uv's cache since the driver's environment was made; to ask the index again would cost time, and fail
    # without a network.
    if _uv(*build, "--offline") is not None and (said := _uv(*build)) is not None:
        raise SetupError(f"the wheel of {ROOT} cannot be built:\n{said}")
    (target / ".gitignore").unlink(missing_ok=True)
    (built,) = target.glob("*.whl")
    install = (uv, "pip", "install", "--quiet", "--offline", "--no-deps", "--python", sys.executable)
    if (said := _uv(*install, "--target", str(target / "installed"), str(built))) is not None:
        shutil.rmtree(target)
        raise SetupError(f"{built} cannot be installed:\n{said}")


def _uv(*command: str) -> str | None:
    """None if it succeeds, otherwise what it printed."""
    done = subprocess.run(command, env=uv_environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return None if done.returncode == 0 else done.stderr
