"""What ``nightshift --version`` says: the release, and the last commit that changed its code, which need not be the newest.

A wheel has the commit in its metadata, where its build records it (hatch_build.py, which loads this file alone). In a checkout
git says it. Standard library only.
"""

from __future__ import annotations

import argparse
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any, Final

RECORD: Final = "commit"
"""The file in the wheel's ``.dist-info/extra_metadata``."""
UNKNOWN: Final = "unknown"
GIT_TIMEOUT_S: Final = 30.0


class Version(argparse.Action):
    """Prints the version and exits, as argparse's own action; the commit is looked up only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from nightshift import __version__

        print(f"nightshift {__version__} (code of commit {commit(Path(__file__).resolve().parents[1])})")
        parser.exit()


def commit(package: Path) -> str:
    """The commit of the code in `package`, as `described` has it; UNKNOWN if neither its metadata nor git know it."""
    return _recorded(package) or described(package) or UNKNOWN


def _recorded(package: Path) -> str | None:
    """What the wheel's metadata says, if this package came with it: another one may be installed beside a checkout."""
    from nightshift import DISTRIBUTION

    for found in metadata.distributions(name=DISTRIBUTION):
        if Path(str(found.locate_file(package.name))).resolve() == package:
            return (found.read_text(f"extra_metadata/{RECORD}") or "").strip() or None
    return None


def described(package: Path) -> str | None:
    """The last commit that changed the package, and whether files of it have changed since; None outside a checkout."""
    try:
        last = _git(package, "log", "-1", "--format=%H", "--", ".")
        changed = last and _git(package, "status", "--porcelain", "--", ".")
    except (OSError, subprocess.SubprocessError):
        return None
    return (f"{last}, with changes" if changed else last) or None


def _git(package: Path, *command: str) -> str:
    done = subprocess.run(
        ["git", *command],
        cwd=package,
        capture_output=True,
        text=True,
        check=True,
        timeout=GIT_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout.strip()
