"""Programs of Debian's packages, fetched once and not installed."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

from local.environments import cache_dir


class Missing(Exception):
    """A program is not there and cannot be fetched here; the message says why."""


def unpacked(file: str, name: str, *libraries: str) -> Path:
    """The folder of a package that has this file, and of the packages of its libraries. Raises Missing."""
    home = cache_dir() / name
    home.mkdir(parents=True, exist_ok=True)
    with open(home.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / file).exists():
            # The file that is looked for comes last.
            _fetch(home, *libraries, name)
    return home


def _fetch(home: Path, *names: str) -> None:
    if not shutil.which("apt-get"):
        raise Missing(f"there is no {names[-1]}, and this is not Debian or Ubuntu, whose package could be fetched")
    for name in names:
        done = subprocess.run(["apt-get", "download", "-qq", name], cwd=home, text=True, capture_output=True)
        if done.returncode != 0:
            raise Missing(f"'apt-get download {name}' failed: {done.stderr[-500:]}")
        for package in home.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", package, home], check=True)
            package.unlink()
