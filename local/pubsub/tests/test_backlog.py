"""A subscription's backlog under random schedules: what must be true after each step, and at the end."""

from __future__ import annotations

import random

import pytest

from local.pubsub.backlog import Backlog
from local.pubsub.leases import Consumer, Lease, Message, Settings

pytestmark = pytest.mark.unit

SETTINGS = {
    "plain": Settings(),
    "ordered": Settings(ordered=True),
    "ordered, once": Settings(ordered=True, exactly_once=True),
    "ordered, delays": Settings(ordered=True, backoff=(10.0, 60.0)),
    "dead letters": Settings(ordered=True, attempts_most=5),
    "retained": Settings(ordered=True, retain_acked=True),
}
STEPS = 2000
KEYS = ("", "a", "b", "c")


class World:
    """One backlog, its consumers, and a clock."""

    def __init__(self, settings: Settings, seed: int) -> None:
        self.random = random.Random(seed)
        self.backlog = Backlog(1, settings)
        self.now = 1000.0
        self.published: dict[int, Message] = {}
        self.acknowledged: set[int] = set()
        self.dead: set[int] = set()
        self.held: list[Lease] = []

    def step(self) -> None:
        action = self.random.choice(["add", "take", "take", "ack", "ack", "nack", "extend", "wait"])
        getattr(self, action)()
        self.settle()

    def add(self) -> None:
        number = len(self.published) + 1
        self.published[number] = Message(number, self.now, self.random.choice(KEYS), b"x" * self.random.choice([1, 100]))
        self.backlog.add(self.published[number])

    def take(self) -> None:
        taken = self.backlog.take(Consumer(10), self.random.randint(1, 5), self.random.choice([50, 1000]), self.now)
        self.judge_order([lease.entry.message for lease in taken])
        self.held += taken

    def judge_order(self, taken: list[Message]) -> None:
        """Nothing of a key is delivered before an older message of the key that is not acknowledged."""
        for message in taken:
            older = [
                each
                for each in self.backlog.entries.values()
                if each.message.key == message.key and each.message.id < message.id and not each.acked
            ]
            if message.key and self.backlog.settings.ordered:
                assert all(each.leases for each in older)

    def ack(self) -> None:
        if lease := self.choose():
            alive = lease in lease.entry.leases and lease.deadline > self.now
            failed = self.backlog.acknowledge([lease.ack_id], self.now)
            assert bool(failed) is not alive
            if alive:
                self.acknowledged.add(lease.entry.message.id)

    def nack(self) -> None:
        if lease := self.choose():
            self.backlog.modify([lease.ack_id], 0, self.now)

    def extend(self) -> None:
        if lease := self.choose():
            self.backlog.modify([lease.ack_id], self.random.randint(1, 600), self.now)

    def wait(self) -> None:
        self.now += self.random.choice([0.1, 0.1, 5.0, 11.0])
        self.backlog.advance(self.now)

    def choose(self) -> Lease | None:
        self.held = self.held[-8:]
        return self.random.choice(self.held) if self.held else None

    def settle(self) -> None:
        """What the broker does, and what must be true then."""
        dead, self.backlog.dead = self.backlog.dead, []
        for entry in dead:
            self.backlog.discard(entry)
            self.dead.add(entry.message.id)
        entries = self.backlog.entries
        unacked = {number for number, entry in entries.items() if not entry.acked}
        assert len(unacked) == self.backlog.unacked
        # Conservation: whatever was published is waiting, was acknowledged, or is a dead letter.
        assert unacked | self.acknowledged | self.dead == self.published.keys()
        assert not unacked & self.dead
        leases = [lease for entry in entries.values() for lease in entry.leases]
        assert all(len(entry.leases) <= 1 for entry in entries.values())
        assert all(lease.deadline > self.now - 0.001 for lease in leases) or self.backlog.due(self.now)
        if self.backlog.settings.ordered:
            for key in KEYS[1:]:
                assert len({id(lease.consumer) for lease in leases if lease.entry.message.key == key}) <= 1

    def drain(self) -> None:
        """All consumers are gone; one acknowledges whatever comes."""
        # The leases end, then the delays that follow.
        for _ in range(2):
            self.now += 1000
            self.backlog.advance(self.now)
            self.settle()
        while self.backlog.unacked:
            taken = self.backlog.take(Consumer(10), 100, 10**9, self.now)
            assert taken
            assert self.backlog.acknowledge([lease.ack_id for lease in taken], self.now) == {}
            self.acknowledged |= {lease.entry.message.id for lease in taken}
            self.settle()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_nothing_is_lost_and_the_order_is_kept_under_random_schedules(settings: Settings, seed: int) -> None:
    world = World(settings, seed)
    for _ in range(STEPS):
        world.step()
    assert len(world.acknowledged) > 20
    world.drain()

    left = world.backlog.entries
    assert left.keys() == (world.published.keys() if settings.retain_acked else set())
    assert all(entry.acked for entry in left.values())
    if settings.attempts_most is not None:
        assert world.dead


def test_a_schedule_runs_the_same_again() -> None:
    """A failure above can be repeated by its seed."""
    deliveries = []
    for _ in range(2):
        world = World(SETTINGS["ordered"], 7)
        for _ in range(STEPS):
            world.step()
        deliveries.append(dict(world.backlog.deliveries))

    assert deliveries[0] == deliveries[1]
