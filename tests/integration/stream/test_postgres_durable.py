"""What is acknowledged is in the table that the job names, and stays there: whatever another client of a pool has left behind,
whatever the role or the database has switched off, and whatever the table is.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from psycopg import sql

from nightshift.stream.dead_letters import DeadLetterTable, Selection
from nightshift.stream.ports import SinkRefused, Standing, Unavailable
from nightshift.stream.postgres import PostgresSink
from nightshift.stream.schema import Row
from nightshift.stream.session import Session
from nightshift.stream.sink_address import parse
from tests.integration.emulators import PYTHON, PostgresServer, start_postgres
from tests.integration.stream.tables import MODEL, Place, a_death, a_message, an_answer

pytestmark = pytest.mark.integration

Placed = Callable[..., Place]
OTHER_TEXTS: Final = {
    "DateStyle": "German, DMY",
    "TimeZone": "Pacific/Kiritimati",
    "client_encoding": "LATIN1",
    "search_path": "hostile, pg_temp",
    "application_name": "another",
    "default_tablespace": "pg_default",
    "default_text_search_config": "pg_catalog.german",
    "lc_monetary": "POSIX",
    "lc_numeric": "POSIX",
    "lc_time": "POSIX",
    "temp_tablespaces": "pg_default",
    "timezone_abbreviations": "India",
    "createrole_self_grant": "set",
    "local_preload_libraries": None,  # A legal value is a library of the server's.
    "default_table_access_method": None,  # There is one.
    "restrict_nonsystem_relation_kind": "view",
}
"""Another legal value of each setting that is a text; None: there is no other."""


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """One whose role may become another, and is changed by these tests."""
    server = start_postgres(tmp_path_factory.mktemp("postgres"))
    server.stop()
    program = (
        "import sys; from local.postgres import cluster, programs; "
        "cluster._run(programs.command('postgres', '--single', '-j', '-D', sys.argv[1], sys.argv[2]), sys.argv[3])"
    )
    statements = [
        "CREATE ROLE another",
        "GRANT another TO nightshift",
        "CREATE FOREIGN DATA WRAPPER elsewhere",
        "GRANT USAGE ON FOREIGN DATA WRAPPER elsewhere TO nightshift",
    ]
    said = "".join(f"{each};\n\n" for each in statements)
    subprocess.run([PYTHON, "-c", program, str(server.folder / "cluster"), server.url.rpartition("/")[2], said], check=True)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def placed(own_server: PostgresServer, tmp_path: Path) -> Placed:
    return lambda *keys, **options: Place(own_server, tmp_path, *keys, **options)


def sessions(sink: PostgresSink) -> tuple[Session, Session]:
    return sink._asking, sink._writing


async def another_client(sink: PostgresSink, *statements: str) -> None:
    """What somebody else does with the sink's connections: a pooler in transaction mode hands on the same ones."""
    for session in sessions(sink):
        if session._connection is None:
            await session.run(lambda connection: connection.execute("SELECT 1"))
        assert session._connection is not None
        for statement in statements:
            await session._connection.execute(statement.encode())


def all_changed(server: PostgresServer) -> dict[str, str]:
    """Statements, by name, that give every setting that any user may change another legal value."""
    with psycopg.connect(server.url) as connection:
        rows = connection.execute(
            "SELECT name, vartype, setting, enumvals, min_val, max_val FROM pg_settings "
            "WHERE context = 'user' AND name !~ '^transaction_'"
        ).fetchall()
    found = {}
    for name, kind, setting, choices, least, most in rows:
        value: Any = {
            "bool": "off" if setting == "on" else "on",
            "enum": next((each for each in choices or () if each != setting), None),
            "integer": most if setting != most else least,
            "real": most if setting != most else least,
            "string": OTHER_TEXTS.get(name, f"no other value of {name} is known"),
        }[kind]
        if value is not None:
            found[name] = (
                sql.SQL("SET {} TO {}")
                .format(sql.Identifier(name), sql.SQL(str(value)) if "," in str(value) else sql.Literal(value))
                .as_string(None)
            )
    # Short ones, but for who sets them, too.
    return found | {name: f"SET {name} TO '2s'" for name in found if name.endswith("_timeout") and "tcp" not in name}


def watch(place: Place, seen: str) -> None:
    """Has a trigger keep this in the column `seen`."""
    place.do(
        f"CREATE FUNCTION see_{{}}() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.seen = {seen}; RETURN NEW; END'; "
        "CREATE TRIGGER see BEFORE INSERT ON {} FOR EACH ROW EXECUTE FUNCTION see_{}()"
    )


async def written(place: Place, *hostile: str) -> list[list[tuple[Any, ...]]]:
    """What is stored of the same outcomes, and all settings that a trigger of the table sees."""
    place.do(
        "CREATE TABLE {} (at timestamptz, day date, price money, took interval, answer vector(2), seen jsonb, "
        "nightshift_message_id text, nightshift_publish_time timestamptz, nightshift_model text, nightshift_tries int, "
        "nightshift_answered_at timestamptz, UNIQUE (at, day, price, took))"
    )
    watch(
        place,
        "(SELECT jsonb_object_agg(name, setting) || jsonb_build_object(''role'', current_user) "
        "FROM pg_settings WHERE context = ''user'')",
    )
    keys = [("2026-11-20 12:00", "03.02.2026", f"$1,000.{n}0", f"{n} 02:03:04") for n in range(3)]
    answers = [an_answer(a_message(f"ä{n}", n), [n, 0.1], *key) for n, key in enumerate(keys)]
    sink = place.sink()
    await sink.open()
    for answer in answers:
        await another_client(sink, *hostile)
        assert await sink.write([answer]) == frozenset()
    await another_client(sink, *hostile)
    assert await sink.write_dead_letters([a_death(a_message("dead", tenant="é"), text="ö")]) == frozenset()
    await another_client(sink, *hostile)
    known = await sink.known([*((each.message, each.key) for each in answers), (a_message("dead"), None)])
    assert known[:-1] == [Standing.OVER] * len(answers)
    await sink.close()
    return [
        place.ask(
            "SELECT at::text, day::text, price::text, took::text, answer::text, seen, nightshift_message_id, "
            "nightshift_publish_time, nightshift_model, nightshift_tries FROM {} ORDER BY nightshift_message_id"
        ),
        place.ask("SELECT message_id, publish_time, attributes, data, reason, text, status, tries FROM {}_dead_letters"),
    ]


WORK: Final = {"task": "embedding", "request": {"input": "{{ text }}", "dimensions": 2}}
KEYS: Final = ("at", "day", "price", "took")


class TestWhatAnotherClientLeavesBehind:
    @pytest.mark.gate
    async def test_with_every_setting_changed_the_same_rows_are_stored_under_the_same_settings(
        self, placed: Placed, own_server: PostgresServer
    ) -> None:
        changes = all_changed(own_server)
        assert len(changes) > 100
        with psycopg.connect(own_server.url, autocommit=True) as connection:
            for statement in changes.values():
                connection.execute("RESET ALL")
                connection.execute(statement.encode())

        clean = await written(placed(*KEYS, work=WORK))
        # All at once, in one message: some keep the next one from being understood.
        hostile = await written(placed(*KEYS, work=WORK), "; ".join(["SET ROLE another", *changes.values()]))
        for n, row in enumerate(clean[0]):
            seen, there = row[5], hostile[0][n][5]
            assert {name: (value, there[name]) for name, value in seen.items() if there[name] != value} == {}
        assert hostile == clean
        assert len(clean[0]) == 3

    @pytest.mark.gate
    @pytest.mark.parametrize("keys", [(), ("name",)], ids=["by id", "by key"])
    async def test_temporary_tables_and_schemas_of_the_same_names_get_nothing(
        self, placed: Placed, keys: tuple[str, ...]
    ) -> None:
        place = placed(*keys, work=WORK)
        async with place.opened() as sink:
            await sink.write([an_answer("0", [0, 0], *("0" for _ in keys))])
            place.do(
                "CREATE SCHEMA nightshift; CREATE TABLE nightshift.vector (a int); "
                "CREATE TABLE nightshift.{} (LIKE public.{} INCLUDING ALL); "
                "CREATE TABLE nightshift.{}_dead_letters (LIKE public.{}_dead_letters INCLUDING ALL)"
            )
            try:
                names = [place.table, f"{place.table}_dead_letters"]
                copies = [f"CREATE TEMP TABLE {name} (LIKE public.{name} INCLUDING ALL)" for name in names]
                # Types, too: a table has one of its name, and pg_class may be another's.
                odd = [
                    f"CREATE TEMP TABLE {name} (a int)" for name in ("text", "vector", "pg_class", "timestamptz", "pg_trigger")
                ]
                await another_client(sink, "SET search_path TO pg_temp, nightshift", *copies, *odd)
                assert await sink.write([an_answer("1", [1, 2], *("1" for _ in keys))]) == frozenset()
                assert await sink.write_dead_letters([a_death("2"), a_death("0")]) == {"0"}
                known = await sink.known([(a_message("1"), ("1",)), (a_message("2"), None)])
                assert known == [Standing.OVER, replace(a_death("2"))]
                assert await sink.sound()
                for session in sessions(sink):
                    assert session._connection is not None
                    for name in names:
                        for schema in ("pg_temp", "nightshift"):
                            found = await session._connection.execute(f"SELECT count(*) FROM {schema}.{name}".encode())
                            assert await found.fetchone() == (0,), (schema, name)
            finally:
                place.do("DROP SCHEMA nightshift CASCADE")
        assert place.answers() == {"0": "[0,0]", "1": "[1,2]"}
        assert place.dead() == {"2": "rejected"}

    @pytest.mark.gate
    async def test_whose_rights_count_is_what_the_login_says(self, own_server: PostgresServer) -> None:
        session = Session(parse(own_server.url))

        async def who(connection: Any) -> Any:
            return await (await connection.execute("SELECT current_user::text")).fetchone()

        with psycopg.connect(own_server.url, autocommit=True) as owner:
            owner.execute("ALTER ROLE CURRENT_USER SET role TO another")
            try:
                assert await session.run(who) == ("another",)
                assert session._connection is not None
                await session._connection.execute("SET ROLE none")
                assert await session.run(who) == ("another",)
            finally:
                owner.execute("ALTER ROLE CURRENT_USER RESET role")
        await session.close()
        assert await session.run(who) == ("nightshift",)
        await session.close()

    async def test_a_redrive_marks_the_streams_own_dead_letters(self, placed: Placed) -> None:
        place = placed()
        async with place.opened() as sink:
            await sink.write_dead_letters([a_death("1")])
        graves = DeadLetterTable(place.server.url, place.spec)
        session = graves._session
        await session.run(lambda connection: connection.execute("SELECT 1"))
        assert session._connection is not None
        hostile = f"{'; '.join(all_changed(place.server).values())}; CREATE TEMP TABLE {place.table}_dead_letters (a int)"
        await session._connection.execute(hostile.encode())
        selected, _ = await graves.select(Selection())
        assert [each.message_id for each in selected] == ["1"]

        async def publish(messages: Any) -> set[str]:
            assert [(each.published, each.data) for each in messages] == [(a_message("1").published, b"data")]
            return {each.id for each in messages}

        await graves.redrive(["1"], publish)
        await graves.close()
        assert place.ask("SELECT redriven_as FROM {}_dead_letters") == [("1.r1",)]


class TestWhatIsAcknowledgedIsOnDisk:
    @pytest.mark.gate
    @pytest.mark.parametrize(
        ("by_role", "by_client", "counts"),
        [
            ("off", "", "on"),
            ("on", "off", "on"),
            ("off", "on", "on"),
            ("local", "off", "local"),
            ("remote_apply", "off", "remote_apply"),
            ("remote_write", "", "remote_write"),
        ],
    )
    async def test_synchronous_commit_is_raised_from_off_and_otherwise_the_owners(
        self, placed: Placed, own_server: PostgresServer, by_role: str, by_client: str, counts: str
    ) -> None:
        for target in (f"DATABASE {own_server.url.rpartition('/')[2]}", "ROLE CURRENT_USER"):
            place = placed()
            with psycopg.connect(own_server.url, autocommit=True) as connection:
                connection.execute(f"ALTER {target} SET synchronous_commit TO {by_role}".encode())
            try:
                async with place.opened() as sink:
                    place.do("ALTER TABLE {} ADD seen text")
                    watch(place, "current_setting(''synchronous_commit'')")
                    if by_client:
                        await another_client(sink, f"SET synchronous_commit TO {by_client}")
                    await sink.write([an_answer("1")])
                    assert place.ask("SELECT seen FROM {}") == [(counts,)], target
            finally:
                with psycopg.connect(own_server.url, autocommit=True) as connection:
                    connection.execute(f"ALTER {target} RESET synchronous_commit".encode())

    @pytest.mark.gate
    @pytest.mark.parametrize(("by_role", "counts"), [("off", "on"), ("local", "local"), ("remote_write", "remote_write")])
    @pytest.mark.parametrize(
        "trigger", ["TRIGGER {} BEFORE INSERT", "CONSTRAINT TRIGGER {} AFTER INSERT"], ids=["at once", "deferred"]
    )
    async def test_a_trigger_does_not_switch_it_off(
        self, placed: Placed, own_server: PostgresServer, trigger: str, by_role: str, counts: str
    ) -> None:
        place = placed()
        deferred = " DEFERRABLE INITIALLY DEFERRED" if "CONSTRAINT" in trigger else ""
        with psycopg.connect(own_server.url, autocommit=True) as connection:
            connection.execute(f"ALTER ROLE CURRENT_USER SET synchronous_commit TO {by_role}".encode())
        try:
            async with place.opened() as sink:
                place.do(
                    "CREATE FUNCTION f_{}() RETURNS trigger LANGUAGE plpgsql AS "
                    "'BEGIN PERFORM set_config(''synchronous_commit'', ''off'', true); RETURN NEW; END'; "
                    f"CREATE {trigger.replace('{}', 'a')} ON {{}}{deferred} FOR EACH ROW EXECUTE FUNCTION f_{{}}()"
                )
                session = sessions(sink)[1]
                execute = session._connection.execute  # type: ignore[union-attr]
                seen: list[Any] = []

                async def spied(query: Any, *arguments: Any, **options: Any) -> Any:
                    if not (isinstance(query, bytes) and query.endswith(b"COMMIT")):
                        return await execute(query, *arguments, **options)
                    await execute(query.removesuffix(b"COMMIT"))
                    # What was deferred and not run yet would run here.
                    await execute("SET CONSTRAINTS ALL IMMEDIATE")
                    seen.extend(await (await execute("SHOW synchronous_commit")).fetchall())
                    return await execute("COMMIT")

                session._connection.execute = spied  # type: ignore[union-attr, method-assign]
                await sink.write([an_answer("1")])
        finally:
            with psycopg.connect(own_server.url, autocommit=True) as connection:
                connection.execute("ALTER ROLE CURRENT_USER RESET synchronous_commit")
        assert seen == [(counts,)]
        assert place.answers() == {"1": "yes"}

    @pytest.mark.gate
    async def test_a_database_that_is_read_only_is_waited_for_and_no_answer_is_refused(
        self, placed: Placed, own_server: PostgresServer
    ) -> None:
        place = placed()
        async with place.opened() as sink:
            with psycopg.connect(own_server.url, autocommit=True) as owner:
                owner.execute("SET default_transaction_read_only TO off")
                owner.execute("ALTER ROLE CURRENT_USER SET default_transaction_read_only TO on")
                try:
                    await sink._writing.close()
                    with pytest.raises(Unavailable, match="read-only transaction"):
                        await sink.write([an_answer("1")])
                finally:
                    owner.execute("ALTER ROLE CURRENT_USER RESET default_transaction_read_only")
            assert place.answers() == {}
            await sink.write([an_answer("1")])
        assert place.answers() == {"1": "yes"}


OWN: Final = (
    "nightshift_message_id text UNIQUE, nightshift_publish_time timestamptz, nightshift_model text, nightshift_tries int, "
    "nightshift_answered_at timestamptz"
)
_BEHIND: Final = "CREATE TABLE b_{} (answer text, OWN); "
_VIEW: Final = f"{_BEHIND} CREATE VIEW {{}} AS SELECT * FROM b_{{}}; "
_NOTHING: Final = "CREATE FUNCTION f_{}() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';"
_HALVED: Final = "CREATE TABLE {} (answer text, OWN) PARTITION BY HASH (nightshift_message_id);"
_HALF: Final = "PARTITION OF {} FOR VALUES WITH (MODULUS 2, REMAINDER %d); "
OTHER_TABLES: Final = {
    "unlogged": (
        "CREATE UNLOGGED TABLE {} (answer text, OWN)",
        "the table {} is UNLOGGED: a crash .*ALTER TABLE {} SET LOGGED",
    ),
    "unlogged dead letters": (
        "CREATE TABLE {} (answer text, OWN); CREATE UNLOGGED TABLE {}_dead_letters (message_id text)",
        "{}_dead_letters is UNLOGGED",
    ),
    "unlogged partition": (
        f"{_HALVED} CREATE TABLE p_{{}} {_HALF % 0} CREATE UNLOGGED TABLE q_{{}} {_HALF % 1}",
        "the table q_{} is UNLOGGED",
    ),
    "view": (_VIEW, "{} is a view: .* Name a table of this database"),
    "view that writes": (
        f"{_VIEW}{_NOTHING} CREATE TRIGGER i INSTEAD OF INSERT ON {{}} FOR EACH ROW EXECUTE FUNCTION f_{{}}()",
        "{} is a view",
    ),
    "materialized view": (
        f"{_BEHIND} CREATE MATERIALIZED VIEW {{}} AS SELECT * FROM b_{{}}; CREATE UNIQUE INDEX ON {{}} (nightshift_message_id)",
        "{} is a materialized view",
    ),
    "sequence": ("CREATE SEQUENCE {}", "{} is no table"),
    "rule": (
        "CREATE TABLE {} (answer text, OWN); CREATE RULE r AS ON INSERT TO {} DO INSTEAD NOTHING",
        "the table {} has the rule r",
    ),
}
"""What may have the table's name, how it is made, and what is said of it."""


_LISTED: Final = (
    "CREATE TABLE {} (answer text, OWN) PARTITION BY LIST (nightshift_message_id); "
    "CREATE TABLE p_{} PARTITION OF {} FOR VALUES IN ('1'); "
)
_DEAD_LISTED: Final = (
    "CREATE TABLE {}_dead_letters (message_id text PRIMARY KEY, publish_time timestamptz, ordering_key text, attributes jsonb, "
    "data bytea, reason text, text text, status int, tries int, model text, dead_at timestamptz DEFAULT now(), "
    "redriven_at timestamptz, redriven_as text) PARTITION BY LIST (message_id); "
    "CREATE TABLE d_{} PARTITION OF {}_dead_letters FOR VALUES IN ('1'); "
)
_KEPT_BY_CHILDREN: Final = (
    "CREATE TABLE {} (answer text, OWN); CREATE TABLE p_{} () INHERITS ({}); CREATE FUNCTION f_{}() RETURNS trigger LANGUAGE "
    "plpgsql AS 'BEGIN INSERT INTO p_{} VALUES (NEW.*); RETURN NULL; END'; "
    "CREATE TRIGGER t BEFORE INSERT ON {} FOR EACH ROW EXECUTE FUNCTION f_{}(); "
)
LATER: Final = {
    "made": (_LISTED, "CREATE UNLOGGED TABLE q_{} PARTITION OF {} FOR VALUES IN ('2')", "ALTER TABLE q_{} SET LOGGED"),
    "attached": (
        f"{_LISTED} CREATE UNLOGGED TABLE q_{{}} (LIKE {{}})",
        "ALTER TABLE {} ATTACH PARTITION q_{} DEFAULT",
        "ALTER TABLE q_{} SET LOGGED",
    ),
    "changed": (
        f"{_LISTED} CREATE TABLE q_{{}} PARTITION OF {{}} DEFAULT",
        "ALTER TABLE q_{} SET UNLOGGED",
        "ALTER TABLE q_{} SET LOGGED",
    ),
    "of a partition": (
        f"{_LISTED} CREATE TABLE q_{{}} PARTITION OF {{}} DEFAULT PARTITION BY LIST (nightshift_message_id)",
        "CREATE UNLOGGED TABLE r_{} PARTITION OF q_{} DEFAULT",
        "ALTER TABLE r_{} SET LOGGED",
    ),
    "of the dead letters": (
        _LISTED.replace("IN ('1')", "IN ('2')") + _DEAD_LISTED,
        "CREATE UNLOGGED TABLE q_{} PARTITION OF {}_dead_letters DEFAULT",
        "ALTER TABLE q_{} SET LOGGED",
    ),
    "by a trigger": (_KEPT_BY_CHILDREN, "ALTER TABLE p_{} SET UNLOGGED", "ALTER TABLE p_{} SET LOGGED"),
}
"""Tables with parts, what happens to a part while a stream runs, and what mends it."""


class TestWhatIsNoTableThatKeepsItsRows:
    @pytest.mark.gate
    @pytest.mark.parametrize("name", OTHER_TABLES)
    async def test_it_is_refused_before_anything_is_computed(self, placed: Placed, name: str) -> None:
        place, (made, said) = placed(), OTHER_TABLES[name]
        place.do(made.replace("OWN", OWN))
        sink = place.sink()
        with pytest.raises(SinkRefused, match=said.replace("{}", place.table)):
            await sink.open()
        await sink.close()

    @pytest.mark.gate
    @pytest.mark.parametrize("said", ["", "UNLOGGED"])
    async def test_a_table_with_partitions_keeps_them(self, placed: Placed, said: str) -> None:
        """What is said of itself is not true of its partitions."""
        place = placed()
        place.do(f"CREATE {said} TABLE {{}} (answer text, {OWN}) PARTITION BY HASH (nightshift_message_id)")
        for n in range(2):
            place.do(f"CREATE TABLE p{n}_{{}} PARTITION OF {{}} FOR VALUES WITH (MODULUS 2, REMAINDER {n})")
        async with place.opened() as sink:
            await sink.write([an_answer(f"{n}") for n in range(10)])
            assert await sink.known([(a_message("3"), ("3",)), (a_message("x"), ("x",))]) == [Standing.OVER, Standing.NEW]
        assert len(place.answers()) == 10

    @pytest.mark.gate
    @pytest.mark.parametrize("which", ["{}", "{}_dead_letters"])
    async def test_one_that_becomes_unlogged_while_a_stream_runs_is_waited_for(self, placed: Placed, which: str) -> None:
        place = placed()
        async with place.opened() as sink:
            place.do(f"ALTER TABLE {which} SET UNLOGGED")
            with pytest.raises(Unavailable, match="is UNLOGGED"):
                await sink.write([an_answer("1")])
            with pytest.raises(Unavailable, match="is UNLOGGED"):
                await sink.write_dead_letters([a_death("2")])
            assert (place.answers(), place.dead()) == ({}, {})
            place.do(f"ALTER TABLE {which} SET LOGGED")
            await sink.write([an_answer("1")])
            await sink.write_dead_letters([a_death("2")])
        assert (set(place.answers()), set(place.dead())) == ({"1"}, {"2"})
        assert place.ask("SELECT nightshift_model FROM {}") == [(MODEL,)]

    @pytest.mark.gate
    @pytest.mark.parametrize("name", LATER)
    async def test_so_is_one_of_which_a_part_becomes_so(self, placed: Placed, name: str) -> None:
        place, (made, later, mended) = placed(), LATER[name]
        place.do(made.replace("OWN", OWN))
        async with place.opened() as sink:
            place.do(later)
            with pytest.raises(Unavailable, match="is UNLOGGED"):
                await sink.write([an_answer("2")])
            with pytest.raises(Unavailable, match="is UNLOGGED"):
                await sink.write_dead_letters([a_death("3")])
            assert (place.answers(), place.dead()) == ({}, {})
            place.do(mended)
            await sink.write([an_answer("2")])
            await sink.write_dead_letters([a_death("3")])
        assert (set(place.answers()), set(place.dead())) == ({"2"}, {"3"})

    async def test_so_is_one_that_gets_a_rule(self, placed: Placed) -> None:
        place = placed()
        async with place.opened() as sink:
            place.do("CREATE RULE r AS ON INSERT TO {} DO INSTEAD NOTHING")
            with pytest.raises(Unavailable, match="has the rule r"):
                await sink.write([an_answer("1")])
            place.do("DROP RULE r ON {}")
            await sink.write([an_answer("1")])
        assert place.answers() == {"1": "yes"}

    async def test_so_is_one_that_a_foreign_table_inherits(self, placed: Placed) -> None:
        place = placed()
        async with place.opened() as sink:
            place.do(
                "CREATE SERVER s_{} FOREIGN DATA WRAPPER elsewhere; CREATE FOREIGN TABLE q_{} () INHERITS ({}) SERVER s_{}"
            )
            with pytest.raises(Unavailable, match="is a foreign table"):
                await sink.write([an_answer("1")])
            place.do("DROP FOREIGN TABLE q_{}")
            await sink.write([an_answer("1")])
        assert place.answers() == {"1": "yes"}

    @pytest.mark.gate
    async def test_a_part_that_comes_between_the_statements_of_a_write_is_seen(self, placed: Placed) -> None:
        """ATTACH does not wait for who writes to the table."""
        place = placed()
        place.do(_LISTED.replace("OWN", OWN))
        async with place.opened() as sink:
            rounds = sink._table.rounds

            def late(rows: Sequence[Row]) -> list[list[Row]]:
                place.do("CREATE UNLOGGED TABLE q_{} (LIKE {}); ALTER TABLE {} ATTACH PARTITION q_{} DEFAULT")
                return rounds(rows)

            sink._table.rounds = late  # type: ignore[method-assign]
            with pytest.raises(Unavailable, match="UNLOGGED"):
                await sink.write([an_answer("2")])
        assert place.answers() == {}

    async def test_a_temporary_table_of_another_connection_that_inherits_has_no_part_in_it(self, placed: Placed) -> None:
        place = placed()
        async with place.opened() as sink:
            with psycopg.connect(place.server.url, autocommit=True) as other:
                other.execute(f"CREATE TEMP TABLE c_{place.table} () INHERITS ({place.table})".encode())
                await sink.write([an_answer("1")])
            await another_client(sink, f"CREATE TEMP TABLE IF NOT EXISTS c_{place.table} () INHERITS (public.{place.table})")
            with pytest.raises(Unavailable, match="is temporary"):
                await sink.write([an_answer("2")])
        assert place.answers() == {"1": "yes"}
