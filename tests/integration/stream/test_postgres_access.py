"""Ways to a sink's database: through a real PgBouncer, and as a Google account whose token is the password."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import google.auth
import psycopg
import pytest
from google.auth.exceptions import DefaultCredentialsError, RefreshError, TransportError

from nightshift.stream.ports import Locked, SinkRefused, Unavailable
from nightshift.stream.postgres import PostgresSink
from nightshift.stream.schema import OWN
from nightshift.stream.table_checks import ensure_vectors
from tests.integration.debian import Missing
from tests.integration.emulators import PostgresServer
from tests.integration.pgbouncer import in_front_of, program
from tests.integration.pubsub import unique
from tests.integration.stream.tables import EMBEDDING, Place, a_death, a_message, an_answer

pytestmark = pytest.mark.integration

Placed = Callable[..., Place]
OWN_COLUMNS = ", ".join(f"{name} {kind}" for name, kind in OWN.items())
USER = "texts@acme.iam"
LIMITS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "default_transaction_isolation")


@pytest.fixture
def placed(postgres_server: PostgresServer, tmp_path: Path) -> Placed:
    return lambda *keys, **options: Place(postgres_server, tmp_path, *keys, **options)


@pytest.fixture
def bouncer() -> Callable[..., Any]:
    """`in_front_of`, or the test is skipped."""
    try:
        program()
    except Missing as error:
        pytest.skip(str(error))
    return in_front_of


class TestThroughPgBouncer:
    @pytest.mark.parametrize("mode", [pytest.param("transaction", marks=pytest.mark.gate), "session"])
    async def test_a_sink_works_and_leaves_nothing_behind(self, placed: Placed, bouncer: Callable[..., Any], mode: str) -> None:
        place = placed("id")
        with bouncer(place.server.url, mode, {"nightshift": "secret"}) as found:
            url = found.url("nightshift", "secret")
            sinks = [place.sink(url) for _ in range(2)]
            for sink in sinks:
                await sink.open()
            for n in range(12):
                sink = sinks[n % 2]
                await sink.write([an_answer(f"{n}", "yes", f"{n}")])
                await sink.write_dead_letters([a_death(f"dead-{n}")])
                assert await sink.known([(a_message(f"{n}"), (f"{n}",))])
            for sink in sinks:
                await sink.close()
            with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
                left = {connection.execute(f"SHOW {name}").fetchone() for name in LIMITS for _ in range(4)}
        assert len(place.answers()) == len(place.dead()) == 12
        assert left == {("0",), ("read committed",)}

    async def test_it_does_refuse_what_poolers_refuse(self, placed: Placed, bouncer: Callable[..., Any]) -> None:
        """Else the test above proves nothing."""
        place = placed()
        with bouncer(place.server.url, "transaction", {"nightshift": "secret"}) as found:
            url = found.url("nightshift", "secret")
            with pytest.raises(psycopg.OperationalError, match="unsupported startup parameter"):
                psycopg.connect(url, options="-c statement_timeout=30s")


class Account:
    """Google credentials. token: the one that counts now."""

    def __init__(self) -> None:
        self.token = "token-0"
        self.valid = False
        self.refreshed = 0
        self.error: Exception | None = None

    def refresh(self, request: object) -> None:
        if self.error:
            raise self.error
        self.refreshed += 1
        self.token, self.valid = f"token-{self.refreshed}", True


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Account:
    account = Account()
    asked: list[tuple[str, ...]] = []

    def default(scopes: tuple[str, ...]) -> tuple[Account, str]:
        asked.append(tuple(scopes))
        assert all(each.endswith(".login") for each in scopes), "a token that can do more than log in"
        return account, "acme"

    monkeypatch.setattr(google.auth, "default", default)
    return account


class TestAsAGoogleAccount:
    @pytest.mark.gate
    async def test_each_new_connection_has_a_token_that_is_valid_then(
        self, placed: Placed, bouncer: Callable[..., Any], account: Account
    ) -> None:
        place = placed()
        with bouncer(place.server.url, "transaction", {USER: "token-1"}, tls=True) as found:
            sink = place.sink(found.url(USER))
            await sink.open()
            await sink.write([an_answer("1")])
            assert account.refreshed == 1

            # An hour later: it has expired, and is not taken any more.
            account.valid = False
            found.let_in(**{USER: "token-2"})
            await sink.write([an_answer("2")])
            assert account.refreshed == 1, "the connection that is open outlives its token"
            await sink._writing.close()
            await sink.write([an_answer("3")])
            assert account.refreshed == 2
            encrypted = await self.ssl_in_use(sink)
            await sink.close()
        assert set(place.answers()) == {"1", "2", "3"}
        assert encrypted

    async def ssl_in_use(self, sink: PostgresSink) -> bool:
        connection = sink._writing._connection
        assert connection is not None
        return connection.pgconn.ssl_in_use

    async def test_a_token_that_is_refused_is_said_to_be(
        self, placed: Placed, bouncer: Callable[..., Any], account: Account
    ) -> None:
        place = placed()
        with bouncer(place.server.url, "session", {"other": "x"}, tls=True) as found:
            sink = place.sink(found.url(USER))
            with pytest.raises(Locked, match="authentication failed") as refused:
                await sink.open()
            await sink.close()
        assert account.token not in str(refused.value)

    @pytest.mark.parametrize(
        ("error", "kind"), [(TransportError, Unavailable), (RefreshError, Locked), (DefaultCredentialsError, Locked)]
    )
    async def test_without_a_token_the_server_is_not_asked(
        self, placed: Placed, account: Account, error: type[Exception], kind: type[Exception]
    ) -> None:
        place = placed()
        account.error = error("the reason")
        sink = place.sink(f"postgresql://{USER.replace('@', '%40')}@127.0.0.1:{place.server.port}/nightshift")
        with pytest.raises(kind, match="no access token for the database: the reason") as found:
            await sink.open()
        assert type(found.value) is kind
        await sink.close()


class Administrator:
    """A connection of a user who may make extensions; the local server has none. known: whether there are vectors already."""

    def __init__(self, *, known: bool) -> None:
        self.known = known
        self.statements: list[str] = []

    async def execute(self, statement: str) -> Administrator:
        self.statements.append(statement)
        return self

    async def fetchone(self) -> tuple[bool, str]:
        return self.known, "catalog"

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        yield


class TestVectors:
    @pytest.mark.gate
    @pytest.mark.parametrize(("known", "made"), [(False, ["CREATE EXTENSION IF NOT EXISTS vector"]), (True, [])])
    async def test_the_extension_is_made_by_who_may_make_it(self, known: bool, made: list[str]) -> None:
        connection: Any = Administrator(known=known)
        await ensure_vectors(connection, "t", "answer")
        assert connection.statements[1:] == made

    WIDE: ClassVar = {**EMBEDDING, "request": {"input": "{{ text }}", "dimensions": 3}}

    @pytest.fixture
    def bare(self, placed: Placed) -> Iterator[tuple[Place, str]]:
        """A place, and the URL of a database without pgvector."""
        place, name = placed(work=self.WIDE), f"bare_{unique()}"
        url = f"{place.server.url.rpartition('/')[0]}/{name}"
        with psycopg.connect(place.server.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        yield place, url
        with psycopg.connect(place.server.url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")

    async def test_if_the_extension_cannot_be_made_the_server_says_why(self, bare: tuple[Place, str]) -> None:
        place, url = bare
        sink = place.sink(url)
        with pytest.raises(SinkRefused, match=r"permission denied to create extension .*CREATE EXTENSION vector .*real\[\]"):
            await sink.open()
        await sink.close()
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT to_regclass(%s)", [place.table]).fetchone() == (None,)
            connection.execute(
                f"CREATE TABLE {place.table} (answer real[] NOT NULL, {OWN_COLUMNS}, PRIMARY KEY (nightshift_message_id))"
            )
        sink = place.sink(url)
        await sink.open()
        await sink.write([an_answer("1", [1.0, 2.0, 3.0])])
        await sink.close()

    @pytest.mark.gate
    async def test_a_table_without_an_index_is_named_with_the_statement_until_it_has_one(
        self, placed: Placed, caplog: pytest.LogCaptureFixture
    ) -> None:
        place = placed(work=self.WIDE)
        statements = []
        with caplog.at_level("INFO", "nightshift.stream.table_checks"):
            async with place.opened():
                statements = [each.fields["statement"] for each in caplog.records if "no index" in each.message]  # type: ignore[attr-defined]
        assert statements == [f'CREATE INDEX CONCURRENTLY ON "public"."{place.table}" USING hnsw ("answer" vector_cosine_ops)']

        with psycopg.connect(place.server.url, autocommit=True) as connection:
            connection.execute(statements[0].encode())
        caplog.clear()
        async with place.opened():
            assert not [each for each in caplog.records if "no index" in each.message]
