"""What the pages read: the deployment's bucket, with the credentials of its Google connection.

What was read of a run is kept, so that the next look reads only what is new; of the runs that were looked at last.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from nightshift.plugin.pages.errors import NoAnswer
from nightshift.settings import Settings, SettingsError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

K = TypeVar("K")
V = TypeVar("V")

KEPT_RUNS: Final = 32
"""Runs that one API server remembers; each takes up to a few megabytes."""


def settings() -> Settings:
    """Raises NoAnswer if the deployment has none."""
    try:
        return Settings.from_environment()
    except SettingsError as error:
        raise NoAnswer(f"The API server does not know the bucket of the runs: {error}") from error


def bucket() -> ObjectStore:
    """Raises NoAnswer, and StoreUnavailable if a repeat may help."""
    settings()
    return _opened()


@cache
def _opened() -> ObjectStore:
    from nightshift.hooks.credentials import NoCredentials, open_bucket

    try:
        return open_bucket()
    except NoCredentials as error:
        raise NoAnswer(str(error)) from error


class Kept(Generic[K, V]):
    """The newest things that were made, by their keys. Threads may share it, and each thing is made once."""

    def __init__(self, make: Callable[[K], V], most: int = KEPT_RUNS) -> None:
        self._make = make
        self._most = most
        self._lock = threading.Lock()
        self._found: OrderedDict[K, V] = OrderedDict()

    def __getitem__(self, key: K) -> V:
        with self._lock:
            if key not in self._found:
                self._found[key] = self._make(key)
            self._found.move_to_end(key)
            while len(self._found) > self._most:
                self._found.popitem(last=False)
            return self._found[key]
