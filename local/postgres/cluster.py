"""The database files: made once, and the command line that serves them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from local.postgres import access
from local.postgres.programs import command, owner

SUPERUSER: Final = "postgres"
READY: Final = "ready"
"""A file beside the cluster, once it is complete."""
_SETTINGS: Final = {
    "listen_addresses": access.HOST,
    "unix_socket_directories": "",
    "max_connections": "50",
    "shared_buffers": "64MB",
    "password_encryption": "scram-sha-256",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


class Failed(Exception):
    """One of PostgreSQL's programs failed; the message has its output."""


def path(folder: Path) -> Path:
    return folder / "cluster"


def ensure(folder: Path) -> None:
    """Makes the cluster unless it is complete. Raises Failed, Missing."""
    if (folder / READY).exists():
        return
    cluster = path(folder)
    shutil.rmtree(cluster, ignore_errors=True)
    cluster.mkdir(mode=0o700)
    os.chown(cluster, *owner())
    _run(command("initdb", "-D", str(cluster), "-U", SUPERUSER, "--encoding=UTF8", "--locale=C.UTF-8"))
    lines = f"host all {access.USER} {access.HOST}/32 scram-sha-256\n"
    (cluster / "pg_hba.conf").write_text(f"# See local/postgres/__init__.py: nobody else may connect.\n{lines}")
    statements = (
        # In the template: every new database gets it from there.
        "CREATE EXTENSION vector",
        f"CREATE ROLE {access.USER} LOGIN CREATEDB PASSWORD '{access.password(folder)}'",
        f"CREATE DATABASE {access.DATABASE} OWNER {access.USER}",
    )
    # -j: a statement ends with a semicolon and an empty line.
    _run(
        command("postgres", "--single", "-j", "-D", str(cluster), "template1"),
        "".join(f"{statement};\n\n" for statement in statements),
    )
    (folder / READY).touch()


def serving(folder: Path, port: int) -> list[str]:
    """The command line of the server. Raises Missing."""
    settings = [word for name, value in {**_SETTINGS, "port": str(port)}.items() for word in ("-c", f"{name}={value}")]
    return command("postgres", "-D", str(path(folder)), *settings)


def _run(line: list[str], stdin: str = "") -> None:
    done = subprocess.run(line, input=stdin, capture_output=True, text=True)
    # In its single-user mode postgres goes on after a statement that failed, and ends with success.
    if done.returncode != 0 or "ERROR:" in done.stderr:
        raise Failed(f"{' '.join(line)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
