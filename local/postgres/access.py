"""The address of the database and its password. Standard library only: the stack's supervisor imports it."""

from __future__ import annotations

import os
import secrets
import socket
import struct
from pathlib import Path
from typing import Final

HOST: Final = "127.0.0.1"
USER: Final = "nightshift"
DATABASE: Final = "nightshift"
TIMEOUT_S: Final = 3.0


def password(folder: Path) -> str:
    """The password of this data folder, made by the first call."""
    file = folder / "password"
    folder.mkdir(parents=True, exist_ok=True)
    if not file.exists():
        fresh = folder / f".password.{os.getpid()}"
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as target:
            target.write(secrets.token_hex(16))
        try:
            # The first of several wins.
            os.link(fresh, file)
        except FileExistsError:
            pass
        finally:
            fresh.unlink()
    return file.read_text()


def url(folder: Path, port: int) -> str:
    """What a client connects to, with the password."""
    return f"postgresql://{USER}:{password(folder)}@{HOST}:{port}/{DATABASE}"


def problem(port: int) -> str | None:
    """Why no client can connect now, or None. Does not log in."""
    fields = b"user\0" + USER.encode() + b"\0database\0" + DATABASE.encode() + b"\0\0"
    # The first message of protocol 3.0: its length with itself, then the version.
    greeting = struct.pack("!ii", 8 + len(fields), 3 << 16) + fields
    try:
        with socket.create_connection((HOST, port), timeout=TIMEOUT_S) as connection:
            connection.sendall(greeting)
            answer = connection.recv(1)
    except OSError as error:
        return f"{HOST}:{port}: {error}"
    # R asks for the password. While the database starts or recovers, the answer is E.
    return None if answer == b"R" else f"{HOST}:{port}: not ready yet"
