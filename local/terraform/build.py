"""Builds OpenTofu and the stand-in for Google's provider, and reads the provider's schema, each once per machine.

They lie in nightshift's cache beside the test cluster's programs, in folders named by a digest of what they were made from.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from local.cluster.build import BuildError, Module, make, without_go
from local.environments import cache_dir
from local.terraform import schema

SOURCES: Final = Path(__file__).resolve().parent / "programs"
TOFU: Final = Module("opentofu", {"tofu": "github.com/opentofu/opentofu/cmd/tofu"}, sources=SOURCES)
PROVIDER: Final = Module("google", {"terraform-provider-google": "."}, sources=SOURCES)
PACKAGE_SHA256: Final = "c13e11596542ffb7412d5f4caa9376525fbef88d18cdedac03c9b3c392a1fc80"
"""Of the npm package's archive."""


@dataclass(frozen=True)
class Tools:
    """Local paths. provider: the folder of the provider's program."""

    tofu: Path
    provider: Path
    schema: Path


def tools() -> Tools:
    """Where the tools are once they are built."""
    return Tools(TOFU.home / "bin" / "tofu", PROVIDER.home / "bin", _schema_home() / "schema.json")


def built() -> bool:
    return all((home / ".complete").exists() for home in (TOFU.home, PROVIDER.home, _schema_home()))


def obstacle() -> str | None:
    """Why they cannot be built here, or None; also None if they are built already."""
    if built():
        return None
    if reason := without_go("OpenTofu and the stand-in for Google's provider"):
        return reason
    if not shutil.which("npm"):
        return "the Google provider's schema comes from an npm package and there is no 'npm' on the PATH"
    return None


def ensure(say: Callable[[str], None]) -> Tools:
    """Builds what is missing: 5 minutes on two cores. Raises BuildError."""
    if reason := obstacle():
        raise BuildError(f"{reason[0].upper()}{reason[1:]}. Install it.")
    make(TOFU, say)
    make(PROVIDER, say)
    _ensure_schema(say)
    return tools()


def _schema_home() -> Path:
    digest = hashlib.sha256(Path(schema.__file__).read_bytes()).hexdigest()[:16]
    return cache_dir() / "terraform" / f"schema-{digest}"


def _ensure_schema(say: Callable[[str], None]) -> None:
    home = _schema_home()
    with home.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (home / ".complete").exists():
            return
        say(f"reading the Google provider's schema from {schema.PACKAGE} {schema.PACKAGE_VERSION}")
        home.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            library = _fetch(Path(folder))
            try:
                read = schema.read(library)
            except schema.Unreadable as error:
                raise BuildError(str(error)) from error
        (home / "schema.json").write_text(json.dumps(read))
        (home / ".complete").touch()


def _fetch(folder: Path) -> Path:
    """The package's folder `lib`, unpacked. Raises BuildError."""
    name = f"{schema.PACKAGE}@{schema.PACKAGE_VERSION}"
    command = ["npm", "pack", "--silent", name]
    done = subprocess.run(command, cwd=folder, env=dict(os.environ), text=True, capture_output=True, stdin=subprocess.DEVNULL)
    archives = list(folder.glob("*.tgz"))
    if done.returncode or len(archives) != 1:
        raise BuildError(f"'{' '.join(command)}' failed with exit code {done.returncode}:\n{done.stderr[-2000:]}")
    found = hashlib.sha256(archives[0].read_bytes()).hexdigest()
    if found != PACKAGE_SHA256:
        raise BuildError(f"npm gave another {name} than the one that was read when it was pinned: its SHA-256 is {found}")
    with tarfile.open(archives[0]) as archive:
        archive.extractall(folder, filter="data")
    return folder / "package" / "lib"
