"""File descriptors: as many as the system allows, and no more requests than they suffice for."""

from __future__ import annotations

import errno
import logging
import os
import resource
import sys
from typing import Final

log = logging.getLogger("nightshift.driver")

RESERVED: Final = 64
"""Descriptors that are not for requests to the engine: the store's connections, metrics, the log."""
_SPENT: Final = (errno.EMFILE, errno.ENFILE)
_SPENT_WORDS: Final = tuple(os.strerror(number) for number in _SPENT)


def raise_limit() -> int:
    """Raises the process's soft limit to the hard one; returns how many descriptors it may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def requests_most(limit: int, wanted: int, *, fetching: bool) -> int:
    """How many requests may be in flight. limit: descriptors. wanted: requests that the job could use; fewer are logged.

    fetching: whether a request may also need a connection to the store, which stays open for a while afterwards.
    """
    most = max(1, (limit - RESERVED) // (2 if fetching else 1))
    if most < wanted:
        log.warning(
            "fewer file descriptors than the job needs: the engine may be partly idle; raise the hard limit (ulimit -n)",
            extra={"fields": {"descriptors": limit, "requests_at_most": most, "requests_wanted": wanted}},
        )
    return most


def spent(error: OSError) -> bool:
    """Whether the process or the system had no descriptor left."""
    # Of several addresses, one error is made of several, without a number.
    return error.errno in _SPENT or any(words in str(error) for words in _SPENT_WORDS)
