"""The parts of a subscriber that are pure: leases, what is held, lanes, dead letters as messages, counts."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from nightshift.driver.backoff import Backoff
from nightshift.stream.dead_letter_message import ATTRIBUTES_MOST, MESSAGE_BYTES_MOST, VALUE_BYTES_MOST, Announcement
from nightshift.stream.in_flight import ASIDE_PART, MESSAGE_BYTES, PULL_MOST, SIZE_GUESS, InFlight, Lanes, Place
from nightshift.stream.leases import KEPT, LEAST_S, MOST_S, Leases
from nightshift.stream.messages import Dead, Delivery, Message
from nightshift.stream.ports import BadUrl, Collect, Unsettled
from nightshift.stream.schema import literal
from nightshift.stream.settle import Settler
from nightshift.stream.sink_address import parse
from nightshift.stream.stats import StreamStats

pytestmark = pytest.mark.unit

PUBLISHED = datetime(2026, 11, 20, 12, 30, tzinfo=UTC)
OWN_LEASE_S = 10.0
"""A subscription's own deadline, at least."""


def a_message(name: str = "1", data: bytes = b"data", attributes: Mapping[str, str] | None = None) -> Message:
    return Message(name, data, attributes or {}, "", PUBLISHED)


class TestLeases:
    def test_a_message_is_extended_on_receipt(self) -> None:
        """Part of its lease may have passed on the way, and what was pulled may wait."""
        leases = Leases()
        assert leases.received("a", "a1", 100.0)

        assert leases.due(100.0) == {"a1": "a"}
        assert leases.due(100.0) == {}, "it counts as extended"

    @pytest.mark.parametrize(
        ("held_s", "lease_s"), [(0, LEAST_S), (10, LEAST_S), (11, 22), (60.9, 121), (299, 598), (300, MOST_S), (90_000, MOST_S)]
    )
    def test_a_lease_is_twice_as_long_as_the_oldest_is_held_within_bounds(self, held_s: float, lease_s: int) -> None:
        leases = Leases()
        leases.received("old", "o1", 100.0)
        leases.received("young", "y1", 100.0 + held_s)

        assert leases.lease_s(100.0 + held_s) == lease_s
        assert leases.lease_s(100.0) == LEAST_S

    def test_when_the_oldest_is_over_leases_are_short_again(self) -> None:
        leases = Leases()
        leases.received("old", "o1", 0.0)
        leases.received("young", "y1", 100.0)
        leases.end("old")

        assert leases.lease_s(110.0) == LEAST_S

    def test_each_is_extended_when_half_of_its_lease_is_left(self) -> None:
        leases = Leases()
        leases.received("a", "a1", 0.0)
        times = [float(now) for now in range(2000) if leases.due(float(now))]

        # Leases of 20, 20, 40, 80, 160, 320, and then of 600 seconds.
        assert times == [0, 10, 20, 40, 80, 160, 320, 620, 920, 1220, 1520, 1820]

    def test_no_lease_runs_out_while_its_message_is_held(self) -> None:
        leases, rng = Leases(), random.Random(5)
        ends: dict[str, float] = {}
        for now in range(3000):
            if now < 1000 and rng.random() < 0.3:
                leases.received(f"m{now}", f"a{now}", now)
                ends[f"m{now}"] = now + OWN_LEASE_S
            for name in leases.due(now).values():
                ends[name] = now + leases.lease_s(now)
            assert all(end > now for end in ends.values()), now
            for name in [name for name in ends if rng.random() < 0.002]:
                leases.end(name)
                del ends[name]
            assert len(leases) == len(ends)

    @pytest.mark.gate
    def test_what_is_over_takes_no_memory_however_long_another_is_held(self) -> None:
        """One that is held for ten minutes makes the leases of all others as long, and each had an entry until its end."""
        leases = Leases()
        leases.received("old", "o1", 0.0)
        leases.due(0.0)

        def pass_by(first: int, count: int) -> None:
            for n in range(first, first + count):
                leases.received(f"m{n}", f"a{n}", 600.0)
                leases.due(600.0)
                leases.end(f"m{n}")

        pass_by(0, 1000)
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            pass_by(1000, 20_000)
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

        assert after - before < 200_000, "bytes; an entry of each would be 12 MB"
        assert leases.due(10_000.0) == {"o1": "old"}

    def test_of_several_deliveries_the_newest_is_extended_and_acknowledged_and_all_are_given_back(self) -> None:
        leases = Leases()
        assert leases.received("a", "a1", 0.0)
        assert leases.due(0.0) == {"a1": "a"}
        assert not leases.received("a", "a2", 1.0)

        assert leases.ack_id("a") == "a2"
        assert leases.due(1.0) == {"a2": "a"}, "on receipt, too"
        assert len(leases) == 1
        assert leases.end("a") == ["a1", "a2"]
        assert len(leases) == 0

    def test_a_message_that_comes_again_and_again_has_a_few_ack_ids(self) -> None:
        leases = Leases()
        for n in range(100):
            leases.received("a", f"a{n}", float(n))

        assert leases.end("a") == [f"a{n}" for n in range(100 - KEPT, 100)]

    def test_a_lease_that_is_over_is_extended_and_acknowledged_no_more_until_the_message_comes_again(self) -> None:
        leases = Leases()
        leases.received("a", "a1", 0.0)
        leases.due(0.0)
        assert leases.lost("a", "a1")

        assert leases.ack_id("a") is None
        assert [leases.due(now) for now in (10.0, 1000.0)] == [{}, {}]
        leases.received("a", "a2", 1000.0)
        assert leases.ack_id("a") == "a2"
        assert leases.due(1000.0) == {"a2": "a"}
        assert not leases.lost("a", "a1"), "of an older delivery, it says nothing"
        assert leases.ack_id("a") == "a2"
        assert leases.lost("a", "a2")
        assert leases.end("a") == ["a1"]
        assert not leases.lost("a", "a2"), "nor of a message that is not held"

    def test_those_whose_extension_failed_are_due_at_once_unless_they_are_over(self) -> None:
        leases = Leases()
        for name in ("a", "b", "c"):
            leases.received(name, name, 0.0)
        assert leases.due(5.0) == {"a": "a", "b": "b", "c": "c"}
        leases.end("b")
        leases.failed(["a", "b"], 5.0)

        assert leases.due(5.0) == {"a": "a"}
        assert leases.due(5.0) == {}

    def test_a_message_that_is_over_is_not_due_and_begins_again_when_it_comes_again(self) -> None:
        leases = Leases()
        leases.received("a", "a1", 0.0)
        leases.end("a")
        assert leases.due(1000.0) == {}
        assert leases.received("a", "a2", 1000.0)

        assert leases.ack_id("a") == "a2"
        assert leases.due(1000.0) == {"a2": "a"}


class TestRoom:
    """How many messages a subscriber may pull."""

    def hold(self, bytes_most: int) -> tuple[InFlight, StreamStats]:
        stats = StreamStats()
        return InFlight(bytes_most, stats), stats

    def take(self, hold: InFlight, *sizes: int) -> list[Any]:
        start = hold._stats.delivered
        messages = [a_message(f"{start + n}", b"x" * size) for n, size in enumerate(sizes)]
        return hold.take([Delivery(f"ack {each.id}", each) for each in messages], 0.0)

    def test_what_is_held_takes_its_part_of_the_count(self) -> None:
        hold, _ = self.hold(1 << 30)
        assert hold.room(5) == 5
        taken = self.take(hold, 1, 1, 1)

        assert [hold.room(rows) for rows in (5, 3, 2, 0)] == [2, 0, 0, 0]
        hold.let_go(taken[0])
        assert hold.room(5) == 3

    def test_before_any_message_has_its_outcome_its_size_is_guessed(self) -> None:
        hold, _ = self.hold(10 * SIZE_GUESS)

        assert hold.room(100) == 10

    def test_after_that_the_sizes_of_the_last_ones_with_their_answers_count(self) -> None:
        hold, _ = self.hold(1 << 20)

        def answer(count: int, size: int) -> None:
            for each in self.take(hold, *[1] * count):
                hold.move(each, Place.JUDGED, size)
                hold.let_go(each)

        answer(1, 19_000)
        assert hold.room(1000) == (1 << 20) // (MESSAGE_BYTES + 19_001)
        answer(1000, 1000)
        assert hold.room(1000) == (1 << 20) // (MESSAGE_BYTES + 1001)
        answer(100, 100_000)
        assert hold.room(1000) == (1 << 20) // (MESSAGE_BYTES + 100_001) == 10
        self.take(hold, 1)
        assert [hold.full(flying) for flying in (0, 10, 11)] == [False, False, True]

    def test_if_those_held_are_larger_than_those_before_they_count(self) -> None:
        hold, _ = self.hold(1 << 20)
        for each in self.take(hold, *[1] * 100):
            hold.let_go(each)
        self.take(hold, 500_000)

        assert hold.room(1000) == 1

    def test_attributes_take_room_too(self) -> None:
        hold, stats = self.hold(1000)
        hold.take([Delivery("a", a_message("1", b"xxxx", {"abc": "def"}))], 0.0)

        assert stats.held_bytes == MESSAGE_BYTES + 10

    def test_what_a_message_is_decoded_to_takes_room_until_it_is_let_go(self) -> None:
        """JSON of a few bytes may become twenty times as many, and all that is held must fit the pod."""
        hold, stats = self.hold(MESSAGE_BYTES + 1000)
        (held,) = self.take(hold, 20)
        hold.move(held, Place.OPEN, 480)

        assert stats.held_bytes == MESSAGE_BYTES + 500
        assert hold.room(100) == 0, "what comes next may be as large"
        hold.let_go(held)
        assert stats.held_bytes == 0

    def test_only_what_an_engine_could_work_on_takes_places_and_all_takes_bytes(self) -> None:
        hold, stats = self.hold(1 << 20)
        held = self.take(hold, *[10] * 6)
        assert hold.room(8) == 2
        for each, place, size in zip(held, (Place.ASIDE, Place.JUDGED, Place.SETTLED), (0, 5000, 0), strict=False):
            hold.move(each, place, size)

        assert hold.room(8) == 5
        assert stats.held_bytes == 6 * (MESSAGE_BYTES + 10) + 5000
        hold.asked = 3
        assert hold.room(8) == 2, "what was asked for may come"
        hold.move(held[1], Place.SETTLED, 0)
        hold.move(held[0], Place.OPEN)
        assert stats.held_bytes == 6 * (MESSAGE_BYTES + 10), "the sink has the answer"
        assert hold.room(8) == 1
        for each in held:
            hold.let_go(each)
        assert (hold.room(8), stats.held_bytes) == (5, 0)

    def test_what_was_let_go_takes_nothing_however_it_ends(self) -> None:
        hold, stats = self.hold(1 << 20)
        (held,) = self.take(hold, 10)
        hold.let_go(held)
        hold.move(held, Place.JUDGED, 1000)

        assert (hold.room(8), stats.held_bytes) == (8, 0)

    def test_what_was_asked_for_takes_bytes_too(self) -> None:
        hold, _ = self.hold(10 * SIZE_GUESS)
        hold.asked = 8
        assert hold.room(100) == 2
        hold.asked = 10
        assert hold.room(100) == 0, "one may come already"

    def test_outcomes_that_wait_for_the_sink_are_heavy_and_full_and_those_aside_crowd(self) -> None:
        hold, _ = self.hold(8 * (MESSAGE_BYTES + 10))
        held = self.take(hold, *[10] * 16)
        seen = []
        for each in held[:8]:
            hold.move(each, Place.JUDGED)
            seen.append((hold.heavy, hold.full(0)))
        assert seen == [(False, False)] * 3 + [(True, False)] * 4 + [(True, True)]
        hold.move(held[0], Place.SETTLED)
        assert [hold.full(flying) for flying in (0, 1, 2)] == [False, True, True], "what is under way will wait, too"
        for count, each in enumerate(held[8:], start=1):
            hold.move(each, Place.ASIDE)
            assert hold.crowded_aside == (ASIDE_PART * count > 8)

    def test_a_message_larger_than_all_room_is_pulled_when_nothing_else_is_held(self) -> None:
        hold, _ = self.hold(100)
        assert hold.room(5) == 1
        (large,) = self.take(hold, 5000)

        assert hold.room(5) == 0
        hold.let_go(large)
        assert hold.room(5) == 1
        assert hold.room(0) == 0

    def test_no_pull_asks_for_more_than_a_reply_has(self) -> None:
        hold, _ = self.hold(1 << 40)

        assert hold.room(1_000_000) == PULL_MOST

    def test_a_repeated_delivery_takes_no_room_and_is_counted(self) -> None:
        hold, stats = self.hold(1000)
        message = a_message("1", b"x" * 50)
        size = MESSAGE_BYTES + 50
        (held,) = hold.take([Delivery("a", message), Delivery("b", message)], 0.0)
        assert hold.take([Delivery("c", message)], 1.0) == []

        assert (stats.delivered, stats.repeated, stats.held, stats.held_bytes) == (3, 2, 1, size)
        assert hold.has(held)
        assert hold.let_go(held) == ["a", "b", "c"]
        assert (len(hold), stats.held, stats.held_bytes, hold.has(held)) == (0, 0, 0, False)

    def test_a_message_that_comes_after_it_was_let_go_is_another_one(self) -> None:
        hold, _ = self.hold(1000)
        (first,) = hold.take([Delivery("a", a_message())], 0.0)
        hold.let_go(first)
        (second,) = hold.take([Delivery("b", a_message())], 1.0)

        assert (hold.has(first), hold.has(second)) == (False, True)


class TestLanes:
    def test_items_without_a_lane_never_wait(self) -> None:
        lanes: Lanes[int] = Lanes()

        assert [lanes.enter("", n) for n in range(3)] == [True] * 3
        assert (lanes.leave(""), lanes.close("")) == (None, [])

    def test_one_of_each_lane_goes_and_the_others_follow_in_order(self) -> None:
        lanes: Lanes[int] = Lanes()

        assert [lanes.enter("a", n) for n in range(3)] == [True, False, False]
        assert lanes.enter("b", 9)
        assert [lanes.leave("a"), lanes.leave("a"), lanes.leave("a")] == [1, 2, None]
        assert lanes.enter("a", 3), "the lane is free again"
        assert lanes.leave("b") is None

    def test_what_comes_while_the_last_one_is_under_way_waits(self) -> None:
        lanes: Lanes[int] = Lanes()
        lanes.enter("a", 0)
        lanes.enter("a", 1)
        assert lanes.leave("a") == 1

        assert not lanes.enter("a", 2)
        assert lanes.leave("a") == 2

    def test_a_lane_that_is_closed_gives_all_who_wait_and_is_free(self) -> None:
        lanes: Lanes[int] = Lanes()
        for number in range(4):
            lanes.enter("a", number)

        assert lanes.close("a") == [1, 2, 3]
        assert lanes.close("a") == []
        assert lanes.enter("a", 4)


class TestAnnouncement:
    """A dead letter as its topic gets it."""

    def of(self, message: Message, text: str = "no", status: int | None = 400) -> tuple[bytes, dict[str, str]]:
        announcement = Announcement("texts", ("subscription", "texts-sub"), "the table catalog.texts_dead_letters")
        data, attributes = announcement.of(Dead(message, "rejected", text, status, 3))
        self.within_limits(data, attributes)
        return data, attributes

    def within_limits(self, data: bytes, attributes: Mapping[str, str]) -> None:
        assert len(attributes) <= ATTRIBUTES_MOST == 100
        assert all(len(value.encode()) <= VALUE_BYTES_MOST == 1024 for value in attributes.values())
        assert not any(name.startswith("goog") for name in attributes)
        size = len(data) + sum(len(name.encode()) + len(value.encode()) for name, value in attributes.items())
        assert size <= 10_000_000

    def test_it_is_the_message_with_its_attributes_and_what_is_wrong(self) -> None:
        data, attributes = self.of(a_message("17", b"\xff", {"tenant": "t", "empty": ""}))

        assert data == b"\xff"
        assert attributes == {
            "tenant": "t",
            "empty": "",
            "nightshift_reason": "rejected",
            "nightshift_text": "no",
            "nightshift_status": "400",
            "nightshift_tries": "3",
            "nightshift_message_id": "17",
            "nightshift_publish_time": "2026-11-20T12:30:00+00:00",
            "nightshift_job": "texts",
            "nightshift_subscription": "texts-sub",
        }

    def test_what_is_not_known_is_not_there(self) -> None:
        _, attributes = self.of(a_message(), "", None)

        assert attributes.keys().isdisjoint({"nightshift_status", "nightshift_text", "nightshift_left_out"})

    @pytest.mark.parametrize("count", [91, 92, 100])
    def test_of_many_attributes_the_first_are_kept_and_it_is_said(self, count: int) -> None:
        theirs = {f"a{n}": f"{n}" for n in range(count)}
        _, attributes = self.of(a_message(attributes=theirs))

        kept = {name: value for name, value in attributes.items() if name in theirs}
        assert kept == {f"a{n}": f"{n}" for n in range(91)}
        lost = {91: None, 92: "1 attribute; ", 100: "9 attributes; "}[count]
        said = f"{lost}the table catalog.texts_dead_letters has the whole message" if lost else None
        assert attributes.get("nightshift_left_out") == said

    def test_reserved_names_are_left_out_and_it_is_said(self) -> None:
        theirs = {"googclient_schemaencoding": "JSON", "nightshift_reason": "of another stream", "mine": "1"}
        _, attributes = self.of(a_message(attributes=theirs))

        assert attributes["nightshift_reason"] == "rejected"
        assert attributes["mine"] == "1"
        assert attributes["nightshift_left_out"].startswith("2 attributes; ")

    @pytest.mark.parametrize(
        ("text", "kept"),
        [
            ("x" * 1024, "x" * 1024),
            ("x" * 1025, "x" * 1024),
            ("ü" * 600, "ü" * 512),
            ("x" + "ü" * 600, "x" + "ü" * 511),
            ("x" + "🙂" * 600, "x" + "🙂" * 255),
            ("half a pair \ud800", "half a pair ?"),
        ],
    )
    def test_a_long_text_is_cut_between_two_characters(self, text: str, kept: str) -> None:
        _, attributes = self.of(a_message(), text)

        assert attributes["nightshift_text"] == kept

    def test_data_that_would_make_it_too_large_is_left_out_and_it_is_said(self) -> None:
        _, small = self.of(a_message(data=b""))
        room = MESSAGE_BYTES_MOST - sum(len(name) + len(value) for name, value in small.items())
        whole, attributes = self.of(a_message(data=b"x" * room))
        assert len(whole) == room
        assert "nightshift_left_out" not in attributes
        theirs = {"googclient": "", "kind": "k"}
        cut, attributes = self.of(a_message(data=b"x" * (room + 1), attributes=theirs))

        assert cut == b""
        assert attributes["kind"] == "k"
        assert attributes["nightshift_left_out"] == (
            f"1 attribute and {room + 1:,} bytes of data; the table catalog.texts_dead_letters has the whole message"
        )


@pytest.mark.parametrize(
    ("prediction", "kind", "text"),
    [
        ("a\"b'\n\\", "text", "a\"b'\n\\"),
        ("", "text", ""),
        ("null", "text", "null"),
        ("a", "character varying", "a"),
        ("a", "bpchar", "a"),
        ("a", "public.mood", "a"),
        ("a", "json", '"a"'),
        ("a", "jsonb", '"a"'),
        ("[1,2]", "jsonb", '"[1,2]"'),
        (1.5, "text", "1.5"),
        ({"a": "ü"}, "text", '{"a":"ü"}'),
        ({"a": [1, None, True]}, "jsonb", '{"a":[1,null,true]}'),
        ((1, 2), "jsonb", "[1,2]"),
        ([], "jsonb", "[]"),
        ([1.0, -2.5e-7], "vector", "[1.0,-2.5e-7]"),
        ([1.0, -2.5e-7], "halfvec", "[1.0,-2.5e-7]"),
        ((1.0,), "vector", "[1.0]"),
        ([1.0, 2.0], "real[]", "{1.0,2.0}"),
        ([], "real[]", "{}"),
        ([0.1], "double precision[]", "{0.1}"),
        (0.1, "double precision", "0.1"),
        (3, "real", "3"),
        (-(2**63), "bigint", "-9223372036854775808"),
        (True, "boolean", "true"),
        (False, "boolean", "false"),
    ],
)
def test_a_prediction_is_written_as_its_column_reads_it(prediction: Any, kind: str, text: str) -> None:
    assert literal(prediction, kind) == text


class TestTheAddressOfASink:
    @pytest.mark.parametrize("url", ["postgresql://u:a@b@h/d", "postgresql://u:a/b@h/d"])
    def test_a_password_that_libpq_would_take_for_something_else_is_refused(self, url: str) -> None:
        with pytest.raises(BadUrl, match="write @ / : in its user and password as %40 %2F %3A"):
            parse(url)

    def test_one_that_is_written_as_it_should_be_is_taken(self) -> None:
        parse("postgresql://u:a%40b%2Fc@h:5432,i:5433/d%40e")


async def test_a_delivery_during_the_acknowledgement_is_acknowledged_too() -> None:
    """Else Pub/Sub delivers the message once more, which counts towards the subscription's limit of deliveries."""
    stats, message, acknowledged = StreamStats(), a_message(), list[list[str]]()
    hold = InFlight(1 << 20, stats)

    async def acknowledge(ack_ids: Sequence[str]) -> Unsettled:
        acknowledged.append(list(ack_ids))
        if len(acknowledged) == 1:
            assert hold.take([Delivery("second", message)], 0.0) == []
        return Unsettled()

    source: Any = SimpleNamespace(acknowledge=acknowledge)
    sink: Any = SimpleNamespace(collect=Collect(rows=1, size=1, age_s=0))
    patience = Backoff(random.Random(0), asyncio.Event())
    nothing: Any = SimpleNamespace()
    settler = Settler(
        source, sink, nothing, hold, patience, stats, lambda: 0.0, set(), settled=lambda _: None, freed=lambda: None
    )
    (held,) = hold.take([Delivery("first", message)], 0.0)
    settler.acknowledge(held)
    working = asyncio.get_running_loop().create_task(settler.run())
    async with asyncio.timeout(60):
        while len(hold):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    working.cancel()

    assert acknowledged == [["first"], ["second"]]
    assert stats.acknowledged == 1


class Gone(Exception):
    """What a service refuses for good."""


@pytest.mark.parametrize("part", ["acknowledgements", "dead letters"])
async def test_what_is_refused_for_good_is_raised_as_it_is(part: str) -> None:
    """In a group of exceptions nobody would find it, and the process would be started again and again."""
    stats = StreamStats()
    hold = InFlight(1 << 20, stats)

    async def refuse(_: Any) -> None:
        raise Gone("no such topic")

    source: Any = SimpleNamespace(acknowledge=refuse)
    letters: Any = SimpleNamespace(publish=refuse)
    sink: Any = SimpleNamespace(collect=Collect(rows=1, size=1, age_s=0))
    patience = Backoff(random.Random(0), asyncio.Event())
    settler = Settler(
        source,
        sink,
        letters,
        hold,
        patience,
        stats,
        lambda: 0.0,
        set(),
        settled=lambda _: None,
        freed=lambda: None,
    )
    (held,) = hold.take([Delivery("first", a_message())], 0.0)
    if part == "dead letters":
        settler.announce(held, Dead(held.message, "rejected", "", None, 1))
    else:
        settler.acknowledge(held)
    with pytest.raises(Gone):
        async with asyncio.timeout(60):
            await settler.run()
