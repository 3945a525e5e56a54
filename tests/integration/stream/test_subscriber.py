"""`nightshift stream` between a Pub/Sub emulator, a real PostgreSQL and an engine that can be made to fail."""

from __future__ import annotations

import asyncio
import io
import json
import threading
import time
from pathlib import Path

import fastavro
import pytest
from aiohttp import web

from tests.integration.driver.canned import CannedEngine, Outage
from tests.integration.emulators import start_postgres
from tests.integration.pubsub import wait_until
from tests.integration.stream.processes import LEASE_S, Running, Staged, vector_text

pytestmark = pytest.mark.integration

LONGER_S = LEASE_S + 5
"""Than the subscription's own lease: what is not extended comes again."""
AVRO = {
    "type": "record",
    "name": "Package",
    "fields": [{"name": "name", "type": "string"}, {"name": "text", "type": "string"}],
}


async def says_no(texts: list[str]) -> web.StreamResponse | None:
    if any("poison" in text for text in texts):
        return web.json_response({"error": {"message": "I do not like it"}}, status=400)
    return None


@pytest.mark.gate
def test_every_message_is_answered_once_and_the_poisoned_are_dead_letters(staged: Staged) -> None:
    stage = staged(behaviour=says_no)
    texts = [f"poison {n}" if n % 37 == 5 else f"text {n}" for n in range(300)]
    ids = stage.publish(*({"text": text} for text in texts), kind="test")
    with stage.subscriber() as subscriber:
        stage.await_all_acknowledged()
        code = subscriber.terminate()

    good = {name: vector_text(text) for name, text in zip(ids, texts, strict=True) if "poison" not in text}
    assert dict(stage.rows()) == good
    assert len(stage.rows()) == len(good)
    poisoned = {name for name, text in zip(ids, texts, strict=True) if "poison" in text}
    assert set(stage.dead()) == {(name, "rejected") for name in poisoned}
    announced = [received.message for received in stage.pubsub.pull_all(stage.dead_subscription)]
    assert sorted(message.attributes["nightshift_message_id"] for message in announced) == sorted(poisoned)
    assert {message.attributes["nightshift_text"] for message in announced} == {"I do not like it"}
    assert {message.attributes["kind"] for message in announced} == {"test"}
    assert {json.loads(message.data)["text"] for message in announced} == {text for text in texts if "poison" in text}
    assert stage.delivered_once(ids)
    assert code == 0


@pytest.mark.gate
def test_each_message_that_cannot_be_read_is_one_dead_letter_with_its_reason(staged: Staged) -> None:
    stage = staged(source={"attributes": ["tenant"], "key": ["name"]})
    good = {"name": "a", "text": "fine"}
    bad = {
        b"{": "the message is not JSON",
        b"[1]": "the message is JSON, but not an object",
        b'{"name": "b"}': "the message has no 'text'; it has name, tenant",
        b'{"name": null, "text": "x"}': "the key column 'name' is NULL",
        b'{"name": "c", "text": ""}': "the template rendered to nothing",
        b"\xff": "the message is not JSON",
    }
    stage.publish(good, tenant="t")
    stage.pubsub.publish(stage.topic, *bad, tenant="t")
    stage.pubsub.publish(stage.topic, b"", tenant="t")
    stage.publish({"name": "d", "text": "without a tenant"})
    with stage.subscriber():
        stage.await_all_acknowledged()

    assert stage.rows("name") == [("a",)]
    found = [(bytes(data), text) for data, text in stage.dead("data, text")]
    for data, text in bad.items():
        assert [said for written, said in found if written == data and said.startswith(text)], (data, found)
    said = [text for _, text in found]
    assert "the message is empty" in said
    assert "the message lacks the attribute 'tenant'" in said
    assert len(found) == len(bad) + 2
    assert len(stage.pubsub.pull_all(stage.dead_subscription)) == len(found)


@pytest.mark.gate
def test_a_dead_letter_of_ten_megabytes_is_announced_without_its_data(staged: Staged) -> None:
    stage = staged()
    data = b'{"nothing": "' + b"x" * 9_999_800 + b'"}'
    stage.pubsub.publish(stage.topic, data, kind="large")
    with stage.subscriber():
        stage.await_all_acknowledged()

    assert [(len(kept), reason) for kept, reason in stage.dead("data, reason")] == [(len(data), "bad_input")]
    (announced,) = stage.pubsub.pull_all(stage.dead_subscription)
    assert announced.message.data == b""
    assert announced.message.attributes["kind"] == "large"
    assert announced.message.attributes["nightshift_left_out"] == (
        f"{len(data):,} bytes of data; the table {stage.table}_dead_letters has the whole message"
    )


def test_records_in_avro_and_what_is_not_of_the_schema(staged: Staged) -> None:
    """In JSON's encoding only the unit tests have them: the emulator has no topics with schemas."""
    stage = staged(source={"format": "avro", "avro_schema": AVRO, "key": ["name"]})
    record = io.BytesIO()
    fastavro.schemaless_writer(record, AVRO, {"name": "one", "text": "in binary"})
    stage.pubsub.publish(stage.topic, record.getvalue(), record.getvalue() + b"more", b"\x02")
    with stage.subscriber():
        stage.await_all_acknowledged()

    assert stage.rows("name, embedding::text") == [("one", vector_text("in binary"))]
    assert sorted(text.partition(":")[0] for (text,) in stage.dead("text")) == [
        "the message has 4 bytes more than a record of the stream's Avro schema",
        "the message is not a record of the stream's Avro schema",
    ]


def test_messages_of_one_ordering_key_are_answered_in_order_and_a_key_that_is_not_allowed_is_dead(staged: Staged) -> None:
    stage = staged(
        source={"ordering": True, "ordering_keys": ["a*"], "key": ["name"]}, latency={"target": "60s", "flush": "10ms"}
    )
    for key in ("a1", "a2"):
        stage.pubsub.publish(
            stage.topic, *(json.dumps({"name": key, "text": f"{key} {n}"}).encode() for n in range(10)), key=key
        )
    stage.pubsub.publish(stage.topic, b'{"name": "x", "text": "x"}', key="b")
    stage.pubsub.publish(stage.topic, b'{"name": "y", "text": "y"}')
    with stage.subscriber():
        stage.await_all_acknowledged()

    for key in ("a1", "a2"):
        assert [text for text in stage.engine.seen if text.startswith(key)] == [f"{key} {n}" for n in range(10)]
    assert sorted(text for (text,) in stage.dead("text")) == [
        "the message has no ordering key, but the stream answers in order",
        "the ordering key 'b' is not among those that the stream allows",
    ]


@pytest.mark.gate
def test_a_message_that_comes_again_is_acknowledged_and_not_computed_again(staged: Staged) -> None:
    stage = staged()
    stage.pubsub.order(kind="drop_acks", resource=stage.subscription, times=1)
    ids = stage.publish({"text": "once"})
    with stage.subscriber():
        wait_until(lambda: len(stage.rows()) == 1, "the answer is in the sink")
        wait_until(lambda: stage.pubsub.faults()[0]["done"] == 1, "its acknowledgement was forgotten")
        stage.pubsub.advance(700)
        stage.await_all_acknowledged()

    assert stage.pubsub.deliveries(stage.subscription)[ids[0]] == 2
    assert stage.engine.seen == ["once"]


@pytest.mark.gate
def test_exactly_once_delivery_goes_on_after_the_leases_of_all_that_is_held_are_over(staged: Staged) -> None:
    """What Pub/Sub says of five hundred leases in one reply is far beyond the 16 KiB of metadata that gRPC takes by itself."""
    release = threading.Event()

    async def slow(texts: list[str]) -> None:
        await asyncio.to_thread(release.wait, 120)

    stage = staged(behaviour=slow, exactly_once=True, engine={"max_num_seqs": 256})
    ids = stage.publish(*({"text": f"text {n}"} for n in range(1000)))
    with stage.subscriber() as subscriber:
        wait_until(lambda: stage.pubsub.statistics(stage.subscription)["outstanding"] > 600, "most are held")
        stage.pubsub.order(kind="unavailable", resource=stage.subscription, for_s=30)
        stage.pubsub.advance(700)
        release.set()
        wait_until(lambda: len(stage.rows()) == 1000, "all are answered")
        stage.await_all_acknowledged()
        code = subscriber.terminate()

    assert dict(stage.rows()) == {name: vector_text(f"text {n}") for n, name in enumerate(ids)}
    assert max(stage.pubsub.deliveries(stage.subscription).values()) <= 3, "a dead-letter policy would take them away"
    assert code == 0


@pytest.mark.gate
def test_a_killed_subscriber_loses_nothing(staged: Staged) -> None:
    release = threading.Event()

    async def slow(texts: list[str]) -> None:
        await asyncio.to_thread(release.wait, 60)

    stage = staged(behaviour=slow)
    ids = stage.publish(*({"text": f"text {n}"} for n in range(100)))
    with stage.subscriber() as first:
        wait_until(lambda: len(stage.engine.seen) > 10, "the engine has some")
        first.kill()
    release.set()
    stage.pubsub.advance(700)
    with stage.subscriber():
        stage.await_all_acknowledged()

    assert dict(stage.rows()) == {name: vector_text(f"text {n}") for n, name in enumerate(ids)}


@pytest.mark.gate
def test_an_absent_engine_spends_no_delivery_attempts(staged: Staged) -> None:
    stage = staged()
    ids = stage.publish(*({"text": f"text {n}"} for n in range(200)))
    port = stage.engine.port
    with stage.subscriber() as subscriber:
        wait_until(lambda: len(stage.rows()) > 0, "the first answers")
        stage.engine.__exit__(None, None, None)
        more = stage.publish(*({"text": f"more {n}"} for n in range(200)))
        wait_until(lambda: subscriber.said("engine lost"), "the subscriber misses its engine")
        time.sleep(LONGER_S)
        stage.engine = CannedEngine(port=port)
        with stage.engine:
            stage.await_all_acknowledged()

    assert len(stage.rows()) == 400
    assert stage.delivered_once([*ids, *more])


def test_an_engine_that_fails_everybody_spends_none_either(staged: Staged) -> None:
    outage = Outage(after=3)
    stage = staged(behaviour=outage)
    ids = stage.publish(*({"text": f"text {n}"} for n in range(400)))
    with stage.subscriber() as subscriber:
        wait_until(
            lambda: subscriber.said("waiting for the engine: it reports that it is healthy, but answers no request"),
            "the subscriber sees that nobody is answered",
        )
        outage.over = True
        stage.await_all_acknowledged()

    assert len(stage.rows()) == 400
    assert stage.dead() == []
    assert stage.delivered_once(ids)


def test_an_absent_database_spends_no_delivery_attempts(staged: Staged, tmp_path: Path) -> None:
    server = start_postgres(tmp_path / "own")
    stage = staged(server=server)
    ids = stage.publish(*({"text": f"text {n}"} for n in range(50)))
    try:
        with stage.subscriber() as subscriber:
            wait_until(lambda: len(stage.rows()) == 50, "the first answers")
            server.stop()
            more = stage.publish(*({"text": f"more {n}"} for n in range(300)))
            wait_until(lambda: subscriber.said("no answer"), "the subscriber misses its database")
            time.sleep(LONGER_S)
            server.start()
            stage.await_all_acknowledged()
        assert len(stage.rows()) == 350
    finally:
        server.stop()

    assert stage.delivered_once([*ids, *more])


@pytest.mark.gate
def test_a_drain_gives_back_what_it_cannot_finish(staged: Staged) -> None:
    held = []

    async def never(texts: list[str]) -> None:
        held.extend(texts)
        await asyncio.sleep(60)

    stage = staged(behaviour=never)
    stage.publish(*({"text": f"text {n}"} for n in range(100)))
    with stage.subscriber() as subscriber:
        wait_until(lambda: len(held) > 0, "the engine has some")
        code = subscriber.terminate()

    statistics = stage.pubsub.statistics(stage.subscription)
    assert (statistics["num_undelivered_messages"], statistics["outstanding"]) == (100, 0)
    assert code == 0
    assert stage.rows() == []


@pytest.mark.gate
def test_the_newest_message_of_a_key_counts_whatever_the_order(staged: Staged) -> None:
    stage = staged(source={"key": ["name"]}, engine={"max_num_seqs": 1})
    for n in range(5):
        stage.publish({"name": "same", "text": f"version {n}"})
    with stage.subscriber():
        stage.await_all_acknowledged()
        stage.publish({"name": "same", "text": "the last one"})
        stage.await_all_acknowledged()

    assert stage.rows("name, embedding::text") == [("same", vector_text("the last one"))]


@pytest.mark.gate
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"NIGHTSHIFT_SINK_URL": "nonsense=1 password=geheim"}, "NIGHTSHIFT_SINK_URL is not an address of PostgreSQL"),
        ({"NIGHTSHIFT_SINK_URL": ""}, "Set NIGHTSHIFT_SINK_URL to the address of the stream's database"),
    ],
)
def test_a_wrong_address_is_named_without_its_password(staged: Staged, change: dict[str, str], words: str) -> None:
    stage = staged()
    with stage.subscriber(**change) as subscriber:
        code = subscriber.process.wait(60)

    said = subscriber.log.read_text()
    assert words in said
    assert "geheim" not in said
    assert code == 2


def test_a_subscription_that_does_not_exist_ends_the_process(staged: Staged) -> None:
    stage = staged()
    stage.pubsub.subscriber.delete_subscription(subscription=stage.subscription)
    with stage.subscriber() as subscriber:
        code = subscriber.process.wait(60)

    (line,) = [line for line in subscriber.lines() if line["message"] == "cannot continue"]
    assert "NotFound" in line["error"]
    assert code == 78


@pytest.mark.gate
def test_a_subscription_that_is_detached_ends_the_process_with_the_words_of_pubsub(staged: Staged) -> None:
    stage = staged()
    stage.pubsub.publisher.detach_subscription(request={"subscription": stage.subscription})
    with stage.subscriber() as subscriber:
        code = subscriber.process.wait(60)

    assert code == 78
    words = "FailedPrecondition: 400 The subscription is detached from its topic."
    assert ended(subscriber) == f"PubSubRefused: {stage.subscription} cannot be pulled from: {words}"


@pytest.mark.gate
def test_that_the_topic_of_the_subscription_is_deleted_is_said_at_the_start_and_what_is_there_is_answered(
    staged: Staged,
) -> None:
    stage = staged()
    stage.publish({"text": "left"})
    stage.pubsub.publisher.delete_topic(topic=stage.topic)
    with stage.subscriber() as subscriber:
        stage.await_all_acknowledged()
        (line,) = [line for line in subscriber.lines() if line["severity"] == "ERROR"]

    assert line["message"] == "the topic is deleted"
    assert line["error"] == f"the topic of {stage.subscription} has been deleted"
    assert "make it again" in line["remedy"]


@pytest.mark.gate
def test_a_topic_of_dead_letters_that_is_not_there_is_said_before_there_is_a_dead_letter(staged: Staged) -> None:
    stage = staged(dead_letters={"topic": "projects/local/topics/missing"})
    with stage.subscriber() as subscriber:
        code = subscriber.process.wait(60)

    assert code == 78
    assert ended(subscriber).startswith(
        "PubSubRefused: projects/local/topics/missing cannot be published on: it does not exist"
    )


@pytest.mark.gate
def test_dead_letters_that_would_come_back_are_refused_at_the_start(staged: Staged) -> None:
    stage = staged()
    stage.file.write_text(stage.file.read_text().replace(stage.dead_topic, stage.topic))
    with stage.subscriber() as subscriber:
        code = subscriber.process.wait(60)

    assert code == 78
    assert ended(subscriber).startswith(f"PubSubRefused: dead_letters.topic is {stage.topic}, the topic of the stream's own")


def test_a_topic_of_dead_letters_that_vanishes_holds_them_until_it_is_back(staged: Staged) -> None:
    stage = staged(behaviour=says_no)
    stage.publish({"text": "text"})
    with stage.subscriber() as subscriber:
        stage.await_all_acknowledged()
        stage.pubsub.publisher.delete_topic(topic=stage.dead_topic)
        stage.publish({"text": "poison"}, {"text": "another text"})
        wait_until(lambda: subscriber.said("no answer"), "the topic is missed")
        wait_until(lambda: stage.backlog == 1, "others are not kept waiting")
        assert stage.dead("reason") == [("rejected",)]
        stage.pubsub.publisher.create_topic(name=stage.dead_topic)
        stage.await_all_acknowledged()
        assert subscriber.process.poll() is None


def ended(subscriber: Running) -> str:
    """Why a process could not continue."""
    (line,) = [line for line in subscriber.lines() if line["message"] == "cannot continue"]
    return str(line["error"])
