"""The parts that a stream needs: they start only when they are asked for, and survive like the others."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import psycopg
import pytest
from google.pubsub_v1 import PublisherClient, SubscriberClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport
from google.pubsub_v1.types import PubsubMessage

from local.stack import Stack, parts
from tests.integration.stack.support import alive, wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.version_info >= (3, 13), reason="the package pgserver has no wheel for this Python"),
]

ROOT = Path(__file__).resolve().parents[3]
TOPIC, SUBSCRIPTION = "projects/local/topics/rows", "projects/local/subscriptions/rows"


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    stack = Stack(tmp_path / "state", parts=("pubsub", "postgres"))
    yield stack
    stack.down()
    assert stack.processes() == []


@contextlib.contextmanager
def _channel(stack: Stack) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(stack.environment()["PUBSUB_EMULATOR_HOST"]) as channel:
        yield channel


def _publish(stack: Stack) -> None:
    with _channel(stack) as channel:
        publisher = PublisherClient(transport=PublisherGrpcTransport(channel=channel))
        publisher.create_topic(name=TOPIC)
        subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))
        subscriber.create_subscription(name=SUBSCRIPTION, topic=TOPIC)
        publisher.publish(topic=TOPIC, messages=[PubsubMessage(data=b"kept")])


def _pull(stack: Stack) -> list[bytes]:
    with _channel(stack) as channel:
        subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))
        return [each.message.data for each in subscriber.pull(subscription=SUBSCRIPTION, max_messages=10).received_messages]


def test_a_night_starts_without_them() -> None:
    help_text = subprocess.run(
        [sys.executable, "-m", "local.stack", "up", "--help"], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout

    assert parts.NIGHT == ("storage", "bigquery", "agent", "airflow")
    assert Stack(Path("anywhere"))._names == parts.NIGHT
    assert "default: storage,bigquery,agent,airflow" in " ".join(help_text.split())


@pytest.mark.gate
def test_messages_and_rows_survive_kill_9_of_their_parts(stack: Stack) -> None:
    stack.up()
    _publish(stack)
    url = stack.environment()["NIGHTSHIFT_SINK_URL"]
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT '[1,2]'::vector AS v")
    document = stack.document()["parts"]
    assert "nightshift:" not in str(document)
    for part in document.values():
        os.kill(part["pid"], signal.SIGKILL)
    wait_until(lambda: {part["starts"] for part in stack.document()["parts"].values()} == {2}, "both are started again")
    wait_until(stack.healthy, "both are healthy again")

    assert stack.environment()["NIGHTSHIFT_SINK_URL"] == url
    assert _pull(stack) == [b"kept"]
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT v::text FROM kept").fetchall() == [("[1,2]",)]


def test_the_command_line_starts_them_and_down_leaves_nothing(stack: Stack) -> None:
    def command(*words: str) -> str:
        line = [sys.executable, "-m", "local.stack", *words, "--state", str(stack.state)]
        return subprocess.run(line, capture_output=True, text=True, check=True, cwd=ROOT).stdout

    command("up", "--parts", "storage", "--with", "pubsub postgres")
    exported = command("env")
    pids = [pid for name in ("storage", "pubsub", "postgres") for pid in stack.pids(name)]
    command("down")

    assert "export PUBSUB_EMULATOR_HOST=127.0.0.1:" in exported
    assert "export NIGHTSHIFT_SINK_URL=postgresql://nightshift:" in exported
    assert len(pids) >= 3
    wait_until(lambda: not any(alive(pid) for pid in pids), "the end of all parts")
