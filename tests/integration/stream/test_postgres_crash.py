"""Nothing that is acknowledged is lost: beside a hostile client of the same pool, and over crashes of a PostgreSQL that answers
commits before they are on its disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from nightshift.stream.ports import Unavailable
from tests.integration.debian import Missing
from tests.integration.emulators import PostgresServer, start_postgres
from tests.integration.pgbouncer import in_front_of, program
from tests.integration.pubsub import wait_until
from tests.integration.stream.processes import Staged, vector_text
from tests.integration.stream.tables import Place, an_answer
from tests.integration.stream.test_postgres_durable import all_changed, another_client

pytestmark = pytest.mark.integration

MESSAGES: Final = 10_000
BATCH: Final = 40
WRITES_S: Final = 1.5


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """One that writes down late what it has not promised."""
    server = start_postgres(tmp_path_factory.mktemp("postgres"))
    server.stop()
    with (server.folder / "cluster/postgresql.auto.conf").open("a") as settings:
        settings.write("wal_writer_delay = 10s\n")
    server.start()
    yield server
    server.stop()


class Hostile(threading.Thread):
    """Another client of a pool, which leaves behind in its connections whatever it may, until `over`."""

    def __init__(self, url: str, statements: list[str]) -> None:
        super().__init__(daemon=True)
        self.url = url
        self.statements = statements
        self.over = threading.Event()
        self.rounds = 0

    def run(self) -> None:
        while not self.over.is_set():
            with (
                contextlib.suppress(psycopg.Error),
                psycopg.connect(self.url, autocommit=True, prepare_threshold=None) as connection,
            ):
                for statement in self.statements:
                    with contextlib.suppress(psycopg.DatabaseError):
                        connection.execute(statement.encode())
                self.rounds += 1
            time.sleep(0.05)


def test_ten_thousand_messages_through_a_pooler_beside_a_hostile_client(staged: Staged, own_server: PostgresServer) -> None:
    try:
        program()
    except Missing as error:
        pytest.skip(str(error))
    stage = staged(server=own_server)
    texts = [f"text {n}" for n in range(MESSAGES)]
    ids = []
    for first in range(0, MESSAGES, 500):
        ids += stage.publish(*({"text": text} for text in texts[first : first + 500]))
    names = [stage.table, f"{stage.table}_dead_letters"]
    with in_front_of(own_server.url, "transaction", {"nightshift": "secret"}) as bouncer:
        url = bouncer.url("nightshift", "secret")
        with stage.subscriber(NIGHTSHIFT_SINK_URL=url) as subscriber:
            wait_until(lambda: bool(stage.rows("1")), "the first are written")
            copies = [f"CREATE TEMP TABLE {name} (LIKE public.{name} INCLUDING ALL)" for name in names]
            odd = [f"CREATE TEMP TABLE {name} (a int)" for name in ("text", "vector", "pg_class", "timestamptz")]
            hostile = Hostile(
                url,
                [
                    "SET search_path TO pg_temp",
                    *copies,
                    *odd,
                    "; ".join([*all_changed(own_server).values(), "SET synchronous_commit TO off"]),
                ],
            )
            hostile.start()
            stage.await_all_acknowledged()
            assert subscriber.terminate() == 0
        hostile.over.set()
        hostile.join()
        left, shadows = set(), []
        with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
            for _ in range(6):
                with connection.transaction():
                    left |= {connection.execute("SHOW synchronous_commit").fetchone()}
                    connection.execute("RESET ALL")
                    if connection.execute("SELECT to_regclass(%s)", [f"pg_temp.{stage.table}"]).fetchone() != (None,):
                        shadows.append(connection.execute(f"SELECT count(*) FROM pg_temp.{stage.table}".encode()).fetchone())

    assert hostile.rounds > 5
    assert ("off",) in left, "it did leave something behind"
    assert shadows
    assert set(shadows) == {(0,)}
    assert dict(stage.rows()) == {name: vector_text(text) for name, text in zip(ids, texts, strict=True)}
    assert stage.dead() == []


CRASHES: Final[dict[str, Callable[[PostgresServer], Any]]] = {
    "kill -9": PostgresServer.kill,
    "immediate": lambda server: os.kill(int((server.folder / "cluster/postmaster.pid").read_text().split()[0]), signal.SIGQUIT),
}


@pytest.mark.parametrize(
    ("off_by", "crash"),
    [
        pytest.param(off_by, crash, marks=[pytest.mark.gate] if (off_by, crash) == ("role", "kill -9") else [])
        for off_by in ("role", "database", "client")
        for crash in CRASHES
    ],
)
async def test_no_acknowledged_answer_is_lost_in_a_crash(
    own_server: PostgresServer, tmp_path: Path, crash: str, off_by: str
) -> None:
    place = Place(own_server, tmp_path)
    target = {"role": "ROLE CURRENT_USER", "database": f"DATABASE {own_server.url.rpartition('/')[2]}"}.get(off_by)
    if target:
        with psycopg.connect(own_server.url, autocommit=True) as owner:
            owner.execute(f"ALTER {target} SET synchronous_commit TO off".encode())
    acknowledged: set[str] = set()
    try:
        sink = place.sink()
        await sink.open()
        timer = threading.Timer(WRITES_S, CRASHES[crash], [own_server])
        timer.start()
        with contextlib.suppress(Unavailable):
            for n in itertools.count():
                if off_by == "client":
                    with contextlib.suppress(psycopg.Error):
                        await another_client(sink, "SET synchronous_commit TO off")
                batch = [an_answer(f"{n}-{each}") for each in range(BATCH)]
                await sink.write(batch)
                acknowledged |= {each.message.id for each in batch}
        timer.join()
        await sink.close()
    finally:
        if own_server.process is not None:
            await asyncio.to_thread(own_server.process.wait)
        await asyncio.to_thread(own_server.start)
        if target:
            with psycopg.connect(own_server.url, autocommit=True) as owner:
                owner.execute(f"ALTER {target} RESET synchronous_commit".encode())

    assert acknowledged
    assert acknowledged - place.answers().keys() == set()
