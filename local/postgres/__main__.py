"""``python -m local.postgres``: makes the database once, serves it in the foreground, and stops it on SIGTERM."""

from __future__ import annotations

import argparse
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

from local.postgres import access, cluster, leftovers
from local.postgres.programs import Missing


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m local.postgres", description="PostgreSQL with pgvector over one folder.")
    parser.add_argument("--port", type=int, default=5433, help=f"port at {access.HOST} (default: %(default)s)")
    parser.add_argument("--data-dir", type=Path, required=True, help="folder for all state; made if missing")
    options = parser.parse_args(arguments)
    folder = options.data_dir.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{folder} is in use by another {parser.prog}.", file=sys.stderr)
            return 1
        try:
            killed = leftovers.clear(cluster.path(folder))
            if killed:
                print(f"ended {killed} processes of an earlier life", file=sys.stderr, flush=True)
            cluster.ensure(folder)
            return _serve(cluster.serving(folder, options.port))
        except (Missing, cluster.Failed, TimeoutError) as error:
            print(error, file=sys.stderr)
            return 1


def _serve(command: list[str]) -> int:
    # Blocked before the server starts, and waited for below: a signal that comes in between is not lost.
    wanted = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, wanted),
        # Ctrl-C in a terminal reaches this process alone, which then asks the server.
        start_new_session=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("PG")},
    )
    stopping = False
    while server.poll() is None:
        if signal.sigwait(wanted) != signal.SIGCHLD:
            # PostgreSQL's fast shutdown: SIGTERM would wait for clients to leave.
            server.send_signal(signal.SIGINT)
            stopping = True
    if stopping and server.returncode == 0:
        return 0
    print(f"PostgreSQL ended with {server.returncode}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
