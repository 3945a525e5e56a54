"""What a name on the command line means: a file, or something that bytes only pass through (a pipe, a device, a descriptor)."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

DASH: Final = "-"
STDIN: Final = 0
STDOUT: Final = 1
_LINKS_MOST: Final = 40
"""As Linux has it."""
_KINDS: Final[tuple[tuple[Callable[[int], bool], str], ...]] = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISBLK, "a disk"),
    (stat.S_ISSOCK, "a socket"),
)


def descriptor_of(name: str, dash: int) -> int | None:
    """The open descriptor of this process that a name means: ``-``, /dev/stdin, /dev/fd/63, or a link to one; else None.

    Such a name must not be opened: that would begin at the start of a file which others have read or written in part.
    dash: what ``-`` means.
    """
    if name == DASH:
        return dash
    open_ones = {"/dev/fd", f"/proc/{os.getpid()}/fd"}
    path = Path(name)
    for _ in range(_LINKS_MOST):
        if path.name.isdigit() and os.path.realpath(path.parent) in open_ones:
            return int(path.name)
        try:
            path = path.parent / path.readlink()
        except OSError:
            break
    return None


def refusal(mode: int) -> str | None:
    """Why what has this mode can be neither read nor written as a file or a stream; None if it can."""
    return next((f"this is {kind}" for of, kind in _KINDS if of(mode)), None)


def shown(name: str, dash: str) -> str:
    """A name for people. dash: what ``-`` means."""
    return dash if name == DASH else name
