"""Who shares a request, when it goes, and what becomes of callers that leave. `Sends` is the upstream, and waits to be told."""

from __future__ import annotations

import asyncio
import json

import pytest

from nightshift.batcher.dispatch import Answer, Caller, Dispatcher, Seat
from nightshift.batcher.metrics import Metrics
from nightshift.batcher.oversized import in_pieces
from nightshift.batcher.readiness import Separate
from nightshift.batcher.routes import Routes

pytestmark = pytest.mark.unit

LONG = 3600.0


class Sends:
    """Takes bundles, and holds each until `land`."""

    def __init__(self) -> None:
        self.bundles: list[list[str]] = []
        self.broken_off: list[list[str]] = []
        self.sent = asyncio.Event()
        self._go: list[asyncio.Event] = []

    async def __call__(self, bundle: list[Caller], _: Seat) -> None:
        names = [caller.body.decode() for caller in bundle]
        self.bundles.append(names)
        self.sent.set()
        go = asyncio.Event()
        self._go.append(go)
        try:
            await go.wait()
        except asyncio.CancelledError:
            self.broken_off.append(names)
            raise
        for caller in bundle:
            caller.settle(Answer(200, {}, caller.body))

    async def land(self, number: int) -> None:
        self._go[number].set()
        await settle()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def dispatcher(sends: Sends, *, items_most: int = 4, wait_s: float = LONG, upstream_most: int = 2) -> Dispatcher:
    return Dispatcher(sends, Metrics(), items_most=items_most, wait_s=wait_s, upstream_most=upstream_most)


def a_caller(name: str, items: int = 1, *, model: str = "m", target: str = "/v1/embeddings", tenant: str = "") -> Caller:
    """Its body is only its name here: it is read by `Sends`."""
    endpoint = Routes().find("POST", "/v1/embeddings")
    assert endpoint is not None
    asked = endpoint.read(json.dumps({"model": model, "input": [name] * items}).encode())
    assert asked is not None
    counting = (("x-tenant", tenant),) if tenant else ()
    loop = asyncio.get_running_loop()
    return Caller(endpoint, target, counting, {}, name.encode(), asked, loop.time(), loop.create_future())


async def submitted(batcher: Dispatcher, *callers: Caller) -> list[Caller]:
    for caller in callers:
        batcher.submit(caller)
    await settle()
    return list(callers)


async def test_a_full_bundle_goes_at_once_and_the_rest_waits() -> None:
    sends = Sends()
    batcher = dispatcher(sends, items_most=2)
    callers = await submitted(batcher, *map(a_caller, "abc"))

    assert sends.bundles == [["a", "b"]]
    assert repr(batcher) == "<Dispatcher lanes=1 waiting=1 in_flight=1/2>"
    await sends.land(0)
    assert [caller.answer.done() for caller in callers] == [True, True, False]
    assert callers[1].answer.result().body == b"b"


async def test_who_has_waited_long_enough_goes_with_whoever_came_since() -> None:
    sends = Sends()
    batcher = dispatcher(sends, wait_s=0.02)
    callers = await submitted(batcher, *map(a_caller, "ab"))

    await sends.sent.wait()
    await sends.land(0)
    assert sends.bundles == [["a", "b"]]
    assert all(caller.answer.done() for caller in callers)
    assert repr(batcher) == "<Dispatcher lanes=0 waiting=0 in_flight=0/2>"


async def test_only_equal_requests_share_one() -> None:
    sends = Sends()
    batcher = dispatcher(sends, items_most=2, upstream_most=9)
    others = [a_caller("b", model="n"), a_caller("c", tenant="t"), a_caller("d", target="/v1/embeddings?x=1")]
    await submitted(batcher, a_caller("a"), *others, a_caller("e"))

    assert sends.bundles == [["a", "e"]]


async def test_a_caller_with_several_items_takes_the_room_of_several() -> None:
    sends = Sends()
    await submitted(dispatcher(sends, items_most=4), a_caller("a", 3), a_caller("b", 2), a_caller("c", 2))

    assert sends.bundles == [["a"], ["b", "c"]]


async def test_one_with_more_items_than_a_request_takes_goes_alone_and_whole() -> None:
    sends = Sends()
    await submitted(dispatcher(sends, items_most=4), a_caller("small"), a_caller("large", 9))

    assert sends.bundles == [["small"], ["large"]]


async def test_while_the_upstream_is_busy_bundles_grow() -> None:
    sends = Sends()
    batcher = dispatcher(sends, items_most=3, wait_s=0.0, upstream_most=1)
    await submitted(batcher, a_caller("a"))
    await submitted(batcher, *map(a_caller, "bcde"))

    assert sends.bundles == [["a"]]
    await sends.land(0)
    assert sends.bundles == [["a"], ["b", "c", "d"]]
    await sends.land(1)
    assert sends.bundles[2] == ["e"]


async def test_lanes_that_are_due_take_turns() -> None:
    sends = Sends()
    batcher = dispatcher(sends, items_most=1, upstream_most=1)
    await submitted(
        batcher, a_caller("a1"), a_caller("a2"), a_caller("a3"), a_caller("b1", model="n"), a_caller("b2", model="n")
    )

    for number in range(4):
        await sends.land(number)
    assert [name for bundle in sends.bundles for name in bundle] == ["a1", "b1", "a2", "b2", "a3"]


class TestFurtherRequests:
    """Of a bundle that was refused, and of a caller whose own request is too large for one."""

    async def test_they_take_turns_with_other_bundles_and_keep_to_the_bound(self) -> None:
        order: list[str] = []
        most = 0

        async def send(bundle: list[Caller], seat: Seat) -> None:
            nonlocal most

            async def one(name: str) -> None:
                async with seat():
                    nonlocal most
                    order.append(name)
                    most = max(most, batcher.in_flight)
                    await asyncio.sleep(0)

            name = bundle[0].body.decode()
            order.append(name)
            if name == "bad":
                async with asyncio.TaskGroup() as group:
                    for number in range(4):
                        group.create_task(one(f"bad{number}"))
            await asyncio.sleep(0)
            for caller in bundle:
                caller.settle(Answer(200, {}, caller.body))

        batcher = Dispatcher(send, Metrics(), items_most=1, wait_s=LONG, upstream_most=2)
        callers = [a_caller("bad"), *(a_caller(f"o{n}", model=f"m{n}") for n in range(4))]
        await submitted(batcher, *callers)
        await asyncio.wait([caller.answer for caller in callers])

        assert most == 2
        assert order.index("o3") < order.index("bad3"), "none has to wait until all of another's requests are done"
        assert sorted(order) == ["bad", "bad0", "bad1", "bad2", "bad3", "o0", "o1", "o2", "o3"]

    async def test_one_that_asks_and_is_cancelled_leaves_its_turn(self) -> None:
        seats: list[Seat] = []
        sends = Sends()

        async def send(bundle: list[Caller], seat: Seat) -> None:
            seats.append(seat)
            await sends(bundle, seat)

        async def sit() -> None:
            async with seats[0]():
                await asyncio.sleep(LONG)

        batcher = Dispatcher(send, Metrics(), items_most=1, wait_s=LONG, upstream_most=2)
        await submitted(batcher, a_caller("a"))
        sitting, asking = asyncio.create_task(sit()), asyncio.create_task(sit())
        await settle()
        assert batcher.in_flight == 2
        asking.cancel()
        await settle()
        sitting.cancel()
        await settle()
        assert batcher.in_flight == 1
        await submitted(batcher, a_caller("b"), a_caller("c", model="n"))
        assert sends.bundles == [["a"], ["b"]]

    async def test_who_comes_later_does_not_wait_for_all_pieces_of_a_large_request(self) -> None:
        sends = Sends()
        batcher = dispatcher(sends, items_most=1, upstream_most=1)
        large = a_caller("large", 6)
        whole = asyncio.create_task(in_pieces(large, batcher, Separate(), 1))
        await settle()
        await submitted(batcher, a_caller("later"))
        for number in range(3):
            await sends.land(number)

        assert "later" in sends.bundles[2]
        whole.cancel()
        await settle()
        await sends.land(3)
        assert repr(batcher) == "<Dispatcher lanes=0 waiting=0 in_flight=0/1>", "who leaves takes all pieces along"


class TestLeaving:
    async def test_who_leaves_before_the_request_is_not_in_it(self) -> None:
        sends = Sends()
        batcher = dispatcher(sends, items_most=3)
        callers = await submitted(batcher, *map(a_caller, "ab"))
        batcher.leave(callers[0])
        await submitted(batcher, *map(a_caller, "cd"))

        assert sends.bundles == [["b", "c", "d"]]

    async def test_a_lane_that_all_have_left_is_gone(self) -> None:
        sends = Sends()
        batcher = dispatcher(sends, wait_s=0.01)
        caller = a_caller("a")
        batcher.submit(caller)
        batcher.leave(caller)

        assert repr(batcher) == "<Dispatcher lanes=0 waiting=0 in_flight=0/2>"
        await asyncio.sleep(0.03)
        assert sends.bundles == []

    async def test_also_one_that_is_due_but_has_no_room(self) -> None:
        sends = Sends()
        batcher = dispatcher(sends, wait_s=0.0, upstream_most=1)
        await submitted(batcher, a_caller("a"))
        (waiting,) = await submitted(batcher, a_caller("b"))
        batcher.leave(waiting)
        await sends.land(0)

        assert sends.bundles == [["a"]]

    async def test_a_request_goes_on_for_those_who_stay(self) -> None:
        sends = Sends()
        batcher = dispatcher(sends, items_most=2)
        one, other = await submitted(batcher, *map(a_caller, "ab"))
        batcher.leave(one)
        await settle()

        assert sends.broken_off == []
        await sends.land(0)
        assert other.answer.result().body == b"b"

    async def test_a_request_that_nobody_waits_for_is_broken_off_and_makes_room(self) -> None:
        sends = Sends()
        batcher = dispatcher(sends, items_most=2, upstream_most=1)
        one, other, *_ = await submitted(batcher, *map(a_caller, "abcd"))
        batcher.leave(one)
        batcher.leave(other)
        await settle()

        assert sends.broken_off == [["a", "b"]]
        assert sends.bundles[1] == ["c", "d"]

    async def test_even_before_it_has_begun(self) -> None:
        """A task that is cancelled before its first step runs none of its own code."""
        sends = Sends()
        batcher = dispatcher(sends, items_most=1)
        caller = a_caller("a")
        batcher.submit(caller)
        batcher.leave(caller)
        await settle()

        assert repr(batcher) == "<Dispatcher lanes=0 waiting=0 in_flight=0/2>"


class TestTheEnd:
    async def test_a_drain_sends_what_waits_and_lets_nobody_wait_any_more(self) -> None:
        sends = Sends()
        batcher = dispatcher(sends)
        await submitted(batcher, *map(a_caller, "ab"))
        batcher.drain()
        await settle()
        await submitted(batcher, a_caller("c"))

        assert sends.bundles == [["a", "b"], ["c"]]

    async def test_a_drain_keeps_to_the_bound_on_requests(self) -> None:
        sends = Sends()
        batcher = dispatcher(sends, upstream_most=1)
        await submitted(batcher, a_caller("a"), a_caller("b", model="n"))
        batcher.drain()
        await settle()

        assert sends.bundles == [["a"]]
        await sends.land(0)
        assert sends.bundles == [["a"], ["b"]]

    async def test_who_has_no_answer_at_last_is_told_so(self) -> None:
        sends = Sends()
        batcher = dispatcher(sends, items_most=1, upstream_most=1)
        callers = await submitted(batcher, *map(a_caller, "abc"))
        await sends.land(0)
        left = batcher.abandon(lambda caller: Answer(503, {}, b"over " + caller.body))
        await settle()

        assert left == 2
        assert [caller.answer.result().body for caller in callers] == [b"a", b"over b", b"over c"]
        assert sends.broken_off == [["b"]]
        assert repr(batcher) == "<Dispatcher lanes=0 waiting=0 in_flight=0/1>"
