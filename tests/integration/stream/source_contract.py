"""What every source of a stream holds (`nightshift.stream.ports.Source`), as tests that run against each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import pytest

from nightshift.stream.messages import Delivery, Message
from nightshift.stream.ports import Source, Unavailable, Unsettled

LEASE_S: Final = 60
"""Of a message, from its delivery."""
PULLS_MOST: Final = 50
ODD: Final = {"bytes": bytes(byte for byte in range(256) if byte not in b"\r\n"), "huge": b"x" * 5_000_000, "space": b" "}


class Place(Protocol):
    """Where messages of one stream come from."""

    async def source(self) -> Source:
        """A source as another process has it."""
        ...

    def put(self, *data: bytes) -> None:
        """New messages."""
        ...

    def pass_time(self, seconds: float) -> None: ...

    def fail(self, method: str, *, after: bool) -> None:
        """The next call of this method raises Unavailable. after: and has its effect."""
        ...


Placed = Callable[[], Place]


async def pulled(source: Source, count: int, most: int = 100) -> list[Delivery]:
    """So many deliveries."""
    found: list[Delivery] = []
    for _ in range(PULLS_MOST):
        some = await source.pull(most)
        assert len(some) <= most
        found += some
        if len(found) >= count:
            assert len(found) == count
            return found
    raise AssertionError(f"{len(found)} of {count} messages came in {PULLS_MOST} pulls")


async def comes_nothing(source: Source) -> bool:
    """Whether nothing is delivered now. What a folder's object lacks to be done is that its end is seen: here."""
    return await source.pull(100) == []


def ids(deliveries: list[Delivery]) -> list[str]:
    return [each.ack_id for each in deliveries]


def messages(deliveries: list[Delivery]) -> list[Message]:
    return sorted((each.message for each in deliveries), key=lambda each: each.id)


class SourceContract:
    """The fixture `placed` makes places of the source."""

    @pytest.mark.parametrize("most", [1, 3, 100])
    async def test_each_message_is_delivered_once_while_its_lease_lives(self, placed: Placed, most: int) -> None:
        place = placed()
        place.put(*(f"text {n}".encode() for n in range(7)))
        source = await place.source()
        found = await pulled(source, 7, most)

        assert {each.message.data for each in found} == {f"text {n}".encode() for n in range(7)}
        assert len({each.message.id for each in found}) == len(set(ids(found))) == 7
        assert await comes_nothing(source)

    async def test_what_is_acknowledged_does_not_come_again_to_anybody(self, placed: Placed) -> None:
        place = placed()
        place.put(b"a", b"b")
        source = await place.source()
        found = await pulled(source, 2)
        assert await source.acknowledge(ids(found)) == Unsettled()
        assert await comes_nothing(source)
        place.pass_time(LEASE_S + 5)

        assert await comes_nothing(source)
        assert await comes_nothing(await place.source())

    async def test_what_a_process_had_that_died_comes_to_another_as_it_was(self, placed: Placed) -> None:
        place = placed()
        place.put(b"a", b"b", b"c")
        died = await place.source()
        before = await pulled(died, 3)
        place.pass_time(LEASE_S + 5)

        assert messages(await pulled(await place.source(), 3)) == messages(before)

    async def test_a_message_comes_again_when_its_lease_is_over_under_another_ack_id(self, placed: Placed) -> None:
        place = placed()
        place.put(b"a", b"b")
        source = await place.source()
        first = await pulled(source, 2)
        await source.extend(ids(first), LEASE_S)
        place.pass_time(LEASE_S / 2)
        assert await comes_nothing(source)
        await source.extend(ids(first), LEASE_S)
        place.pass_time(LEASE_S - 20)
        assert await comes_nothing(source), "an extension counts from when it was asked for"
        place.pass_time(25)
        again = await pulled(source, 2)

        assert messages(again) == messages(first)
        assert set(ids(again)).isdisjoint(ids(first))
        assert await comes_nothing(source), "it comes once, not once for each lease that it had"
        place.pass_time(LEASE_S / 2)
        await source.extend(ids(first), LEASE_S)
        place.pass_time(LEASE_S / 2 + 5)
        assert messages(await pulled(source, 2)) == messages(first), "a lease that is over stays so"

    async def test_what_is_given_back_comes_again_now(self, placed: Placed) -> None:
        place = placed()
        place.put(b"a", b"b")
        source = await place.source()
        first = await pulled(source, 2)
        assert await source.extend(ids(first[:1]), 0) == Unsettled()
        place.pass_time(2)
        (again,) = await pulled(source, 1)
        assert again.message == first[0].message
        await source.acknowledge([again.ack_id, first[1].ack_id])
        assert await comes_nothing(source)
        place.pass_time(LEASE_S + 5)

        assert await comes_nothing(await place.source())

    @pytest.mark.parametrize("after", [False, True], ids=["before its effect", "after its effect"])
    async def test_an_acknowledgement_whose_reply_is_lost_is_repeated_without_harm(
        self, placed: Placed, *, after: bool
    ) -> None:
        place = placed()
        place.put(b"a", b"b")
        source = await place.source()
        found = await pulled(source, 2)
        assert await comes_nothing(source)
        place.fail("acknowledge", after=after)
        with pytest.raises(Unavailable):
            await source.acknowledge(ids(found))
        for _ in range(2):
            await source.acknowledge(ids(found))
        place.pass_time(LEASE_S + 5)

        assert await comes_nothing(source)
        assert await comes_nothing(await place.source())

    @pytest.mark.parametrize("after", [False, True], ids=["before its effect", "after its effect"])
    async def test_a_pull_whose_reply_is_lost_loses_no_message(self, placed: Placed, *, after: bool) -> None:
        place = placed()
        place.put(b"a", b"b", b"c")
        source = await place.source()
        place.fail("pull", after=after)
        with pytest.raises(Unavailable):
            await source.pull(100)
        place.pass_time(LEASE_S + 5)
        found = await pulled(source, 3)
        await source.acknowledge(ids(found))

        assert sorted(each.message.data for each in found) == [b"a", b"b", b"c"]

    async def test_an_ack_id_of_nothing_costs_nothing(self, placed: Placed) -> None:
        place = placed()
        place.put(b"a")
        source = await place.source()
        assert await source.acknowledge([]) == Unsettled()
        assert await source.extend([], 60) == Unsettled()
        (found,) = await pulled(source, 1)
        await source.extend(["nobody's", found.ack_id], 0)
        place.pass_time(2)
        (again,) = await pulled(source, 1)
        settled = await source.acknowledge(["nobody's", again.ack_id])
        assert again.ack_id not in settled.over | settled.for_now
        place.pass_time(LEASE_S + 5)

        assert await comes_nothing(source)

    @pytest.mark.parametrize("odd", ODD.values(), ids=list(ODD))
    async def test_what_is_in_a_message_is_delivered_byte_by_byte(self, placed: Placed, odd: bytes) -> None:
        place = placed()
        place.put(odd, b"plain")

        assert {each.message.data for each in await pulled(await place.source(), 2)} == {odd, b"plain"}
