"""The process dies and comes back: what it answered holds."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.api_core import exceptions
from google.pubsub_v1.types import PullRequest

from tests.integration.emulators import PubSubEmulator, start_pubsub
from tests.integration.pubsub import PubSub, wait_until

pytestmark = pytest.mark.integration

KILLS = 3
WRITERS = 3


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[PubSubEmulator]:
    """An emulator that this test alone may kill."""
    emulator = start_pubsub(tmp_path)
    yield emulator
    emulator.kill()


@pytest.fixture
def own(emulator: PubSubEmulator) -> Iterator[PubSub]:
    made = PubSub(emulator)
    yield made
    made.close()


def _restart(own: PubSub) -> PubSub:
    """Clients that know nothing of the connection to the killed process."""
    own.emulator.kill()
    own.emulator.start()
    return PubSub(own.emulator)


def _publish_until_killed(own: PubSub, topic: str, writer: int, first: int, published: set[bytes]) -> None:
    for number in range(first, first + 100_000):
        data = [b"%d-%d-%d" % (writer, number, n) for n in range(5)]
        try:
            own.publish(topic, *data)
        except exceptions.GoogleAPICallError:
            return
        published.update(data)


@pytest.mark.gate
def test_kill_9_among_publishers_loses_nothing(own: PubSub) -> None:
    topic, subscription = own.pair()
    published: set[bytes] = set()
    for kill in range(KILLS):
        here = PubSub(own.emulator)
        goal = len(published) + 300
        threads = [
            threading.Thread(target=_publish_until_killed, args=(here, topic, writer, kill * 100_000, published))
            for writer in range(WRITERS)
        ]
        for thread in threads:
            thread.start()
        wait_until(lambda goal=goal: len(published) >= goal, "the publishers get that far")  # type: ignore[misc]
        own.emulator.kill()
        for thread in threads:
            thread.join()
        here.close()
        own.emulator.start()

    after = PubSub(own.emulator)
    found: list[bytes] = []
    while got := after.data(subscription, 1000):
        found += got
    assert len(found) == len(set(found))
    assert published - set(found) == set()
    # At most the one request that each publisher had on its way was stored without an answer.
    assert len(found) - len(published) <= KILLS * WRITERS * 5
    after.close()


def _acknowledge_until_killed(own: PubSub, subscription: str, acked: set[bytes]) -> None:
    while True:
        try:
            received = own.pull(subscription, 7)
            if received:
                own.ack(subscription, *received)
        except exceptions.GoogleAPICallError:
            return
        acked.update(each.message.data for each in received)


def test_kill_9_among_subscribers_keeps_every_answered_ack(own: PubSub) -> None:
    topic, subscription = own.pair()
    everything = {b"%d" % n for n in range(3000)}
    for batch in range(3):
        own.publish(topic, *[b"%d" % n for n in range(batch * 1000, batch * 1000 + 1000)])
    acked: set[bytes] = set()
    for _ in range(KILLS):
        here = PubSub(own.emulator)
        goal = len(acked) + 200
        threads = [threading.Thread(target=_acknowledge_until_killed, args=(here, subscription, acked)) for _ in range(WRITERS)]
        for thread in threads:
            thread.start()
        wait_until(lambda goal=goal: len(acked) >= goal, "the subscribers get that far")  # type: ignore[misc]
        own.emulator.kill()
        for thread in threads:
            thread.join()
        here.close()
        own.emulator.start()

    after = PubSub(own.emulator)
    left: list[bytes] = []
    while got := after.data(subscription, 1000):
        left += got
    assert set(left) & acked == set()
    # What is in neither was acknowledged by a request whose answer was lost: at most one of each subscriber at each kill.
    assert len(everything - acked - set(left)) <= KILLS * WRITERS * 7
    after.close()


@pytest.mark.gate
def test_acks_hold_and_outstanding_messages_come_again(own: PubSub) -> None:
    topic, subscription = own.pair(ack_deadline_seconds=600)
    own.publish(topic, b"acked", b"outstanding", b"waiting")
    first, second = own.pull(subscription, 2)
    own.ack(subscription, first)
    after = _restart(own)
    # The ack id of an earlier run is well-formed, and its lease is over.
    after.ack(subscription, second)

    assert after.data(subscription) == [b"outstanding", b"waiting"]
    after.close()


@pytest.mark.gate
def test_every_kind_of_state_survives(own: PubSub) -> None:
    dead, letters = own.pair()
    topic = own.topic()
    policy = {"dead_letter_topic": dead, "max_delivery_attempts": 5}
    subscription = own.subscription(topic, dead_letter_policy=policy, filter="attributes:k", retain_acked_messages=True)
    own.publish(topic, b"acked", k="v")
    own.publish(topic, b"failed", k="v")
    own.publish(topic, b"other")
    acked, failed = own.pull(subscription)
    own.ack(subscription, acked)
    own.nack(subscription, failed)
    for _ in range(2):
        own.nack(subscription, *own.pull(subscription))
    before = own.subscriber.get_subscription(subscription=subscription, retry=None)
    after = _restart(own)

    assert after.subscriber.get_subscription(subscription=subscription, retry=None) == before
    (again,) = after.pull(subscription)
    assert (again.message.data, again.delivery_attempt) == (b"failed", 4)
    after.subscriber.seek(request={"subscription": subscription, "time": acked.message.publish_time}, retry=None)
    assert after.data(subscription) == [b"acked", b"failed"]
    assert after.data(letters) == []
    # A seek is kept, too.
    after = _restart(after)
    assert after.data(subscription) == [b"acked", b"failed"]
    after.close()


def test_order_and_ids_go_on_after_a_restart(own: PubSub) -> None:
    topic, subscription = own.pair(enable_message_ordering=True)
    before = own.publish(topic, b"0", b"1", b"2", key="k")
    received = own.pull(subscription, 2)
    # Acknowledged before an earlier one: the answer holds.
    own.ack(subscription, received[1])
    after = _restart(own)
    later = after.publish(topic, b"3", key="k")

    assert after.data(subscription) == [b"0", b"2", b"3"]
    assert max(map(int, before)) < min(map(int, later))
    after.close()


def test_a_seek_holds(own: PubSub) -> None:
    topic, subscription = own.pair(retain_acked_messages=True)
    own.publish(topic, b"old")
    own.advance(60)
    own.publish(topic, b"new")
    old, new = own.pull(subscription)
    own.ack(subscription, old, new)
    own.subscriber.seek(request={"subscription": subscription, "time": new.message.publish_time}, retry=None)
    after = _restart(own)

    assert after.data(subscription) == [b"new"]
    after.subscriber.seek(request={"subscription": subscription, "time": old.message.publish_time}, retry=None)
    assert after.data(subscription) == [b"old", b"new"]
    after.close()


def test_an_acknowledged_message_that_came_back_for_the_order_is_still_there(own: PubSub) -> None:
    topic, subscription = own.pair(enable_message_ordering=True)
    own.publish(topic, b"0", b"1", key="k")
    first, second = own.pull(subscription)
    own.ack(subscription, second)
    own.nack(subscription, first)
    after = _restart(own)

    assert after.data(subscription) == [b"0", b"1"]
    after.close()


def test_what_is_deleted_stays_deleted(own: PubSub) -> None:
    topic, subscription = own.pair()
    own.publish(topic, b"x")
    own.subscriber.delete_subscription(subscription=subscription, retry=None)
    own.publisher.delete_topic(topic=topic, retry=None)
    after = _restart(own)

    with pytest.raises(exceptions.NotFound):
        after.publish(topic, b"x")
    with pytest.raises(exceptions.NotFound):
        after.pull(subscription)
    after.close()


def test_sigterm_ends_it_with_success_while_a_pull_waits(own: PubSub) -> None:
    _, subscription = own.pair()
    pull: Any = own.subscriber.transport.pull
    waiting = pull.future(PullRequest(subscription=subscription, max_messages=1))
    # Answered after it, so the one that waits has begun.
    assert own.pull(subscription) == []

    assert own.emulator.stop() == 0
    with pytest.raises(grpc.RpcError):
        waiting.result()


@pytest.mark.gate
def test_a_second_process_on_the_same_folder_or_port_is_refused(own: PubSub, tmp_path: Path) -> None:
    command = list(own.emulator.command)
    port = command.index("--port") + 1
    same_folder = [*command[:port], "0", *command[port + 1 :]]
    same_port = [*command[:-1], str(tmp_path / "another")]
    for line, said in ((same_folder, "in use by another Pub/Sub emulator"), (same_port, "cannot listen")):
        second = subprocess.run(line, capture_output=True, text=True, timeout=600, cwd=Path(__file__).parents[3])
        assert second.returncode == 1
        assert said in second.stderr


def test_sigkill_is_what_kill_sends(emulator: PubSubEmulator) -> None:
    """The other tests of this file prove nothing if the process could clean up."""
    emulator.kill()

    assert emulator.process is not None
    assert emulator.process.returncode == -signal.SIGKILL
