"""A real PgBouncer in front of a real PostgreSQL: strict about startup parameters, and each transaction may get another
connection of the server's. It asks callers for a password in clear, as AlloyDB and Cloud SQL ask for a token, and can insist on
TLS.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

import psycopg

from local.ports import new_port
from tests.integration.debian import unpacked
from tests.integration.emulators import HOST

NAME: Final = "pgbouncer"
FILE: Final = f"usr/sbin/{NAME}"
LIBRARIES: Final = ("libc-ares2", "libevent-2.1-7")
UNPRIVILEGED: Final = "nobody"
"""It does not run as root."""
PATIENCE_S: Final = 20.0


def program() -> tuple[Path, dict[str, str]]:
    """The one on the PATH, or Debian's package; and the environment that it needs. Raises debian.Missing."""
    if found := shutil.which(NAME):
        return Path(found), {}
    home = unpacked(FILE, NAME, *LIBRARIES)
    return home / FILE, {"LD_LIBRARY_PATH": str(next((home / "usr/lib").glob("*-linux-gnu")))}


@dataclass
class PgBouncer:
    folder: Path
    port: int
    database: str
    process: subprocess.Popen[bytes]

    def url(self, user: str, password: str | None = None) -> str:
        login = quote(user, safe="") + (f":{quote(password, safe='')}" if password is not None else "")
        return f"postgresql://{login}@{HOST}:{self.port}/{self.database}"

    def let_in(self, **passwords: str) -> None:
        """Only these users, from now on. They are all the same user of the server."""
        _write_users(self.folder, passwords)
        self.process.send_signal(signal.SIGHUP)
        name, password = next(iter(passwords.items()))
        _await(self.url(name, password), self.process, self.folder / "log")


def _write_users(folder: Path, passwords: dict[str, str]) -> None:
    lines = "".join(f'"{name}" "{password}"\n' for name, password in passwords.items())
    file = folder / "users.txt"
    changed = int(file.stat().st_mtime) + 1 if file.exists() else time.time()
    file.write_text(lines)
    # It reads the file again only if it is at least a second younger.
    os.utime(file, (changed, changed))


@contextmanager
def in_front_of(server_url: str, mode: str, passwords: dict[str, str], *, tls: bool = False) -> Iterator[PgBouncer]:
    """mode: session or transaction. passwords: of those that are let in. Raises debian.Missing."""
    path, environment = program()
    server = urlsplit(server_url)
    database, port = server.path.strip("/"), new_port()
    # Not pytest's folder, which belongs to its user alone.
    folder = Path(tempfile.mkdtemp(prefix="pgbouncer-"))
    folder.chmod(0o755)
    settings = {
        "listen_addr": HOST,
        "listen_port": port,
        "unix_socket_dir": "",
        "auth_type": "plain",
        "auth_file": folder / "users.txt",
        "pool_mode": mode,
        # Few to share; in session mode a client keeps one for itself.
        "default_pool_size": 3 if mode == "transaction" else 10,
        "server_round_robin": 1,
    }
    if tls:
        _certificate(folder)
        settings |= {
            "client_tls_sslmode": "require",
            "client_tls_key_file": folder / "key.pem",
            "client_tls_cert_file": folder / "cert.pem",
        }
    target = f"host={server.hostname} port={server.port} dbname={database} user={server.username} password={server.password}"
    lines = "\n".join(f"{name} = {value}" for name, value in settings.items())
    (folder / "pgbouncer.ini").write_text(f"[databases]\n{database} = {target}\n[pgbouncer]\n{lines}\n")
    _write_users(folder, passwords)
    command = [str(path), *(("-u", UNPRIVILEGED) if os.geteuid() == 0 else ()), str(folder / "pgbouncer.ini")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        found = PgBouncer(folder, port, database, process)
        name, password = next(iter(passwords.items()))
        _await(found.url(name, password), process, folder / "log")
        yield found
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
        shutil.rmtree(folder)


def _await(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            psycopg.connect(url, connect_timeout=2).close()
            return
        except psycopg.OperationalError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"PgBouncer does not answer: {error}\n{log.read_text()}") from error
        time.sleep(0.05)


def _certificate(folder: Path) -> None:
    """Signed by itself: a client that only wants encryption takes it."""
    options = ["-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "1"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(["openssl", "req", *options, *files], check=True, capture_output=True)
    (folder / "key.pem").chmod(0o644)
