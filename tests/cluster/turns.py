"""Tests run beside each other on one cluster, of other processes too, but what breaks the cluster runs alone."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from local.cluster.cluster import STATE_VARIABLE


@contextmanager
def a_turn(*, alone: bool) -> Iterator[None]:
    """Begins when nobody is alone with the cluster; alone: when nobody is at it. Not to be nested.

    Without effect where the cluster is this process's own.
    """
    if not (state := os.environ.get(STATE_VARIABLE)):
        yield
        return
    turn = Path(state).with_name(f"{Path(state).name}.tests.lock")
    # Those who want to be alone hold the door, so that the others, who go through it, cannot keep them out for ever.
    door = turn.with_suffix(".door")
    if alone:
        with _locked(door, fcntl.LOCK_EX), _locked(turn, fcntl.LOCK_EX):
            yield
    else:
        with ExitStack() as held:
            with _locked(door, fcntl.LOCK_SH):
                held.enter_context(_locked(turn, fcntl.LOCK_SH))
            yield


@contextmanager
def _locked(file: Path, how: int) -> Iterator[None]:
    with open(file, "a") as lock:
        fcntl.flock(lock, how)
        yield
