"""The tables of a sink in a real PostgreSQL: those that it makes, and those that it finds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pytest

from nightshift.stream.ports import SinkRefused, Standing, Unwritable
from nightshift.stream.schema import OWN
from tests.integration.emulators import PostgresServer
from tests.integration.pubsub import unique
from tests.integration.stream.tables import BEGAN, COMPLETION, EMBEDDING, MODEL, Place, a_death, a_message, an_answer

pytestmark = pytest.mark.integration

Placed = Callable[..., Place]
OWN_COLUMNS = ", ".join(f"{name} {kind}" for name, kind in OWN.items())


@pytest.fixture
def placed(postgres_server: PostgresServer, tmp_path: Path) -> Placed:
    return lambda *keys, **options: Place(postgres_server, tmp_path, *keys, **options)


def typed(schema: dict[str, Any]) -> dict[str, Any]:
    """A completion whose answers are typed."""
    return {"task": "completion", "request": {"prompt": "{{ text }}", "json_schema": schema}}


KINDS: list[tuple[str, dict[str, Any], str, Any, str]] = [
    (
        "vector",
        {"task": "embedding", "request": {"input": "{{ text }}", "dimensions": 3}},
        "vector(3)",
        [1.5, 2, -3e-05],
        "[1.5,2,-3e-05]",
    ),
    ("vector of any width", dict(EMBEDDING), "real[]", [1.5, 2.0], "{1.5,2}"),
    ("text", dict(COMPLETION), "text", 'a "b"\n{c}', 'a "b"\n{c}'),
    (
        "number",
        {"task": "score", "request": {"text_1": "{{ text }}", "text_2": "{{ text }}"}},
        "double precision",
        0.25,
        "0.25",
    ),
    (
        "struct",
        {"task": "classify", "request": {"input": "{{ text }}"}},
        "jsonb",
        {"label": "a'\"b", "score": 0.5, "scores": [0.5, 0.5]},
        '{"label": "a\'\\"b", "score": 0.5, "scores": [0.5, 0.5]}',
    ),
    ("whole number", typed({"type": "integer"}), "bigint", -(2**63), "-9223372036854775808"),
    ("yes or no", typed({"type": "boolean"}), "boolean", True, "true"),
    (
        "numbers",
        typed({"type": "array", "items": {"type": "number"}}),
        "double precision[]",
        [123456789.125, 1e300],
        "{123456789.125,1e+300}",
    ),
    (
        "texts",
        typed({"type": "array", "items": {"type": "string"}}),
        "jsonb",
        ["a\nb", '{"c"}'],
        '["a\\nb", "{\\"c\\"}"]',
    ),
]


@pytest.mark.gate
@pytest.mark.parametrize(("name", "work", "kind", "prediction", "text"), KINDS, ids=[each[0] for each in KINDS])
async def test_each_prediction_has_the_column_that_holds_it(
    placed: Placed, name: str, work: dict[str, Any], kind: str, prediction: Any, text: str
) -> None:
    place = placed(work=work)
    async with place.opened() as sink:
        await sink.write([an_answer("1", prediction, tries=3)])

    assert place.types() == {"answer": kind}
    assert place.answers() == {"1": text}
    rows = place.ask("SELECT nightshift_publish_time, nightshift_model, nightshift_tries, nightshift_answered_at FROM {}")
    assert rows[0][:3] == (BEGAN, MODEL, 3)
    assert rows[0][3] is not None


@pytest.mark.gate
async def test_a_key_of_several_columns_tells_rows_apart_by_all_of_them(placed: Placed) -> None:
    place = placed("Name", "order")
    async with place.opened() as sink:
        await sink.write([an_answer("1", "a", "x", "1"), an_answer("2", "b", "x", "2"), an_answer("3", "c", "y", "1")])

    assert place.types() == {"Name": "text", "order": "text", "answer": "text"}
    assert place.ask('SELECT "Name", "order", answer FROM {} ORDER BY 1, 2') == [
        ("x", "1", "a"),
        ("x", "2", "b"),
        ("y", "1", "c"),
    ]
    with pytest.raises(psycopg.errors.UniqueViolation):
        place.do("UPDATE {} SET \"order\" = '1'")


async def test_a_table_of_a_schema_has_its_dead_letters_there(placed: Placed) -> None:
    place = placed(table=f"s_{unique()}.answers")
    with pytest.raises(SinkRefused, match=r"schema .* does not exist"):
        await place.sink().open()
    place.do(f"CREATE SCHEMA {place.table.partition('.')[0]}")
    async with place.opened() as sink:
        await sink.write([an_answer("1")])
        await sink.write_dead_letters([a_death("2")])

    assert (place.answers(), place.dead()) == ({"1": "yes"}, {"2": "rejected"})


@pytest.mark.parametrize("again", [pytest.param(1, marks=pytest.mark.gate), 5])
async def test_subscribers_that_open_at_the_same_time_all_succeed(placed: Placed, again: int) -> None:
    for _ in range(again):
        place = placed("name")
        sinks = [place.sink() for _ in range(4)]
        await asyncio.gather(*(sink.open() for sink in sinks))
        await asyncio.gather(*(sink.write([an_answer(f"{n}", "yes", f"{n}")]) for n, sink in enumerate(sinks)))
        for sink in sinks:
            await sink.close()

        assert len(place.answers()) == len(sinks)


OTHER_KEYS = [
    ("integer", "7", "07", "8", "seven"),
    (
        "uuid",
        "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
        "6BA7B810-9DAD-11D1-80B4-00C04FD430C8",
        "6ba7b811-9dad-11d1-80b4-00c04fd430c8",
        "6ba7b810",
    ),
    ("timestamptz", "2026-11-20T12:00:00Z", "2026-11-20 13:00:00+01", "2026-11-21T12:00:00Z", "yesterday or so"),
    ("varchar(5)", "abcde", "abcde", "abcd", "abcdef"),
]
FURTHER_KEYS = [
    ("bigint", "7", " 7", "9223372036854775807", "9223372036854775808"),
    ("boolean", "true", "t", "false", "perhaps"),
    ("char(5)", "abc", "abc  ", "abd", "abcdef"),
]


@pytest.mark.parametrize(
    ("kind", "key", "same", "other", "wrong"),
    [*(pytest.param(*each, marks=pytest.mark.gate) for each in OTHER_KEYS), *FURTHER_KEYS],
    ids=[each[0] for each in (*OTHER_KEYS, *FURTHER_KEYS)],
)
async def test_a_table_with_keys_of_another_type_takes_those_that_are_of_it(
    placed: Placed, kind: str, key: str, same: str, other: str, wrong: str
) -> None:
    place = placed("id")
    place.do(f"CREATE TABLE {{}} (id {kind} PRIMARY KEY, answer text, {OWN_COLUMNS}, more text)")
    early, late, bad = a_message("1"), a_message("2", 1), a_message("3")
    async with place.opened() as sink:
        await sink.write([an_answer(early, "first", key), an_answer(a_message("4"), "other", other)])
        await sink.write([an_answer(late, "second", same)])
        with pytest.raises(Unwritable):
            await sink.write([an_answer(bad, "bad", wrong)])
        known = await sink.known([(early, (key,)), (bad, (wrong,)), (late, (key,)), (a_message("5", 9), (key,))])

    assert known == [Standing.OVER, Standing.NEW, Standing.OVER, Standing.NEW]
    assert place.answers() == {"2": "second", "4": "other"}


async def test_a_prediction_that_a_narrow_column_would_cut_is_unwritable(placed: Placed) -> None:
    place = placed()
    place.do(f"CREATE TABLE {{}} (answer varchar(3), {OWN_COLUMNS}, UNIQUE (nightshift_message_id))")
    async with place.opened() as sink:
        await sink.write([an_answer("1", "abc")])
        with pytest.raises(Unwritable, match="too long"):
            await sink.write([an_answer("2", "abcd")])

    assert place.answers() == {"1": "abc"}


@pytest.mark.parametrize(
    ("kind", "prediction", "text"),
    [
        ("jsonb", "a", '"a"'),
        ("json", "a", '"a"'),
        ("t_mood", "good", "good"),
        ("varchar", "a\nb", "a\nb"),
    ],
)
async def test_a_text_is_written_to_a_column_of_another_type(placed: Placed, kind: str, prediction: str, text: str) -> None:
    place = placed()
    mood = f"mood_{unique()}"
    place.do(f"CREATE TYPE {mood} AS ENUM ('good', 'bad')")
    column = kind.replace("t_mood", mood)
    place.do(f"CREATE TABLE {{}} (answer {column}, {OWN_COLUMNS}, UNIQUE (nightshift_message_id))")
    async with place.opened() as sink:
        await sink.write([an_answer("1", prediction)])

    assert place.answers() == {"1": text}


class TestATableThatDoesNotFit:
    async def refusal(self, place: Place) -> str:
        sink = place.sink()
        with pytest.raises(SinkRefused) as caught:
            await sink.open()
        await sink.close()
        return str(caught.value)

    @pytest.mark.gate
    async def test_lacking_columns_are_named_and_the_statement_that_is_said_adds_them(self, placed: Placed) -> None:
        place = placed("Name")
        place.do('CREATE TABLE {} ("Name" text, nightshift_tries integer, UNIQUE ("Name"))')

        said = await self.refusal(place)
        lacking = ["answer", *(name for name in OWN if name != "nightshift_tries")]
        assert f"the table {place.table} lacks {', '.join(lacking)}." in said
        place.do(said[said.index("ALTER TABLE") :].replace("TYPE", "text"))
        async with place.opened() as sink:
            await sink.write([an_answer("1", "yes", "a")])
        assert place.answers() == {"1": "yes"}

    @pytest.mark.parametrize(
        "index",
        [
            pytest.param("", marks=pytest.mark.gate),
            'CREATE INDEX ON {} ("Name", "order")',
            'CREATE UNIQUE INDEX ON {} ("Name")',
            'CREATE UNIQUE INDEX ON {} ("Name") INCLUDE ("order")',
            'CREATE UNIQUE INDEX ON {} ("Name", "order", answer)',
            'CREATE UNIQUE INDEX ON {} ("Name", "order") WHERE answer IS NOT NULL',
            'CREATE UNIQUE INDEX ON {} ("Name", lower("order"))',
        ],
    )
    async def test_a_lacking_unique_index_is_said_with_the_statement_that_makes_it(self, placed: Placed, index: str) -> None:
        place = placed("Name", "order")
        place.do(f'CREATE TABLE {{}} ("Name" text, "order" text, answer text, {OWN_COLUMNS})')
        if index:
            place.do(index)

        said = await self.refusal(place)
        assert f"the table {place.table} has no unique index on" in said
        place.do(said[said.index("CREATE UNIQUE INDEX") :])
        async with place.opened() as sink:
            await sink.write([an_answer("1", "yes", "a", "b")])
        assert place.answers() == {"1": "yes"}

    async def test_a_unique_constraint_that_is_checked_late_does_not_serve(self, placed: Placed) -> None:
        place = placed("name")
        place.do(f"CREATE TABLE {{}} (name text UNIQUE DEFERRABLE, answer text, {OWN_COLUMNS})")

        assert "has no unique index" in await self.refusal(place)
        place.do("CREATE UNIQUE INDEX ON {} (name)")
        said = await self.refusal(place)
        assert "ON CONFLICT does not support that" in said
        place.do(said[said.index("ALTER TABLE") :])
        async with place.opened() as sink:
            await sink.write([an_answer("1", "yes", "a")])
        assert place.answers() == {"1": "yes"}

    @pytest.mark.parametrize(
        "index",
        ['CREATE UNIQUE INDEX ON {} ("order", "Name")', 'CREATE UNIQUE INDEX ON {} ("Name", "order") INCLUDE (answer)'],
    )
    async def test_a_unique_index_of_another_form_serves(self, placed: Placed, index: str) -> None:
        place = placed("Name", "order")
        place.do(f'CREATE TABLE {{}} ("Name" text, "order" text, answer text, {OWN_COLUMNS})')
        place.do(index)
        async with place.opened() as sink:
            await sink.write([an_answer("1", "yes", "a", "b"), an_answer("2", "no", "a", "b")])

        assert place.answers() == {"2": "no"}


class TestATableThatWouldRefuseEveryRow:
    """It is refused before anything is computed, else a backlog would become dead letters."""

    VECTORS: ClassVar = {"task": "embedding", "request": {"input": "{{ text }}", "dimensions": 2}}
    NUMBERS: ClassVar = {"task": "score", "request": {"text_1": "{{ text }}", "text_2": "{{ text }}"}}

    @pytest.mark.gate
    @pytest.mark.parametrize(
        ("work", "columns", "said"),
        [
            (VECTORS, "answer vector(3)", r"answer. of the table .* is vector\(3\).*expected 3 dimensions, not 2"),
            (VECTORS, "answer integer", "is integer"),
            (NUMBERS, "answer integer", "is integer, and the job's predictions look like 0.5"),
            (typed({"type": "boolean"}), "answer integer", "is integer, and the job's predictions look like true"),
            (typed({"type": "integer"}), "answer uuid", "is uuid"),
            (COMPLETION, "answer text, tenant text NOT NULL", 'column "tenant" is NOT NULL without a default'),
            (COMPLETION, "answer text, tenant t_word", 'column "tenant" is NOT NULL without a default'),
            (COMPLETION, "answer text GENERATED ALWAYS AS ('x') STORED", "GENERATED ALWAYS"),
            (COMPLETION, "answer bytea, CHECK (true)", None),
            (COMPLETION, "answer text, tenant text NOT NULL DEFAULT 'a', n int GENERATED ALWAYS AS IDENTITY", None),
            (VECTORS, "answer vector", None),
            (VECTORS, "answer text", None),
            (NUMBERS, "answer numeric(5,2) CHECK (answer > 0.9)", None),
        ],
    )
    async def test_it_is_said_at_the_start(self, placed: Placed, work: dict[str, Any], columns: str, said: str | None) -> None:
        place = placed(work=work)
        word = f"word_{unique()}"
        place.do(f"CREATE DOMAIN {word} AS text NOT NULL")
        place.do(f"CREATE TABLE {{}} ({columns.replace('t_word', word)}, {OWN_COLUMNS}, UNIQUE (nightshift_message_id))")
        sink = place.sink()
        if said is None:
            await sink.open()
        else:
            with pytest.raises(SinkRefused, match=said):
                await sink.open()
        await sink.close()

    async def test_own_columns_of_another_type_are_said(self, placed: Placed) -> None:
        place = placed()
        own = OWN_COLUMNS.replace("nightshift_tries integer", "nightshift_tries uuid")
        place.do(f"CREATE TABLE {{}} (answer text, {own}, UNIQUE (nightshift_message_id))")
        with pytest.raises(SinkRefused, match='"nightshift_tries" is of type uuid'):
            await place.sink().open()

    async def test_a_column_that_a_trigger_fills_in_is_none(self, placed: Placed) -> None:
        place = placed()
        place.do(f"CREATE TABLE {{}} (answer text, tenant text NOT NULL, {OWN_COLUMNS}, UNIQUE (nightshift_message_id))")
        function = f"fill_{unique()}"
        place.do(
            f"CREATE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.tenant = ''t''; RETURN NEW; END'"
        )
        place.do(f"CREATE TRIGGER fill BEFORE INSERT ON {{}} FOR EACH ROW EXECUTE FUNCTION {function}()")
        async with place.opened() as sink:
            await sink.write([an_answer("1")])

        assert place.ask("SELECT answer, tenant FROM {}") == [("yes", "t")]

    async def test_a_table_of_dead_letters_that_refuses_all_is_said_too(self, placed: Placed) -> None:
        place = placed()
        async with place.opened():
            place.do("ALTER TABLE {}_dead_letters ADD tenant text NOT NULL")
        with pytest.raises(SinkRefused, match='_dead_letters" refuses every row: its column "tenant"'):
            await place.sink().open()


class TestWhoseTableItIs:
    def comment(self, place: Place) -> str:
        return str(place.ask("SELECT obj_description('{}'::regclass, 'pg_class')")[0][0])

    @pytest.mark.gate
    async def test_another_stream_is_refused_unless_its_file_says_that_both_write_there(self, placed: Placed) -> None:
        place = placed("name")
        for _ in range(2):
            async with place.opened():
                pass
        others = [
            placed("name", table=place.table, job="others"),
            placed("name", table=place.table, work={"task": "completion", "request": {"prompt": "{{ text }}"}}, column="more"),
        ]
        place.do("ALTER TABLE {} ADD more text, ALTER answer DROP NOT NULL")
        for other in others:
            with pytest.raises(SinkRefused, match=r"is another stream's: .*\"texts\".*sink.shared: true") as caught:
                await other.sink().open()
        async with placed("name", table=place.table, job="others", shared=True).opened():
            pass
        async with place.opened():
            pass
        said = str(caught.value)
        place.do(said[said.index("COMMENT ON") :])
        async with others[-1].opened():
            pass
        with pytest.raises(SinkRefused, match="is another stream's"):
            await place.sink().open()

    async def test_one_that_nobody_has_marked_is_adopted_and_its_comment_kept(
        self, placed: Placed, caplog: pytest.LogCaptureFixture
    ) -> None:
        """As release 0.2.0 left it."""
        caplog.set_level("INFO")
        place = placed("name")
        async with place.opened() as sink:
            await sink.write([an_answer("1", "yes", "a")])
        place.do("COMMENT ON TABLE {} IS 'Ask the search team; it''s theirs.'")
        async with place.opened() as sink:
            assert await sink.known([(a_message("1"), ("a",))]) == [Standing.OVER]

        first, mark = self.comment(place).splitlines()
        assert first == "Ask the search team; it's theirs."
        assert mark == 'nightshift: {"job": "texts", "task": "completion", "key": ["name"], "column": "answer"}'
        assert "the table is marked as this stream's" in caplog.text


@pytest.mark.gate
async def test_a_user_that_may_not_make_tables_uses_those_that_are_there(placed: Placed) -> None:
    schema = f"s_{unique()}"
    place = placed("name", table=f"{schema}.answers")
    place.do(f"CREATE SCHEMA {schema}")
    async with place.opened():
        pass
    place.do(f"REVOKE CREATE ON SCHEMA {schema} FROM CURRENT_USER")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        place.do(f"CREATE TABLE {schema}.more (a int)")
    async with place.opened() as sink:
        await sink.write([an_answer("1", "yes", "a")])
        await sink.write_dead_letters([a_death("2")])

    assert (place.answers(), place.dead()) == ({"1": "yes"}, {"2": "rejected"})


@pytest.mark.gate
async def test_a_user_without_rights_is_refused_in_the_servers_words(placed: Placed) -> None:
    place = placed("name")
    said = f"permission denied for table {place.table}"
    async with place.opened() as sink:
        await sink.write([an_answer("1", "yes", "a")])
        place.do("REVOKE INSERT ON {} FROM CURRENT_USER")
        with pytest.raises(Unwritable, match=said):
            await sink.write([an_answer("2", "yes", "b")])
        assert not await sink.sound()
    with pytest.raises(SinkRefused, match=said):
        await place.sink().open()


async def test_settings_in_the_address_count(placed: Placed) -> None:
    schema = f"s_{unique()}"
    place = placed()
    place.do(f"CREATE SCHEMA {schema}")
    sink = place.sink(psycopg.conninfo.make_conninfo(place.server.url, options=f"-c search_path={schema}"))
    await sink.open()
    await sink.write([an_answer("1")])
    await sink.close()

    assert place.ask(f"SELECT nightshift_message_id FROM {schema}.{{}}") == [("1",)]


async def test_a_dead_letter_is_kept_whole(placed: Placed) -> None:
    place = placed()
    async with place.opened() as sink:
        await sink.write_dead_letters([a_death(a_message("1", 5, tenant="ü", empty=""), "too_long", "too many\ntokens")])

    (row,) = place.ask(
        "SELECT message_id, ordering_key, attributes, data, reason, text, status, tries, model FROM {}_dead_letters"
    )
    assert row == ("1", "", {"tenant": "ü", "empty": ""}, b"data", "too_long", "too many\ntokens", 400, 2, MODEL)
