"""TCP ports for servers that start a while after their port was chosen."""

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
"""A lock on each port that this process has chosen, held as long as the process runs."""


def new_port(taken: Collection[int] = ()) -> int:
    """A port on which nothing listens and that no other process of this project has chosen.

    It is below those that the kernel uses for outgoing connections, so it stays free until its server starts, and while the
    server is down. taken: ports to avoid.
    """
    highest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]) - 1
    candidates = [port for port in range(LOWEST, max(highest, LOWEST + 1)) if port not in taken]
    random.shuffle(candidates)
    for port in candidates:
        if is_free(port) and _claimed(port):
            return port
    raise OSError(f"no free port between {LOWEST} and {highest}")


def is_free(port: int) -> bool:
    """Whether nothing listens there. A port that only waits for late packets of its former user counts as free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _claimed(port: int) -> bool:
    """Whether this process has it now and did not have it before."""
    folder = Path(tempfile.gettempdir()) / f"nightshift-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    claim = open(folder / str(port), "w")  # noqa: SIM115 - held as long as the process runs
    try:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        claim.close()
        return False
    _claims.append(claim)
    return True
