"""Dead letters that are published again: under which id, with which attributes, in which requests. Nothing is connected."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone

import pytest
from google.pubsub_v1.types import PubsubMessage
from hypothesis import given
from hypothesis import strategies as st

from nightshift.stream.dead_letter_message import Announcement
from nightshift.stream.dead_letters import DeadLetter
from nightshift.stream.messages import Dead, Message
from nightshift.stream.pubsub import Publisher, in_requests
from nightshift.stream.pubsub_client import MessageRefused
from nightshift.stream.redrive import Redriven, again
from nightshift.stream.redriven_ids import ATTRIBUTE, attributes_of, identity, next_id

pytestmark = pytest.mark.unit

PUBLISHED = datetime(2026, 11, 20, 12, 30, 0, 123456, tzinfo=UTC)
LATER = PUBLISHED + timedelta(days=1)


def a_message(name: str, key: str = "", data: bytes = b"data", **attributes: str) -> Message:
    return Message(name, data, attributes, key, PUBLISHED)


class TestTheId:
    def test_it_follows_from_the_dead_letters(self) -> None:
        assert [next_id(name) for name in ("17", "17.r1", "17.r9", "17.r09", "a.b", ".r1")] == [
            "17.r1",
            "17.r2",
            "17.r10",
            "17.r09.r1",
            "a.b.r1",
            ".r1.r1",
        ]

    def test_a_subscriber_reads_what_was_written(self) -> None:
        elsewhere = PUBLISHED.astimezone(timezone(timedelta(hours=5)))

        assert identity(attributes_of("17", PUBLISHED, {"tenant": "t"}), PUBLISHED) == ("17.r1", PUBLISHED)
        assert identity(attributes_of("17", elsewhere, {}), LATER) == ("17.r1", PUBLISHED)

    @pytest.mark.parametrize(
        "value",
        [
            "",
            "17",
            "17.r1",
            f"17 {PUBLISHED.isoformat()}",
            "17.r0 2026-11-20T12:30:00Z",
            "17.r1 2026-11-20T12:30:00",
            "17.r1 now",
            "17.r1 0001-01-01T00:00:00+14:00",
            "17.r1 9999-12-31T23:59:59-14:00",
            "17.r1 0001-01-01T00:00:00+00:00",
            "17.r1 2009-12-31T23:59:59+00:00",
            "17.r1 2026-11-20T12:30:00+01:00",
            "17\x00.r1 2026-11-20T12:30:00+00:00",
            "\x1b[2J.r1 2026-11-20T12:30:00+00:00",
            "17é.r1 2026-11-20T12:30:00+00:00",
            f"{'1' * 900}.r1 2026-11-20T12:30:00+00:00",
            f"17.r{'9' * 900} 2026-11-20T12:30:00+00:00",
        ],
    )
    def test_what_nightshift_does_not_write_says_nothing(self, value: str) -> None:
        assert identity({ATTRIBUTE: value}, LATER) is None
        assert identity({"other": "17.r1 2026-11-20T12:30:00Z"}, LATER) is None

    def test_a_time_after_that_of_the_copy_says_nothing(self) -> None:
        """Else a message could be the newest of its key until the year 9999."""
        for later in (PUBLISHED + timedelta(microseconds=1), datetime(9999, 12, 30, tzinfo=UTC)):
            assert identity({ATTRIBUTE: f"1.r1 {later.isoformat()}"}, PUBLISHED) is None
        assert identity({ATTRIBUTE: f"1.r1 {PUBLISHED.isoformat()}"}, PUBLISHED) == ("1.r1", PUBLISHED)

    @given(st.text() | st.from_regex(r"1\.r1 [-+0-9T:.Z]{10,40}"))
    def test_no_value_raises(self, value: str) -> None:
        identity({ATTRIBUTE: value}, PUBLISHED)


class TestTheMessage:
    def test_it_is_the_original_and_one_attribute_more(self) -> None:
        message = again(a_message("17", "k", b"\xff", tenant="t", nightshift_note="theirs"))

        assert (message.data, message.ordering_key) == (b"\xff", "k")
        assert dict(message.attributes) == {
            "tenant": "t",
            "nightshift_note": "theirs",
            ATTRIBUTE: "17.r1 2026-11-20T12:30:00.123456+00:00",
        }

    def test_one_that_was_redriven_before_says_only_the_last_time(self) -> None:
        first = again(a_message("17"))
        second = again(Message("17.r1", b"data", dict(first.attributes), "", PUBLISHED))

        assert identity(dict(second.attributes), LATER) == ("17.r2", PUBLISHED)
        assert len(second.attributes) == 1

    def test_attributes_that_only_pubsub_may_publish_are_left_out(self) -> None:
        assert attributes_of("17", PUBLISHED, {"googclient_schemaencoding": "JSON", "a": "b"}).keys() == {"a", ATTRIBUTE}

    def test_the_announcement_of_one_that_died_again_has_its_new_id_and_not_our_attribute(self) -> None:
        first = again(a_message("17", tenant="t"))
        dead = Dead(Message("17.r1", b"data", dict(first.attributes), "", PUBLISHED), "rejected", "no", 400, 1)
        _, attributes = Announcement("texts", ("subscription", "texts-sub"), "the table texts_dead_letters").of(dead)

        assert attributes["nightshift_message_id"] == "17.r1"
        assert attributes["tenant"] == "t"
        assert ATTRIBUTE not in attributes

    def test_its_way_begins_when_it_is_published_again(self) -> None:
        later = PUBLISHED + timedelta(days=3)

        assert a_message("17").waits_since == PUBLISHED
        assert Message("17.r1", b"", {}, "", PUBLISHED, again=later).waits_since == later


class TestRequests:
    def test_about_a_request_is_published_and_marked_together(self) -> None:
        many = [DeadLetter(f"{n}", "rejected", 10) for n in range(250)]
        large = [DeadLetter(name, "too_long", size) for name, size in (("a", 5_000_000), ("b", 5_000_000), ("c", 10_000_000))]

        def parts_of(letters: list[DeadLetter]) -> list[list[DeadLetter]]:
            return list(in_requests(letters, lambda letter: letter.size))

        assert [len(part) for part in parts_of(many)] == [100, 100, 50]
        assert parts_of(large) == [[each] for each in large]
        assert [letter for part in parts_of(many) for letter in part] == many
        assert parts_of([]) == []

    async def test_of_a_request_that_is_refused_only_the_bad_are_left(self) -> None:
        publisher = Picky(b"bad")
        messages = [a_message("1", "k"), a_message("2", "k", b"bad"), a_message("3", "k"), a_message("4", "other")]
        refused = await publisher.send_all(messages, again, MessageRefused)

        assert {name: str(error) for name, error in refused.items()} == {"2": "InvalidArgument: not that one"}
        assert [identity(dict(each.attributes), LATER) for each in publisher.taken] == [
            ("1.r1", PUBLISHED),
            ("3.r1", PUBLISHED),
            ("4.r1", PUBLISHED),
        ]

    def test_what_was_done_in_words(self) -> None:
        done = Redriven("t_dead_letters", "projects/p/topics/t", False, {"too_long": 2, "rejected": 1}, 7, 1, 1, {"9": "no"})

        assert str(done) == (
            "published 1 dead letter of t_dead_letters (2 too_long, 1 rejected) on projects/p/topics/t; "
            "another process redrove 1; Pub/Sub refuses 1; run it again for 7 more"
        )
        assert str(Redriven("t", "x", True, {}, 0)) == "would publish 0 dead letters of t (none) on x"


class Picky(Publisher):
    """Refuses each request with this data in it, as Pub/Sub does."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.taken: list[PubsubMessage] = []

    async def send(self, messages: Sequence[PubsubMessage]) -> None:
        if any(message.data == self._data for message in messages):
            raise MessageRefused("InvalidArgument: not that one")
        self.taken += messages
