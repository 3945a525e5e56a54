"""TCP ports of this machine for servers that begin a while after their port was chosen."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import IO, Final

HOST: Final = "127.0.0.1"
LOWEST: Final = 20_000

_claims: list[IO[str]] = []
"""A lock on each port that this process has chosen, held for as long as the process lives."""


def new_port(taken: Collection[int] = ()) -> int:
    """A port that nobody listens on and no other process of this project has chosen.

    It is below those that the kernel gives to outgoing connections, so it stays free until its server begins, and while that
    is down. taken: not these.
    """
    highest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]) - 1
    candidates = [port for port in range(LOWEST, max(highest, LOWEST + 1)) if port not in taken]
    random.shuffle(candidates)
    for port in candidates:
        if is_free(port) and _claimed(port):
            return port
    raise OSError(f"no free port between {LOWEST} and {highest}")


def is_free(port: int) -> bool:
    """Whether nobody listens there. A port that only waits for late packets of its former user is free, as for servers."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _claimed(port: int) -> bool:
    """Whether this process has it now, and did not have it before."""
    folder = Path(tempfile.gettempdir()) / f"nightshift-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    claim = open(folder / str(port), "w")  # noqa: SIM115 - held as long as the process lives
    try:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        claim.close()
        return False
    _claims.append(claim)
    return True
