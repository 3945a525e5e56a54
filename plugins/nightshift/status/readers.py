"""The threads that read for all looks of this process: many small requests at once, however many runs are looked at."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Final

READERS: Final = 32
"""Requests at once."""


def readers() -> ThreadPoolExecutor:
    """For single requests: what runs in it must not wait for another call in it."""
    return _of_process(os.getpid())


@lru_cache(maxsize=1)
def _of_process(_: int) -> ThreadPoolExecutor:
    """Threads do not survive a fork."""
    return ThreadPoolExecutor(READERS, "read")
