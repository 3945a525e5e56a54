"""The sink over a real PostgreSQL: one outcome for each message, the newest for each key, and what goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import psycopg
import pytest

from nightshift.stream import postgres, session
from nightshift.stream.messages import Message
from nightshift.stream.ports import BadUrl, Locked, Standing, Unavailable, Unwritable
from nightshift.stream.postgres import PostgresSink
from tests.integration.emulators import PostgresServer
from tests.integration.stream.tables import Place, a_death, a_message, an_answer

pytestmark = pytest.mark.integration

Placed = Callable[..., Place]
SECRET = "hush hush"
TRIES = 200
"""Of one call that may be unavailable; each waits a little longer for the others."""


@pytest.fixture
def placed(postgres_server: PostgresServer, tmp_path: Path) -> Placed:
    return lambda *keys, **options: Place(postgres_server, tmp_path, *keys, **options)


class TestTheNewestCounts:
    @pytest.mark.parametrize(
        ("older", "newer"),
        [
            ("999999999999", "1000000000000"),
            ("9.r1", "10"),
            ("17", "17.r1"),
            ("17.r9", "17.r10"),
            ("a/b/9", "a/b/10"),
        ],
    )
    async def test_at_the_same_instant_ids_count_by_their_value(self, placed: Placed, older: str, newer: str) -> None:
        place = placed("name")
        one, two = (an_answer(a_message(name), name, "a") for name in (older, newer))
        async with place.opened() as sink:
            for order in ([[one], [two]], [[two], [one]], [[one, two]]):
                place.do("DELETE FROM {}")
                for batch in order:
                    await sink.write(batch)
                assert place.answers() == {newer: newer}, order
                known = await sink.known([(one.message, ("a",)), (two.message, ("a",))])
                assert known == [Standing.OVER, Standing.OVER]

    async def test_in_order_the_one_that_is_delivered_last_at_the_same_instant_is_the_newest(self, placed: Placed) -> None:
        place = placed("name", ordering=True)
        one, two = (an_answer(a_message(name), name, "a") for name in ("20", "10"))
        async with place.opened() as sink:
            await sink.write([one])
            assert await sink.known([(two.message, ("a",)), (one.message, ("a",))]) == [Standing.NEW, Standing.OVER]
            await sink.write([two])
            assert place.answers() == {"10": "10"}
            late = [a_message("9.r1"), a_message("5", -1)]
            assert await sink.known([(each, ("a",)) for each in late]) == [Standing.OVER, Standing.OVER]
            await sink.write([an_answer(each, "late", "a") for each in late])
            assert await sink.write_dead_letters([replace(a_death(a_message("8")), key=("a",))]) == frozenset()

        assert (place.answers(), place.dead()) == ({"10": "10"}, {"8": "rejected"})

    @pytest.mark.gate
    async def test_a_repeated_write_changes_nothing(self, placed: Placed) -> None:
        for keys in ((), ("name",)):
            place = placed(*keys)
            async with place.opened() as sink:
                await sink.write([an_answer("1", "first", *("a" for _ in keys))])
                before = place.ask("SELECT *, xmin::text FROM {}")
                await sink.write([an_answer("1", "again", *("a" for _ in keys), tries=9)])

            assert place.ask("SELECT *, xmin::text FROM {}") == before

    @pytest.mark.gate
    @pytest.mark.parametrize("ordering", [False, True])
    @pytest.mark.parametrize("keys", [(), ("name",)], ids=["by id", "by key"])
    async def test_a_batch_leaves_what_the_same_answers_leave_one_by_one(
        self, placed: Placed, keys: tuple[str, ...], ordering: bool
    ) -> None:
        """Whichever of them have died meanwhile, and whatever is there already."""
        rng = random.Random(11)
        columns = "SELECT nightshift_message_id, answer, nightshift_tries FROM {} ORDER BY 1"
        places = [placed(*keys, ordering=ordering and bool(keys)) for _ in range(2)]
        names = [f"{n}{end}" for n in (8, 9, 10, 11) for end in ("", ".r1", ".r2")]
        async with places[0].opened() as together, places[1].opened() as alone:
            for turn in range(25):
                for place in places:
                    place.do("DELETE FROM {}; DELETE FROM {}_dead_letters")
                batches = [
                    [
                        an_answer(
                            a_message(name, rng.randrange(2)), f"{turn} {n}", *rng.choices(["a", "b"], k=len(keys)), tries=n
                        )
                        for n, name in enumerate(rng.sample(names, 6))
                    ]
                    for _ in range(2)
                ]
                dead = [a_death(name) for name in rng.sample(names, 3)]
                for sink in (together, alone):
                    await sink.write_dead_letters(dead)
                for batch in batches:
                    assert await together.write(batch) == frozenset()
                    for each in sorted(batch, key=lambda each: each.key):
                        await alone.write([each])
                assert places[0].ask(columns) == places[1].ask(columns), (turn, batches, dead)

    @pytest.mark.gate
    async def test_texts_that_are_one_key_to_their_column_are_written_one_after_the_other(self, placed: Placed) -> None:
        place = placed("name")
        async with place.opened():
            place.do("ALTER TABLE {} ALTER name TYPE bigint USING 0")
        async with place.opened() as sink:
            keys = ["7", "07", "8", "007", "+7", "9"]
            await sink.write([an_answer(a_message(f"{n}", n), f"v{n}", key) for n, key in enumerate(keys)])

        assert place.answers() == {"4": "v4", "2": "v2", "5": "v5"}

    @pytest.mark.gate
    async def test_a_write_of_many_bytes_goes_in_parts(self, placed: Placed, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(postgres, "COLLECT", replace(postgres.COLLECT, size=1000))
        place = placed()
        async with place.opened() as sink:
            place.do("ALTER TABLE {} ADD part xid8 DEFAULT pg_current_xact_id()")
            await sink.write([an_answer(f"{n}", "x" * size) for n, size in enumerate((400, 400, 400, 5000, 1))])
            await sink.write([])

        parts = place.ask("SELECT count(*) FROM {} GROUP BY part ORDER BY part::text::bigint")
        assert parts == [(2,), (1,), (1,), (1,)]


class TestTheFirstOutcomeCounts:
    async def test_a_key_that_is_not_of_the_columns_type_does_not_keep_a_dead_letter_out(self, placed: Placed) -> None:
        place = placed("name")
        async with place.opened():
            place.do("ALTER TABLE {} ALTER name TYPE bigint USING 0")
        async with place.opened() as sink:
            await sink.write([an_answer(a_message("new", 1), "x", "7")])
            keys = {"old": "7", "odd": "no number", "1": "1", "2": "2", "huge": "9" * 30}
            dead = [replace(a_death(name), key=(key,)) for name, key in keys.items()]
            with pytest.raises(Unwritable):
                await sink.write_dead_letters(dead)
            others = [await sink.write_dead_letters([each]) for each in dead]

        assert others == [{"old"}, *[set()] * 4]
        assert place.dead().keys() == {"odd", "1", "2", "huge"}

    @pytest.mark.gate
    @pytest.mark.parametrize("keys", [(), ("name",)], ids=["by id", "by key"])
    async def test_answers_and_burials_that_race_leave_each_message_one_outcome(
        self, placed: Placed, keys: tuple[str, ...]
    ) -> None:
        place = placed(*keys)
        names = [f"m{n}" for n in range(40)]
        rng = random.Random(7)

        async def part(sink: PostgresSink, *, answers: bool) -> None:
            for _ in range(6):
                some = rng.sample(names, 15)
                if answers:
                    await until_available(lambda: sink.write([an_answer(each, each, *(each for _ in keys)) for each in some]))  # noqa: B023
                else:
                    await until_available(lambda: sink.write_dead_letters([a_death(each) for each in some]))  # noqa: B023

        sinks = [place.sink() for _ in range(6)]
        await asyncio.gather(*(until_available(sink.open) for sink in sinks))
        async with asyncio.TaskGroup() as group:
            for number, sink in enumerate(sinks):
                group.create_task(part(sink, answers=number % 2 == 0))
        for sink in sinks:
            await sink.close()

        answered, dead = place.answers(), place.dead()
        assert answered.keys() & dead.keys() == set()
        assert answered.keys() | dead.keys() == set(names)
        assert answered, "no answer was ever first: nothing raced"
        assert dead, "no burial was ever first: nothing raced"

    @pytest.mark.gate
    async def test_writers_of_the_same_keys_in_other_orders_do_not_wait_for_each_other_in_a_circle(
        self, placed: Placed
    ) -> None:
        place = placed("name")
        sinks = [place.sink() for _ in range(4)]
        await asyncio.gather(*(sink.open() for sink in sinks))
        rng = random.Random(3)

        async def write(sink: PostgresSink, writer: int) -> None:
            for turn in range(10):
                some = [an_answer(a_message(f"{turn}-{writer}-{n}", turn), "a", f"k{n}") for n in range(30)]
                rng.shuffle(some)
                await sink.write(some)  # Not tried again: a circle would end in Unavailable.

        await asyncio.gather(*(write(sink, number) for number, sink in enumerate(sinks)))
        for sink in sinks:
            await sink.close()

        assert len(place.answers()) == 30

    @pytest.mark.gate
    async def test_rows_are_written_in_the_order_of_their_keys_whatever_the_plan(self, placed: Placed) -> None:
        """That order keeps writers from waiting for each other in a circle; a merge join would have that of the ids."""
        place = placed("name")
        merging = "-c enable_hashjoin=off -c enable_nestloop=off"
        sink = place.sink(psycopg.conninfo.make_conninfo(place.server.url, options=merging))
        await sink.open()
        await sink.write_dead_letters([a_death(f"d{n}") for n in range(50)])
        place.do("ANALYZE {}_dead_letters")
        await sink.write([an_answer(f"m{100 - n:03}", "a", f"k{n:03}") for n in random.Random(1).sample(range(100), 100)])
        await sink.close()

        names = [name for (name,) in place.ask("SELECT name FROM {} ORDER BY ctid")]
        assert names == [f"k{n:03}" for n in range(100)]

    @pytest.mark.gate
    async def test_a_sink_that_opens_waits_for_those_that_open_before_it(
        self, placed: Placed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Longer than a statement waits for a row; later statements of the same transaction wait no longer than before."""
        monkeypatch.setattr(session, "_LIMITS", {**session._LIMITS, "lock_timeout": "50ms"})
        place = placed()
        with psycopg.connect(place.server.url) as other:
            other.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [place.table])
            sink = place.sink()
            opening = asyncio.create_task(sink.open())
            await until(lambda: place.ask("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'") != [])
            assert not (await asyncio.wait({opening}, timeout=0.3))[0]
            other.rollback()
            await opening
        with psycopg.connect(place.server.url) as other:
            other.execute(f"LOCK TABLE {place.table} IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(Unavailable, match="lock timeout"):
                await sink.open()
            other.rollback()
        await sink.close()


class TestWhatIsKnown:
    async def test_one_key_that_is_not_of_the_columns_type_does_not_hide_the_others(self, placed: Placed) -> None:
        place = placed("id")
        async with place.opened():
            pass
        place.do("ALTER TABLE {} ALTER id TYPE integer USING id::integer")
        async with place.opened() as sink:
            await sink.write([an_answer(f"{n}", "yes", f"{n}") for n in range(0, 20, 2)])
            asked: list[tuple[Message, tuple[str, ...] | None]] = [
                (a_message(f"{n}"), (f"{n}" if n % 5 else "five",)) for n in range(20)
            ]
            known = await sink.known(asked)

        assert known == [Standing.OVER if n % 2 == 0 and n % 5 else Standing.NEW for n in range(20)]


class TestWhatCannotBeWritten:
    VECTORS: ClassVar = {"task": "embedding", "request": {"input": "{{ text }}", "dimensions": 2}}

    @pytest.mark.gate
    async def test_a_vector_of_another_width_is_unwritable_and_nothing_of_its_batch_is_written(self, placed: Placed) -> None:
        place = placed(work=self.VECTORS)
        good, bad = an_answer("1", [1, 2]), an_answer("2", [1, 2, 3])
        async with place.opened() as sink:
            for batch in ([good, bad], [bad, good], [bad]):
                with pytest.raises(Unwritable, match="expected 2 dimensions, not 3"):
                    await sink.write(batch)
                assert place.answers() == {}
            await sink.write([good])

        assert place.answers() == {"1": "[1,2]"}

    @pytest.mark.gate
    @pytest.mark.parametrize("column", ["text", "jsonb"])
    async def test_a_text_with_nul_is_unwritable_and_the_connection_goes_on(self, placed: Placed, column: str) -> None:
        place = placed()
        async with place.opened():
            pass
        place.do(f"ALTER TABLE {{}} ALTER answer TYPE {column} USING answer::{column}")
        async with place.opened() as sink:
            with pytest.raises(Unwritable, match='the column "answer" has a NUL character'):
                await sink.write([an_answer("1", "fine"), an_answer("2", "a\0b")])
            await sink.write([an_answer("1", "fine")])

        assert len(place.answers()) == 1

    @pytest.mark.gate
    async def test_what_cannot_be_held_is_named_with_its_column(self, placed: Placed) -> None:
        place = placed("name", work={"task": "classify", "request": {"input": "{{ text }}"}})
        fine = {"label": "\\u0000", "score": 0.5, "scores": [0.5]}
        async with place.opened() as sink:
            for key, label, said in [
                ("a", "b\0", '"answer" has a NUL character'),
                ("a", "\\\0", '"answer" has a NUL character'),
                ("a\0", "b", '"name" has a NUL character'),
                ("a\ud800", "b", '"name" has half a surrogate pair'),
            ]:
                with pytest.raises(Unwritable, match=said):
                    await sink.write([an_answer("1", fine, "fine"), an_answer("2", {**fine, "label": label}, key)])
            await sink.write([an_answer("1", fine, "ä")])

        assert len(place.answers()) == 1

    @pytest.mark.gate
    async def test_a_row_that_a_trigger_swallows_is_unwritable_and_the_others_are_written(self, placed: Placed) -> None:
        place = placed("name")
        batch = [an_answer(f"{n}", "bad" if n == 2 else "good", f"k{n}") for n in range(4)]
        async with place.opened() as sink:
            await sink.write([an_answer("0", "good", "k0")])
            place.do(
                "CREATE FUNCTION f_{}() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN "
                "RETURN CASE WHEN NEW.answer = ''bad'' THEN NULL ELSE NEW END; END'; "
                "CREATE TRIGGER t BEFORE INSERT ON {} FOR EACH ROW EXECUTE FUNCTION f_{}()"
            )
            with pytest.raises(Unwritable, match="has no row of it, and no error says why"):
                await sink.write(batch)
            assert place.answers().keys() == {"0"}
            await sink.write([each for each in batch if each.prediction == "good"])
            with pytest.raises(Unwritable):
                await sink.write(batch[2:3])
            assert await sink.sound(), "it takes others"
            place.do(
                "CREATE FUNCTION g_{}() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; "
                "CREATE TRIGGER u BEFORE INSERT ON {} FOR EACH ROW EXECUTE FUNCTION g_{}()"
            )
            assert not await sink.sound(), "it takes none: no answer is to blame"
        async with place.opened() as another:
            assert not await another.sound(), "by a row of its model"
        assert place.answers().keys() == {"0", "1", "3"}

    @pytest.mark.gate
    @pytest.mark.parametrize("does", ["RETURN NULL", "RAISE EXCEPTION ''rows are only added''"])
    async def test_a_table_to_which_rows_are_only_added_is_sound_while_ids_are_keys(self, placed: Placed, does: str) -> None:
        place = placed()
        async with place.opened() as sink:
            place.do(
                f"CREATE FUNCTION f_{{}}() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN {does}; END'; "
                "CREATE TRIGGER t BEFORE UPDATE OR DELETE ON {} FOR EACH ROW EXECUTE FUNCTION f_{}()"
            )
            await sink.write([an_answer("1")])
            with pytest.raises(Unwritable, match="NUL"):
                await sink.write([an_answer("2", "a\0")])
            assert await sink.sound(), "it takes others"
            place.do("CREATE TRIGGER u AFTER INSERT ON {} FOR EACH ROW EXECUTE FUNCTION f_{}()")
            assert await sink.sound() is (does == "RETURN NULL"), "nothing comes of what is returned after the row is there"
        assert place.answers() == {"1": "yes"}

    @pytest.mark.gate
    async def test_newer_answers_of_keys_are_held_while_a_trigger_keeps_rows_as_they_are(self, placed: Placed) -> None:
        """The row that is there is older, and whichever message comes, its change is kept out: none of them is to blame."""
        place = placed("name")
        async with place.opened() as sink:
            await sink.write([an_answer(a_message("1"), "old", "a")])
            place.do(
                "CREATE FUNCTION f_{}() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; "
                "CREATE TRIGGER t BEFORE UPDATE ON {} FOR EACH ROW EXECUTE FUNCTION f_{}()"
            )
            with pytest.raises(Unwritable, match="has no row of it"):
                await sink.write([an_answer(a_message("2", 1), "new", "a")])
            assert not await sink.sound()
            await sink.write([an_answer("3", "yes", "b")])
            assert await sink.known([(a_message("2", 1), ("a",))]) == [Standing.NEW]
            place.do("DROP TRIGGER t ON {}")
            await sink.write([an_answer(a_message("2", 1), "new", "a")])
        assert place.answers() == {"2": "new", "3": "yes"}

    @pytest.mark.gate
    async def test_a_dead_letter_that_a_trigger_swallows_is_not_taken_for_one_that_has_another_outcome(
        self, placed: Placed
    ) -> None:
        place = placed("name")
        async with place.opened() as sink:
            await sink.write([an_answer("1", "yes", "a")])
            place.do(
                "CREATE FUNCTION f_{}() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; "
                "CREATE TRIGGER t BEFORE INSERT ON {}_dead_letters FOR EACH ROW EXECUTE FUNCTION f_{}()"
            )
            assert await sink.write_dead_letters([a_death("1")]) == {"1"}
            with pytest.raises(Unwritable, match="has no row of it"):
                await sink.write_dead_letters([a_death("1"), a_death("2")])

    async def test_a_key_that_is_too_long_for_its_index_is_unwritable(self, placed: Placed) -> None:
        place = placed("name")
        long = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=10_000))
        async with place.opened() as sink:
            with pytest.raises(Unwritable, match="index row"):
                await sink.write([an_answer("1", "yes", long)])
            assert await sink.known([(a_message("1"), (long,))]) == [Standing.NEW]
            await sink.write_dead_letters([a_death("1", "unwritable")])

        assert place.dead() == {"1": "unwritable"}

    @pytest.mark.gate
    async def test_a_dead_letter_is_kept_whatever_characters_its_message_has(self, placed: Placed) -> None:
        place = placed()
        message = replace(a_message("1"), attributes={"a\0b": "c\0d"}, ordering_key="e\0f", data=b"\0\xff")
        async with place.opened() as sink:
            await sink.write_dead_letters([a_death(message, text="g\0h"), a_death("2")])

        rows = place.ask("SELECT attributes, ordering_key, data, text FROM {}_dead_letters WHERE message_id = '1'")
        assert rows == [({"a\ufffdb": "c\ufffdd"}, "e\ufffdf", b"\0\xff", "g\ufffdh")]
        assert place.dead().keys() == {"1", "2"}

    @pytest.mark.gate
    async def test_an_id_with_nul_is_kept_and_known(self, placed: Placed) -> None:
        """Whoever may publish may set the id of a redriven message."""
        place = placed()
        dead, answered = a_death("a\0.r1"), an_answer("b\0.r1")
        async with place.opened() as sink:
            assert await sink.write_dead_letters([dead, a_death("c")]) == frozenset()
            await sink.write([answered])
            known = await sink.known([(each.message, (each.message.id,)) for each in (dead, answered)])
            assert await sink.write_dead_letters([a_death(answered.message)]) == {"b\0.r1"}

        assert known == [dead, Standing.OVER]
        assert place.dead().keys() == {"a\ufffd.r1", "c"}

    @pytest.mark.parametrize(
        "rule",
        [
            (
                "CREATE FUNCTION f_{} () RETURNS trigger LANGUAGE plpgsql AS "
                "'BEGIN IF NEW.answer = ''bad'' THEN RAISE EXCEPTION ''no''; END IF; RETURN NEW; END'; "
                "CREATE TRIGGER t BEFORE INSERT OR UPDATE ON {} FOR EACH ROW EXECUTE FUNCTION f_{}()"
            ),
            (
                "ALTER TABLE {} ENABLE ROW LEVEL SECURITY; ALTER TABLE {} FORCE ROW LEVEL SECURITY; "
                "CREATE POLICY p ON {} USING (true) WITH CHECK (answer <> 'bad')"
            ),
            "ALTER TABLE {} ADD CHECK (answer <> 'bad')",
            "ALTER TABLE {} ADD UNIQUE (answer) DEFERRABLE INITIALLY DEFERRED",
        ],
        ids=["trigger", "row level security", "check", "constraint that is checked late"],
    )
    async def test_a_row_that_a_rule_of_the_owner_refuses_is_unwritable_and_the_sink_is_sound(
        self, placed: Placed, rule: str
    ) -> None:
        place = placed()
        async with place.opened() as sink:
            assert not await sink.sound(), "nothing was ever written"
            await sink.write([an_answer("0", "bad")])
            place.do("DELETE FROM {}" if "UNIQUE" not in rule else "SELECT 1")
            place.do(rule)
            await sink.write([an_answer("1", "fine")])
            with pytest.raises(Unwritable):
                await sink.write([an_answer("2", "bad"), an_answer("3", "good")])
            assert await sink.sound()
            place.do("DELETE FROM {}")
            assert await sink.sound()
            assert place.answers() == {}, "what was deleted stays so"
            await sink.write([an_answer("3", "good")])
        async with place.opened() as another:
            assert await another.sound(), "by a row of its model"
            place.do("ALTER TABLE {} ADD tenant text NOT NULL DEFAULT 'x'; ALTER TABLE {} ALTER tenant DROP DEFAULT")
            assert not await another.sound()

    @pytest.mark.gate
    @pytest.mark.parametrize("code", ["40001", "53200", "57014", "08006"])
    async def test_a_row_for_which_the_server_breaks_off_is_set_aside(self, placed: Placed, code: str) -> None:
        """A trigger may raise what otherwise tells of the server's state: such a row must not hold up the others for ever."""
        place = placed()
        place_of = place.table.replace(".", "_")
        answers = [an_answer(f"{n}", "bad" if n == 5 else f"v{n}") for n in range(12)]
        async with place.opened() as sink:
            await sink.write([an_answer("before", "fine")])
            place.do(
                f"CREATE FUNCTION f_{place_of}() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF NEW.answer = ''bad'' THEN "
                f"RAISE EXCEPTION ''no'' USING ERRCODE = ''{code}''; END IF; RETURN NEW; END'; "
                f"CREATE TRIGGER t BEFORE INSERT ON {{}} FOR EACH ROW EXECUTE FUNCTION f_{place_of}()"
            )
            tries, held = 0, None
            while held is None:
                tries += 1
                assert tries < 20
                with contextlib.suppress(Unavailable):
                    held = await sink.write(answers)
            assert held == {"5"}
            assert place.answers().keys() == {"before", *(f"{n}" for n in range(12) if n != 5)}
            place.do("DROP TRIGGER t ON {}")
            assert await sink.write(answers) == frozenset()


class TestWhatOthersHold:
    @pytest.mark.gate
    @pytest.mark.parametrize("keys", [(), ("name",)], ids=["by id", "by key"])
    async def test_a_locked_row_is_told_and_the_others_of_its_batch_are_written(
        self, placed: Placed, keys: tuple[str, ...]
    ) -> None:
        place = placed(*keys)
        batch = [an_answer(a_message(f"{n}", 1), f"v{n}", *(f"{n}" for _ in keys)) for n in range(20)]
        async with place.opened() as sink:
            await sink.write([an_answer("7", "old", *("7" for _ in keys))])
            with psycopg.connect(place.server.url) as other:
                other.execute(f"SELECT FROM {place.table} WHERE nightshift_message_id = '7' FOR UPDATE")
                assert await sink.write(batch) == {"7"}
                assert len(place.answers()) == 20
                assert await sink.write_dead_letters([a_death("dead")]) == frozenset(), "nor does it hold up a dead letter"
            assert await sink.write(batch) == frozenset()

        assert place.answers() == {f"{n}": f"v{n}" for n in range(20)}

    async def test_a_row_that_another_is_inserting_is_told(self, placed: Placed) -> None:
        place = placed("name")
        async with place.opened() as sink:
            with psycopg.connect(place.server.url) as other:
                other.execute(f"INSERT INTO {place.table} VALUES ('5', 'theirs', 'x', now(), 'm', 1)")
                assert await sink.write([an_answer(f"{n}", "yes", f"{n}") for n in range(8)]) == {"5"}
                other.rollback()

        assert len(place.answers()) == 7

    @pytest.mark.gate
    async def test_dead_letters_and_answers_go_on_while_somebody_vacuums(self, placed: Placed) -> None:
        place = placed()
        async with place.opened() as sink:
            with psycopg.connect(place.server.url) as other:
                other.execute(f"LOCK TABLE {place.table} IN SHARE UPDATE EXCLUSIVE MODE")  # As VACUUM and ANALYZE do.
                assert await sink.write_dead_letters([a_death("1")]) == frozenset()
                assert await sink.write([an_answer("2")]) == frozenset()

        assert (set(place.answers()), set(place.dead())) == ({"2"}, {"1"})


class TestABrokenConnection:
    async def test_one_that_dies_without_a_word_is_given_up_and_replaced(
        self, placed: Placed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(session, "TRANSACTION_S", 1.0)
        place = placed()
        async with silenced(place.server.url) as (url, silence):
            sink = place.sink(url)
            await sink.open()
            silence()
            with pytest.raises(Unavailable, match="the server has not answered"):
                await sink.write([an_answer("1")])
            monkeypatch.setattr(session, "TRANSACTION_S", 30.0)
            await sink.write([an_answer("1")])
            await sink.close()

        assert place.answers() == {"1": "yes"}

    async def test_what_the_server_has_no_time_for_is_written_in_parts(self, placed: Placed) -> None:
        place = placed()
        async with place.opened():
            place.do(
                "CREATE FUNCTION f_{} () RETURNS trigger LANGUAGE plpgsql AS "
                "'BEGIN PERFORM pg_sleep(0.05); RETURN NEW; END'; "
                "CREATE TRIGGER t BEFORE INSERT ON {} FOR EACH ROW EXECUTE FUNCTION f_{}()"
            )
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(session, "TRANSACTION_S", 1.5)
            async with place.opened() as sink:
                await until_available(lambda: sink.write([an_answer(f"{n}") for n in range(60)]))

        assert len(place.answers()) == 60

    async def test_nothing_is_left_behind_for_the_next_who_gets_the_connection(self, placed: Placed) -> None:
        """As behind PgBouncer, which may give each transaction another one, and refuses the startup parameter `options`."""
        place = placed()
        async with place.opened() as sink:
            for n in range(8):
                await sink.write([an_answer(f"{n}")])
            connection = sink._writing._connection
            assert connection is not None
            for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
                row = await (await connection.execute(f"SHOW {name}")).fetchone()
                assert row == ("0",)
            prepared = await (await connection.execute("SELECT count(*) FROM pg_prepared_statements")).fetchone()
            assert prepared == (0,)
            assert "options" not in {word.split("=")[0] for word in connection.info.dsn.split()}

    def kill_all(self, place: Place) -> int:
        """Ends the connections of sinks; the tests of one server run one after the other."""
        found = place.ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'nightshift'")
        return len(found)

    @pytest.mark.gate
    async def test_between_two_calls_it_is_unavailable_once_and_works_again(self, placed: Placed) -> None:
        place = placed()
        async with place.opened() as sink:
            await sink.known([(a_message("1"), ("1",))])
            assert self.kill_all(place) >= 2
            for call in (lambda: sink.write([an_answer("1")]), lambda: sink.known([(a_message("1"), ("1",))])):
                with pytest.raises(Unavailable):
                    await call()
            await sink.write([an_answer("1")])
            assert await sink.known([(a_message("1"), ("1",))]) == [Standing.OVER]

    @pytest.mark.gate
    async def test_in_the_middle_of_a_write_it_is_unavailable_and_nothing_is_half_written(self, placed: Placed) -> None:
        place = placed()
        async with place.opened() as sink:
            with psycopg.connect(place.server.url) as blocking:
                blocking.execute(f"INSERT INTO {place.table} SELECT 'x', '2', now(), 'm', 1")
                writing = asyncio.create_task(sink.write([an_answer(name) for name in ("1", "2", "3")]))
                await until(lambda: place.ask("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'") != [])
                self.kill_all(place)
                with pytest.raises(Unavailable):
                    await writing
                blocking.rollback()
            assert place.answers() == {}
            await sink.write([an_answer(name) for name in ("1", "2", "3")])

        assert place.answers().keys() == {"1", "2", "3"}

    async def test_a_write_that_is_cancelled_is_not_half_done_and_the_next_one_works(self, placed: Placed) -> None:
        place = placed()
        async with place.opened() as sink:
            with psycopg.connect(place.server.url) as blocking:
                blocking.execute(f"INSERT INTO {place.table} SELECT 'x', '2', now(), 'm', 1")
                writing = asyncio.create_task(sink.write([an_answer(name) for name in ("1", "2")]))
                await until(lambda: place.ask("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'") != [])
                writing.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await writing
                blocking.rollback()
            await sink.write([an_answer("3")])

        assert place.answers().keys() == {"3"}


class TestTheAddress:
    @pytest.mark.gate
    @pytest.mark.parametrize(
        "url",
        [
            f"postgresql://u:{SECRET}@127.0.0.1:1/d",
            "postgresql://u:hushhush@127.0.0.1:1/d",
            "postgresql://u:hush@hush@127.0.0.1:1/d",
            "postgresql://u:hush/hush@127.0.0.1:1/d",
            "postgresql://u:12/hush@127.0.0.1:1/d",
            "postgresql://u:hush#hush@127.0.0.1:1/d",
            "postgresql://u:hush?hush@127.0.0.1:1/d",
            "postgresql://u:hush%zz@127.0.0.1:1/d",
            "postgresql://u:hush:hush@127.0.0.1:1/d",
            "postgresql://u:hush[hush@127.0.0.1:1/d",
            "host=127.0.0.1 port=1 user=u password=hush hush",
            "host=127.0.0.1 port=1 user=u password=hush",
            "hush",
        ],
    )
    async def test_no_error_tells_the_password(self, placed: Placed, url: str, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG)
        place = placed()
        with pytest.raises((BadUrl, Unavailable)) as caught:
            await place.sink(url).open()

        said = str(caught.value) + repr(caught.value) + repr(caught.value.__cause__) + caplog.text
        assert "hush" not in said

    @pytest.mark.gate
    async def test_a_password_that_the_server_refuses_is_not_told(self, placed: Placed) -> None:
        place = placed()
        url = psycopg.conninfo.make_conninfo(place.server.url, password="hush")
        with pytest.raises(Locked, match="password authentication failed") as caught:
            await place.sink(url).open()

        assert "hush" not in repr(caught.value) + repr(caught.value.__cause__)


@asynccontextmanager
async def silenced(url: str) -> AsyncIterator[tuple[str, Callable[[], None]]]:
    """A way to a server, and what makes its connections of now fall silent: nothing is passed on, and nobody hangs up."""
    parts = psycopg.conninfo.conninfo_to_dict(url)
    passing: list[asyncio.Event] = []

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, silent: asyncio.Event) -> None:
        while (data := await reader.read(65536)) and not silent.is_set():
            writer.write(data)
        if not silent.is_set():
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        silent = asyncio.Event()
        passing.append(silent)
        host = str(parts["host"])
        if host.startswith("/"):
            up, down = await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{parts['port']}")
        else:
            up, down = await asyncio.open_connection(host, int(str(parts["port"])))
        await asyncio.gather(copy(reader, down, silent), copy(up, writer, silent))

    def silence() -> None:
        for each in passing:
            each.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield (
            psycopg.conninfo.make_conninfo(url, host="127.0.0.1", port=port),
            silence,
        )
    finally:
        server.close()


async def until(fact: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not fact():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def until_available(call: Callable[[], Awaitable[object]]) -> None:
    """Repeats a call as the subscriber does."""
    for tries in range(TRIES):
        try:
            await call()
        except Unavailable:
            await asyncio.sleep(0.01 * tries)
        else:
            return
    raise AssertionError(f"unavailable {TRIES} times")
