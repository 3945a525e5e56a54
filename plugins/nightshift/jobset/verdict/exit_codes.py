"""Exit codes of containers in words. Pure."""

from __future__ import annotations

import signal
from collections.abc import Collection
from typing import Final

_SIGNALS: Final = 128
"""The exit code of a container that a signal ended is this plus the signal's number."""

_WORDS: Final = {
    126: "its command cannot be executed",
    127: "its command was not found",
    _SIGNALS: "it could not be started",
}


def signal_name(code: int) -> str | None:
    """SIGKILL for 137, SIGSEGV for 139, SIGTERM for 143; None if no signal has that number."""
    try:
        return signal.Signals(code - _SIGNALS).name
    except ValueError:
        return None


def in_words(code: int, reason: str = "", *, resume: Collection[int] = (), permanent: Collection[int] = ()) -> str:
    """The code and what it means: "137 (SIGKILL, out of memory)", "1".

    reason: the container's, as Kubernetes names it. resume, permanent: the codes that mean that another attempt can continue,
    or that it is not retryable.
    """
    if code in permanent:
        meaning = "not retryable"
    elif code in resume:
        meaning = "work is left"
    else:
        meaning = signal_name(code) or _WORDS.get(code, "")
    out_of_memory = "out of memory" if reason == "OOMKilled" else ""
    meanings = ", ".join(filter(None, (meaning, out_of_memory)))
    return f"{code} ({meanings})" if meanings else str(code)
