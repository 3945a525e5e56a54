"""PostgreSQL with pgvector: that it starts, for whom, and what survives kill -9."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.integration.emulators import PostgresServer, start_postgres

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.version_info >= (3, 13), reason="the package pgserver has no wheel for this Python"),
]

PATIENCE_S = 180.0


@pytest.fixture(scope="module")
def _own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    server = start_postgres(tmp_path_factory.mktemp("own"))
    yield server
    server.kill()


@pytest.fixture
def own(_own: PostgresServer) -> PostgresServer:
    """A server that the tests of this file may kill; it runs when a test begins. Making one takes seconds."""
    # By its process: a busy machine may need seconds to say that it is healthy.
    if _own.process is None or _own.process.poll() is not None:
        _own.start()
    return _own


def _ask(url: str, statement: str) -> list[Any]:
    with psycopg.connect(url) as connection:
        return connection.execute(statement).fetchall()


def _processes(server: PostgresServer) -> list[int]:
    """PostgreSQL's own processes: those that work in its folder."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "cwd").readlink() == server.folder.resolve() / "cluster":
                found.append(int(entry.name))
    return found


def _status(server: PostgresServer) -> dict[int, dict[str, str]]:
    """Of each of its processes what the kernel says, by name. Workers come and go."""
    found = {}
    for pid in _processes(server):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            found[pid] = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return found


def _wait_for_none(server: PostgresServer) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while _processes(server):
        assert time.monotonic() < deadline, f"processes {_processes(server)} stay"
        time.sleep(0.05)


@pytest.mark.gate
def test_vectors_are_searched_through_an_index(postgres_server: PostgresServer) -> None:
    table = f"t{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres_server.url) as connection:
        connection.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v vector(3))")
        connection.execute(f"INSERT INTO {table} SELECT n, ARRAY[n, 0, 1]::vector FROM generate_series(1, 1000) AS n")
        connection.execute(f"CREATE INDEX ON {table} USING hnsw (v vector_l2_ops)")
        connection.execute("SET enable_seqscan = off")
        nearest = f"SELECT id FROM {table} ORDER BY v <-> '[500.1, 0, 1]' LIMIT 3"
        plan = str(connection.execute(f"EXPLAIN {nearest}").fetchall())
        found = [number for (number,) in connection.execute(nearest)]

    assert "Index Scan" in plan
    assert found == [500, 501, 499]


def test_a_new_database_has_vectors_too(postgres_server: PostgresServer) -> None:
    name = f"d{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")

    assert _ask(f"{postgres_server.url.rpartition('/')[0]}/{name}", "SELECT '[1,2]'::vector <-> '[1,4]'") == [(2.0,)]


@pytest.mark.gate
def test_only_its_user_with_the_password_may_connect(postgres_server: PostgresServer) -> None:
    word = (postgres_server.folder / "password").read_text()
    for url, said in (
        (postgres_server.url.replace(word, "wrong"), "password authentication failed"),
        (postgres_server.url.replace("//nightshift:", "//postgres:"), "no pg_hba.conf entry"),
    ):
        with pytest.raises(psycopg.OperationalError, match=said):
            psycopg.connect(url)

    assert (postgres_server.folder / "password").stat().st_mode & 0o077 == 0
    assert _ask(postgres_server.url, "SELECT rolsuper FROM pg_roles WHERE rolname = current_user") == [(False,)]


def test_clients_cannot_read_files_of_the_machine(postgres_server: PostgresServer) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        _ask(postgres_server.url, "SELECT pg_read_file('/etc/hostname')")


def test_its_log_is_flushed_to_disk(postgres_server: PostgresServer) -> None:
    assert _ask(postgres_server.url, "SELECT current_setting('fsync'), current_setting('synchronous_commit')") == [("on", "on")]


def test_it_listens_on_loopback_only(postgres_server: PostgresServer) -> None:
    listening = [
        line.split()[1]
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        if line.split()[3] == "0A" and line.split()[1].endswith(f":{postgres_server.port:04X}")
    ]

    assert listening == [f"0100007F:{postgres_server.port:04X}"]
    assert f".s.PGSQL.{postgres_server.port}" not in Path("/proc/net/unix").read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is not what PostgreSQL may run as")
@pytest.mark.gate
def test_as_root_it_runs_as_nobody(postgres_server: PostgresServer) -> None:
    nobody = str(pwd.getpwnam("nobody").pw_uid)
    status = _status(postgres_server)

    assert status
    for facts in status.values():
        assert facts["Uid"].split() == [nobody] * 4
        assert int(facts["CapEff"], 16) == 1 << 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_as_another_user_it_runs_as_that_user() -> None:
    """It keeps the capability to read what belongs to root: the environments may lie in a folder of root's."""
    user = pwd.getpwnam("daemon")
    directory = Path(tempfile.mkdtemp(prefix="nightshift-postgres-"))
    os.chown(directory, user.pw_uid, user.pw_gid)
    capability = "-all,+dac_override"
    before = ["setpriv", "--reuid", str(user.pw_uid), "--regid", str(user.pw_gid), "--clear-groups"]
    before += ["--inh-caps", capability, "--ambient-caps", capability, "--securebits", "+no_setuid_fixup"]
    server = start_postgres(directory, *before, "--")
    try:
        assert _ask(server.url, "SELECT '[1,2]'::vector <-> '[1,4]'") == [(2.0,)]
        assert {facts["Uid"].split()[1] for facts in _status(server).values()} == {str(user.pw_uid)}
        assert server.stop() == 0
    finally:
        server.kill()
        shutil.rmtree(directory)


@pytest.mark.gate
def test_commits_survive_kill_9_of_the_whole_process_tree(own: PostgresServer) -> None:
    with psycopg.connect(own.url) as connection:
        connection.execute("CREATE TABLE kept (n int)")
        connection.execute("INSERT INTO kept SELECT generate_series(1, 1000)")
        connection.commit()
        connection.execute("INSERT INTO kept VALUES (0)")
        assert own.process is not None
        for pid in (own.process.pid, *_processes(own)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        own.process.wait()
        with contextlib.suppress(psycopg.Error):
            connection.rollback()
    own.start()

    assert _ask(own.url, "SELECT count(*), min(n) FROM kept") == [(1000, 1)]


def test_the_server_dies_with_the_process_that_started_it_and_comes_back(own: PostgresServer) -> None:
    with psycopg.connect(own.url) as connection:
        connection.execute("CREATE TABLE alone AS SELECT 1 AS n")
    own.kill()
    _wait_for_none(own)
    assert (own.folder / "cluster" / "postmaster.pid").exists()
    own.start()

    assert _ask(own.url, "SELECT n FROM alone") == [(1,)]


def test_leftovers_of_an_earlier_life_are_ended(own: PostgresServer) -> None:
    """A server whose supervisor died while it could not be killed, and a process number that a stranger has now."""
    assert own.process is not None
    orphans = {pid for pid, facts in _status(own).items() if facts["PPid"] != str(own.process.pid)}
    for pid in orphans:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    own.kill()
    assert orphans & set(_processes(own))
    lines = (own.folder / "cluster" / "postmaster.pid").read_text().splitlines()
    (own.folder / "cluster" / "postmaster.pid").write_text("\n".join([str(os.getpid()), *lines[1:], ""]))
    own.start()

    assert not orphans & set(_processes(own))
    assert _ask(own.url, "SELECT 1") == [(1,)]


def test_a_first_start_that_was_cut_off_is_made_again(own: PostgresServer) -> None:
    own.stop()
    (own.folder / "ready").unlink()
    (own.folder / "cluster" / "PG_VERSION").unlink()
    own.start()

    assert _ask(own.url, "SELECT 1") == [(1,)]


@pytest.mark.gate
def test_sigterm_ends_it_with_success_while_a_client_is_connected(own: PostgresServer) -> None:
    with contextlib.suppress(psycopg.Error), psycopg.connect(own.url) as connection:
        connection.execute("SELECT 1")
        assert own.stop() == 0
    assert _processes(own) == []


def test_a_second_one_on_the_same_folder_or_port_is_refused(own: PostgresServer, tmp_path: Path) -> None:
    port = own.command.index("--port") + 1
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        same_folder = [*own.command[:port], str(free.getsockname()[1]), *own.command[port + 1 :]]
    same_port = [*own.command[:-1], str(tmp_path / "another")]
    for line, said in ((same_folder, "in use by another"), (same_port, "Address already in use")):
        second = subprocess.run(line, capture_output=True, text=True, timeout=600, cwd=Path(__file__).parents[3])
        assert second.returncode == 1
        assert said in second.stderr
    assert _ask(own.url, "SELECT 1") == [(1,)]
