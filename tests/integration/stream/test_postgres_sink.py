"""The sink over a real PostgreSQL: one outcome for each message, the newest for each key, and what goes wrong."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import psycopg
import pytest

from nightshift.stream.messages import Dead, Message
from nightshift.stream.parts import Locked, Standing, Unavailable, Unwritable
from nightshift.stream.postgres import BadUrl, PostgresSink
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
    @pytest.mark.gate
    async def test_in_every_order_of_arrival_the_newest_message_of_a_key_stays(self, placed: Placed) -> None:
        place = placed("name")
        versions = [an_answer(a_message(f"m{n}", n), f"version {n}", "a") for n in range(3)]
        async with place.opened() as sink:
            for together, order in itertools.product((True, False), itertools.permutations(versions)):
                place.do("DELETE FROM {}")
                for batch in [order] if together else [[each] for each in order]:
                    await sink.write(batch)
                assert place.answers() == {"m2": "version 2"}, (together, order)

    @pytest.mark.gate
    async def test_at_the_same_instant_the_id_decides_in_every_order(self, placed: Placed) -> None:
        place = placed("name")
        one, two = an_answer(a_message("1000001"), "one", "a"), an_answer(a_message("1000002"), "two", "a")
        async with place.opened() as sink:
            for order in ([[one], [two]], [[two], [one]], [[one, two]], [[two, one]]):
                place.do("DELETE FROM {}")
                for batch in order:
                    await sink.write(batch)
                assert place.answers() == {"1000002": "two"}, order

    @pytest.mark.gate
    async def test_a_repeated_write_changes_nothing(self, placed: Placed) -> None:
        for keys in ((), ("name",)):
            place = placed(*keys)
            async with place.opened() as sink:
                await sink.write([an_answer("1", "first", *("a" for _ in keys))])
                before = place.ask("SELECT *, xmin::text FROM {}")
                await sink.write([an_answer("1", "again", *("a" for _ in keys), tries=9)])

            assert place.ask("SELECT *, xmin::text FROM {}") == before


class TestTheFirstOutcomeCounts:
    @pytest.mark.gate
    @pytest.mark.parametrize("keys", [(), ("name",)], ids=["by id", "by key"])
    async def test_a_message_that_is_answered_does_not_die_and_one_that_is_dead_is_not_answered(
        self, placed: Placed, keys: tuple[str, ...]
    ) -> None:
        place = placed(*keys)
        answers = [an_answer(name, name, *(name for _ in keys)) for name in ("1", "2", "3")]
        async with place.opened() as sink:
            await sink.write(answers[:1])
            await sink.bury([a_death("1"), a_death("2")])
            await sink.write(answers)
            await sink.bury([a_death("2", "too_long"), a_death("3")])

        assert place.answers() == {"1": "1", "3": "3"}
        assert place.dead() == {"2": "rejected"}

    @pytest.mark.gate
    async def test_a_message_that_was_answered_and_superseded_does_not_die(self, placed: Placed) -> None:
        """Its row is gone; only its key tells."""
        place = placed("name")
        old, new = an_answer(a_message("old", 0), "x", "a"), an_answer(a_message("new", 1), "y", "a")
        async with place.opened() as sink:
            await sink.write([old])
            await sink.write([new])
            dead = [replace(a_death(old.message), key=("a",)), replace(a_death(a_message("newer", 2)), key=("a",))]
            others = await sink.bury([*dead, replace(a_death("b"), key=("b",)), a_death("unread")])

        assert others == {"old"}
        assert place.dead().keys() == {"newer", "b", "unread"}

    async def test_who_buries_hears_which_have_another_outcome_and_again_the_same(self, placed: Placed) -> None:
        place = placed()
        async with place.opened() as sink:
            await sink.write([an_answer("1")])
            for _ in range(2):
                assert await sink.bury([a_death("1"), replace(a_death("2"), key=("2",))]) == {"1"}

    async def test_a_key_that_is_not_of_the_columns_type_does_not_keep_a_dead_letter_out(self, placed: Placed) -> None:
        place = placed("name")
        async with place.opened():
            place.do("ALTER TABLE {} ALTER name TYPE bigint USING 0")
        async with place.opened() as sink:
            await sink.write([an_answer(a_message("new", 1), "x", "7")])
            keys = {"old": "7", "odd": "no number", "1": "1", "2": "2", "huge": "9" * 30}
            others = await sink.bury([replace(a_death(name), key=(key,)) for name, key in keys.items()])

        assert others == {"old"}
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
                    await until_available(lambda: sink.bury([a_death(each) for each in some]))  # noqa: B023

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


class TestWhatIsKnown:
    @pytest.mark.gate
    async def test_a_message_is_over_if_it_or_a_newer_one_of_its_key_is_answered(self, placed: Placed) -> None:
        place = placed("name")
        older, same, newer = a_message("1", 0), a_message("2", 1), a_message("3", 2)
        async with place.opened() as sink:
            await sink.write([an_answer(same, "yes", "a")])
            known = await sink.known([(older, ("a",)), (same, ("a",)), (newer, ("a",))])
            others = await sink.known([(older, ("b",)), (same, None)])

        assert known == [Standing.OVER, Standing.OVER, Standing.NEW]
        assert others == [Standing.NEW, Standing.NEW]

    @pytest.mark.gate
    async def test_a_dead_letter_is_known_as_it_was_written_with_a_key_or_without(self, placed: Placed) -> None:
        place = placed("name")
        message = a_message("1", tenant="t")
        async with place.opened() as sink:
            await sink.bury([a_death(message, "too_long", "too many tokens")])
            known = await sink.known([(message, ("a",)), (a_message("2"), ("a",)), (message, None)])

        expected = Dead(message, "too_long", "too many tokens", 400, 2)
        assert known == [expected, Standing.NEW, expected]

    async def test_without_a_key_the_message_itself_is_looked_for(self, placed: Placed) -> None:
        place = placed()
        async with place.opened() as sink:
            await sink.write([an_answer("1")])
            assert await sink.known([(a_message(name), (name,)) for name in ("1", "2")]) == [Standing.OVER, Standing.NEW]

    async def test_nothing_is_known_of_nothing(self, placed: Placed) -> None:
        async with placed().opened() as sink:
            assert await sink.known([]) == []

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
            with pytest.raises(Unwritable):
                await sink.write([an_answer("1", "fine"), an_answer("2", "a\0b")])
            await sink.write([an_answer("1", "fine")])

        assert len(place.answers()) == 1

    async def test_a_key_that_is_too_long_for_its_index_is_unwritable(self, placed: Placed) -> None:
        place = placed("name")
        long = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=10_000))
        async with place.opened() as sink:
            with pytest.raises(Unwritable, match="index row"):
                await sink.write([an_answer("1", "yes", long)])
            assert await sink.known([(a_message("1"), (long,))]) == [Standing.NEW]
            await sink.bury([a_death("1", "unwritable")])

        assert place.dead() == {"1": "unwritable"}

    @pytest.mark.gate
    async def test_a_dead_letter_is_kept_whatever_characters_its_message_has(self, placed: Placed) -> None:
        place = placed()
        message = replace(a_message("1"), attributes={"a\0b": "c\0d"}, ordering_key="e\0f", data=b"\0\xff")
        async with place.opened() as sink:
            await sink.bury([a_death(message, text="g\0h"), a_death("2")])

        rows = place.ask("SELECT attributes, ordering_key, data, text FROM {}_dead_letters WHERE message_id = '1'")
        assert rows == [({"a\ufffdb": "c\ufffdd"}, "e\ufffdf", b"\0\xff", "g\ufffdh")]
        assert place.dead().keys() == {"1", "2"}


class TestABrokenConnection:
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
