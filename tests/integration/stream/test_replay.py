"""Seeking a stream's subscription: back, and only what has no outcome is computed; to now, and the backlog is dropped."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from tests.integration.pubsub import wait_until
from tests.integration.stream.processes import LEASE_S, Stage, Staged, vector_text

pytestmark = pytest.mark.integration

MESSAGES = 30
LOST = 7


def keep_acknowledged(stage: Stage) -> None:
    """As with --retain-acked-messages; retention by the topic has the same effect."""
    old, stage.subscription = (
        stage.subscription,
        stage.pubsub.subscription(stage.topic, ack_deadline_seconds=LEASE_S, retain_acked_messages=True),
    )
    stage.file.write_text(stage.file.read_text().replace(old, stage.subscription))


def seek(stage: Stage, when: datetime) -> None:
    stage.pubsub.subscriber.seek(request={"subscription": stage.subscription, "time": when}, retry=None)


@pytest.mark.gate
def test_a_replay_computes_only_what_the_table_has_lost(staged: Staged) -> None:
    """A table that was restored from a backup is complete again after a seek to the time of the backup."""
    stage = staged()
    keep_acknowledged(stage)
    before = datetime.now(UTC) - timedelta(seconds=1)
    texts = [f"text {n}" for n in range(MESSAGES)]
    ids = stage.publish(*({"text": text} for text in texts))
    with stage.subscriber() as subscriber:
        stage.await_all_acknowledged()
        whole = sorted(stage.rows())
        with psycopg.connect(stage.server.url) as connection:
            connection.execute(f"DELETE FROM {stage.table} WHERE nightshift_message_id = ANY(%s)", [ids[:LOST]])
        stage.engine.seen.clear()
        seek(stage, before)
        wait_until(lambda: sorted(stage.rows()) == whole, "the rows that were lost are there again")
        stage.await_all_acknowledged()
        assert subscriber.terminate() == 0

    assert sorted(stage.engine.seen) == sorted(texts[:LOST]), "nothing else is computed again"
    assert dict(whole) == {name: vector_text(text) for name, text in zip(ids, texts, strict=True)}
    assert stage.dead() == []


def test_a_seek_to_now_drops_what_waits(staged: Staged) -> None:
    stage = staged()
    stage.publish(*({"text": f"text {n}"} for n in range(MESSAGES)))
    seek(stage, datetime.now(UTC))
    stage.await_all_acknowledged()
    ids = stage.publish({"text": "after"})
    with stage.subscriber():
        stage.await_all_acknowledged()

    assert stage.engine.seen == ["after"]
    assert [name for name, _ in stage.rows()] == ids
