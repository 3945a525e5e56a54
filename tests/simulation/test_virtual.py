"""The simulator's own ground: virtual time, processes that freeze and die, and a store as strict as the real one."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest

from nightshift.store import StoreUnavailable
from tests.simulation.storage import Bucket, Client, ClientEvents, Weather
from tests.simulation.virtual import Deadlock, Livelock, Process, TimeIsUp, VirtualLoop

pytestmark = [pytest.mark.simulation, pytest.mark.gate]


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    made = VirtualLoop(deadline=1000.0)
    yield made
    made.close_all()


def a_client(loop: VirtualLoop, bucket: Bucket, **weather: Any) -> Client:
    return Client(loop, bucket, lambda: Weather(**weather), random.Random(1), "pod", ClientEvents())


def test_time_passes_only_when_everybody_waits(loop: VirtualLoop) -> None:
    async def main() -> list[float]:
        times = []
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(7.5):
                await asyncio.Event().wait()
        times.append(loop.time())
        await asyncio.wait([asyncio.ensure_future(asyncio.sleep(n)) for n in (3, 1)], return_when=asyncio.FIRST_COMPLETED)
        times.append(loop.time())
        times.append(await asyncio.to_thread(loop.time))
        return times

    assert loop.run_until_complete(main()) == [7.5, 8.5, 8.5]


def test_nobody_left_to_wait_for_is_a_deadlock(loop: VirtualLoop) -> None:
    with pytest.raises(Deadlock):
        loop.run_until_complete(asyncio.Event().wait())


async def _repeated(seconds: float) -> None:
    for _ in itertools.count():
        await asyncio.sleep(seconds)


@pytest.mark.parametrize(("pause", "error"), [(0.0, Livelock), (10.0, TimeIsUp)])
def test_what_never_ends_is_ended(
    loop: VirtualLoop, pause: float, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.simulation.virtual.STEPS_MAX", 10_000)

    with pytest.raises(error):
        loop.run_until_complete(_repeated(pause))


def test_a_frozen_process_goes_on_where_it_stood_and_a_dead_one_never(loop: VirtualLoop) -> None:
    seen: list[tuple[str, float]] = []
    frozen, dead = Process("frozen"), Process("dead")

    async def tick(name: str) -> None:
        try:
            for _ in range(3):
                await asyncio.sleep(1)
                seen.append((name, loop.time()))
        finally:
            seen.append((f"{name} ends", loop.time()))

    async def main() -> None:
        loop.spawn(frozen, tick("frozen"))
        loop.spawn(dead, tick("dead"))
        await asyncio.sleep(1.5)
        loop.freeze(frozen)
        loop.kill(dead)
        await asyncio.sleep(10)
        loop.thaw(frozen)
        await asyncio.sleep(10)

    loop.run_until_complete(main())

    assert seen == [("frozen", 1), ("dead", 1), ("frozen", 11.5), ("frozen", 12.5), ("frozen ends", 12.5)]


def test_the_second_create_is_refused(loop: VirtualLoop) -> None:
    bucket = Bucket()
    client = a_client(loop, bucket)

    async def main() -> tuple[bool, bool, bytes | None]:
        return await client.create("a/b", b"first"), await client.create("a/b", b"second"), await client.read("a/b")

    assert loop.run_until_complete(main()) == (True, False, b"first")


def test_a_create_that_the_client_library_repeats_finds_itself(loop: VirtualLoop) -> None:
    bucket = Bucket()
    client = a_client(loop, bucket, resent=1.0)

    assert loop.run_until_complete(client.create("a", b"mine")) is False
    assert bucket.objects == {"a": b"mine"}


@pytest.mark.parametrize(("fate", "there"), [("lost_reply", True), ("never", False), ("late", True)])
def test_a_create_without_an_answer_may_have_happened(loop: VirtualLoop, fate: str, there: bool) -> None:
    bucket = Bucket()
    client = a_client(loop, bucket, **{fate: 1.0})

    async def main() -> None:
        with pytest.raises(StoreUnavailable):
            await client.create("a", b"x")
        await bucket.quiet()

    loop.run_until_complete(main())

    assert ("a" in bucket.objects) is there


@pytest.mark.parametrize("page", [1, 2, 3, 1000])
def test_a_listing_is_of_one_folder_in_order_and_after_a_name(loop: VirtualLoop, page: int) -> None:
    bucket = Bucket()
    for name in ("run/c", "run/a", "run-2/a", "run/b/x", "run", "ru/a"):
        bucket.put(0.0, name, b"")
    client = a_client(loop, bucket, page=page)

    async def main() -> list[list[str]]:
        return [[name async for name in client.list("run", after)] for after in ("", "run/a", "run/c")]

    assert loop.run_until_complete(main()) == [["run/a", "run/b/x", "run/c"], ["run/b/x", "run/c"], []]


def test_a_listing_may_break_in_the_middle_of_a_page(loop: VirtualLoop) -> None:
    bucket = Bucket()
    for number in range(10):
        bucket.put(0.0, f"run/{number}", b"")
    client = a_client(loop, bucket, list_error=1.0)

    found: list[str] = []

    async def main() -> None:
        async for name in client.list("run"):
            found.append(name)  # noqa: PERF401  the part before the error counts

    with pytest.raises(StoreUnavailable):
        loop.run_until_complete(main())
    assert len(found) < 10
