"""PostgreSQL's programs, and the command line that runs one as an unprivileged user."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
from pathlib import Path
from typing import Final

UNPRIVILEGED: Final = "nobody"
CAPABILITY: Final = "-all,+dac_override"


class Missing(Exception):
    """This machine lacks something; the message says what."""


def program(name: str) -> str:
    """The path of one of PostgreSQL's programs. Raises Missing."""
    spec = importlib.util.find_spec("pgserver")
    if spec is None or spec.origin is None:
        raise Missing("The package pgserver is not installed. It has no wheel for Python 3.13 and later: use 3.11 or 3.12.")
    return str(Path(spec.origin).parent / "pginstall" / "bin" / name)


def owner() -> tuple[int, int]:
    """User and group that PostgreSQL runs as."""
    if os.geteuid() != 0:
        return os.geteuid(), os.getegid()
    entry = pwd.getpwnam(UNPRIVILEGED)
    return entry.pw_uid, entry.pw_gid


def command(name: str, *arguments: str) -> list[str]:
    """The command line of a program that does not outlive this process. Raises Missing."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise Missing("There is no program setpriv: apt-get install util-linux (Debian, Ubuntu).")
    line = [setpriv, "--pdeathsig", "KILL"]
    if os.geteuid() == 0:
        user, group = owner()
        line += ["--reuid", str(user), "--regid", str(group), "--clear-groups", "--no-new-privs"]
        line += ["--inh-caps", CAPABILITY, "--ambient-caps", CAPABILITY, "--bounding-set", CAPABILITY]
        # PostgreSQL asks access(2) about its files, which otherwise ignores what a user other than root is capable of.
        line += ["--securebits", "+no_setuid_fixup"]
    return [*line, "--", program(name), *arguments]
