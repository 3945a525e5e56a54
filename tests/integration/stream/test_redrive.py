"""Dead letters published again: from a real PostgreSQL, over the Pub/Sub emulator, to real subscribers."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from aiohttp import web

from nightshift.operators.redrive import RedriveOperator
from nightshift.spec import load_stream
from nightshift.stream.dead_letters import DeadLetterTable, Selection
from nightshift.stream.messages import Message
from nightshift.stream.ports import SinkRefused, Unavailable
from nightshift.stream.pubsub import Publisher
from nightshift.stream.pubsub_client import PubSubRefused
from nightshift.stream.redrive import Redrive, Redriven, redrive
from tests.integration.emulators import ANONYMOUS_CONNECTION, PostgresServer, PubSubEmulator
from tests.integration.pubsub import PubSub, unique
from tests.integration.stream.processes import PLUGINS, Stage, Staged, vector_text
from tests.integration.stream.tables import BEGAN, Place, a_death

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def _emulator(pubsub_emulator: PubSubEmulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", pubsub_emulator.target)


class Mended:
    """An engine's behaviour: 400 for every text with "poison" in it, until what is wrong is mended."""

    def __init__(self) -> None:
        self.mended = False

    async def __call__(self, texts: list[str]) -> web.StreamResponse | None:
        if not self.mended and any("poison" in text for text in texts):
            return web.json_response({"error": {"message": "I do not like it"}}, status=400)
        return None


def redriven(stage: Stage, **asked: Any) -> Redriven:
    what = Redrive(stage.subscription, **asked)
    return asyncio.run(redrive(stage.server.url, load_stream(stage.file), what))


def texts_of(stage: Stage, *texts: str, **attributes: str) -> list[str]:
    return stage.publish(*({"text": text, "name": text} for text in texts), **attributes)


def test_redriven_dead_letters_are_answered_once_as_they_were(staged: Staged) -> None:
    engine = Mended()
    stage = staged(behaviour=engine)
    (good,) = texts_of(stage, "good")
    bad = texts_of(stage, *(f"poison {n}" for n in range(5)), tenant="t")
    with stage.subscriber():
        stage.await_all_acknowledged()
        assert {name for name, _ in stage.dead()} == set(bad)
        engine.mended = True
        first, second = redriven(stage), redriven(stage)
        stage.await_all_acknowledged()

    assert (first.selected, first.published, second.selected, second.published) == ({"rejected": 5}, 5, {}, 0)
    again = {f"{name}.r1": vector_text(f"poison {n}") for n, name in enumerate(bad)}
    assert dict(stage.rows()) == {good: vector_text("good"), **again}
    marks = stage.dead("message_id, redriven_as, redriven_at >= dead_at")
    assert sorted(marks) == sorted((name, f"{name}.r1", True) for name in bad)
    times = dict(stage.rows("nightshift_message_id, nightshift_publish_time"))
    assert {times[f"{name}.r1"] for name in bad} == {when for _, when in stage.dead("message_id, publish_time")}


@pytest.mark.gate
def test_if_the_database_fails_between_publishing_and_marking_the_copies_have_one_outcome(
    staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Mended()
    stage = staged(behaviour=engine)
    # An engine that refused every one of so many would be waited for.
    good, *bad = texts_of(stage, "good", *(f"poison {n}" for n in range(20)))
    with stage.subscriber():
        stage.await_all_acknowledged()
    engine.mended = True
    real = Publisher.send_all

    async def send_all(publisher: Publisher, messages: Sequence[Message], form: Any, refusal: Any) -> dict[str, Any]:
        refused: dict[str, Any] = await real(publisher, messages, form, refusal)
        with psycopg.connect(stage.server.url) as killer:
            killer.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'nightshift' AND state = 'idle in transaction'"
            )
        return refused

    with monkeypatch.context() as patch:
        patch.setattr(Publisher, "send_all", send_all)
        with pytest.raises(Unavailable):
            redriven(stage)
    assert stage.dead("redriven_at") == [(None,)] * 20
    assert redriven(stage).published == 20
    assert stage.backlog == 40

    with stage.subscriber(), stage.subscriber():
        stage.await_all_acknowledged()
    assert sorted(name for name, _ in stage.rows()) == sorted([good, *(f"{name}.r1" for name in bad)])


def test_an_answer_to_a_newer_message_of_the_key_stays(staged: Staged) -> None:
    engine = Mended()
    stage = staged(behaviour=engine, source={"key": ["name"]})
    with stage.subscriber():
        stage.publish({"name": "a", "text": "poison of Monday"})
        stage.await_all_acknowledged()
        stage.publish({"name": "a", "text": "Wednesday"})
        stage.await_all_acknowledged()
        engine.mended = True
        assert redriven(stage).published == 1
        stage.await_all_acknowledged()

    assert stage.rows("name, embedding::text") == [("a", vector_text("Wednesday"))]


def test_one_that_dies_again_is_another_dead_letter(staged: Staged) -> None:
    stage = staged(behaviour=Mended())
    (bad,) = texts_of(stage, "poison", tenant="t")
    with stage.subscriber():
        stage.await_all_acknowledged()
        for _ in range(2):
            assert redriven(stage).published == 1
            stage.await_all_acknowledged()

    assert sorted(stage.dead("message_id, redriven_as")) == [
        (bad, f"{bad}.r1"),
        (f"{bad}.r1", f"{bad}.r2"),
        (f"{bad}.r2", None),
    ]
    announced = [received.message for received in stage.pubsub.pull_all(stage.dead_subscription)]
    assert sorted(message.attributes["nightshift_message_id"] for message in announced) == [bad, f"{bad}.r1", f"{bad}.r2"]
    assert {message.attributes["tenant"] for message in announced} == {"t"}
    assert [message for message in announced if "nightshift_redriven" in message.attributes] == []


def test_a_stream_with_other_limits_answers_into_the_same_table(staged: Staged) -> None:
    """What "answer them with other limits" is: a second stream, whose topic gets the dead letters of the first."""
    first = staged(behaviour=Mended())
    (bad,) = texts_of(first, "poison")
    with first.subscriber():
        first.await_all_acknowledged()
    second = staged()
    second.file.write_text(second.file.read_text().replace(f"table: {second.table}", f"table: {first.table}"))

    assert redriven(first, topic=second.topic).topic == second.topic
    assert first.backlog == 0
    with second.subscriber():
        second.await_all_acknowledged()
    assert first.rows() == [(f"{bad}.r1", vector_text("poison"))]


def test_the_command_and_the_task_mean_the_same(staged: Staged, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = staged(behaviour=Mended())
    bad = texts_of(stage, *(f"poison {n}" for n in range(3)))
    with stage.subscriber():
        stage.await_all_acknowledged()
    parts = psycopg.conninfo.conninfo_to_dict(stage.server.url)
    connection = {
        "conn_type": "postgres",
        "host": parts["host"],
        "port": int(str(parts["port"])),
        "login": parts["user"],
        "password": parts["password"],
        "schema": parts["dbname"],
    }
    for name, value in {
        "NIGHTSHIFT_BUCKET": "runs",
        "NIGHTSHIFT_PROJECT": "local",
        "NIGHTSHIFT_SINK_URL": stage.server.url,
        "AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT": ANONYMOUS_CONNECTION,
        "AIRFLOW_CONN_POSTGRES_DEFAULT": json.dumps(connection),
    }.items():
        monkeypatch.setenv(name, value)

    def command(*words: str) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "nightshift.cli", "stream", "redrive", str(stage.file), "--json", *words],
            env={**os.environ, "PYTHONPATH": str(PLUGINS)},
            capture_output=True,
            text=True,
            check=True,
        )
        return dict(json.loads(done.stdout))

    def task(**parameters: Any) -> dict[str, Any]:
        context: Any = {}
        return RedriveOperator(task_id="redrive", stream=str(stage.file), **parameters).execute(context)

    assert command("--dry-run") == task(only_count=True)
    assert command("--most", "1")["more"] == 2
    assert task(most=1)["more"] == 1
    assert task(reasons=["too_long"])["published"] == 0
    assert command("--reason", "rejected")["published"] == 1
    assert sorted(stage.dead("redriven_as")) == [(f"{name}.r1",) for name in sorted(bad)]


class TestTheTable:
    """Without a subscriber: dead letters as one has written them."""

    @pytest.fixture
    def pubsub(self, pubsub_emulator: PubSubEmulator) -> Iterator[PubSub]:
        made = PubSub(pubsub_emulator)
        yield made
        made.close()

    @pytest.fixture
    def placed(self, postgres_server: PostgresServer, tmp_path: Path) -> Callable[[], Place]:
        return lambda: Place(postgres_server, tmp_path)

    @pytest.mark.gate
    async def test_two_that_redrive_at_once_share_the_work(self, placed: Callable[[], Place], pubsub: PubSub) -> None:
        place, (topic, subscription) = placed(), pubsub.pair()
        others = pubsub.subscription(topic, filter="NOT attributes:nightshift_redriven")
        async with place.opened() as sink:
            await sink.write_dead_letters([a_death(f"{n:03}") for n in range(300)])
        what = Redrive(subscription)
        both = await asyncio.gather(*(redrive(place.server.url, place.spec, what) for _ in range(2)))

        assert {each.topic for each in both} == {topic}
        assert sum(each.published for each in both) == 300
        assert pubsub.statistics(subscription)["num_undelivered_messages"] == 300
        assert pubsub.statistics(others)["num_undelivered_messages"] == 0, "the filter that docs/use/streams.md names"
        assert place.ask("SELECT count(*) FROM {}_dead_letters WHERE redriven_as = message_id || '.r1'") == [(300,)]

    @pytest.mark.gate
    async def test_which_are_selected(self, placed: Callable[[], Place]) -> None:
        place = placed()
        async with place.opened() as sink:
            await sink.write_dead_letters([a_death(f"{n}", "too_long" if n % 2 else "rejected") for n in range(6)])
        for n in range(6):
            place.do(f"UPDATE {{}}_dead_letters SET dead_at = '{at(n)}', publish_time = '{at(-n)}' WHERE message_id = '{n}'")
        place.do("UPDATE {}_dead_letters SET redriven_at = now() WHERE message_id = '5'")
        graves = DeadLetterTable(place.server.url, place.spec)

        async def found(**what: Any) -> tuple[str, int]:
            selected, more = await graves.select(Selection(**what))
            return "".join(each.message_id for each in selected), more

        assert await found() == ("43210", 0)
        assert await found(most=2) == ("10", 3)
        assert await found(reasons=("too_long",)) == ("31", 0)
        assert await found(reasons=("too_long", "rejected"), since=at(1), until=at(4)) == ("321", 0)
        assert await found(reasons=("timeout",)) == ("", 0)
        await graves.close()

    async def test_messages_of_one_publish_time_go_in_the_order_of_their_numbers(self, placed: Callable[[], Place]) -> None:
        place, order = placed(), ["9", "9.r1", "10", "100"]
        async with place.opened() as sink:
            await sink.write_dead_letters([a_death(name) for name in reversed(order)])
        graves = DeadLetterTable(place.server.url, place.spec)
        published: list[str] = []

        async def publish(messages: Sequence[Message]) -> set[str]:
            published.extend(message.id for message in messages)
            return {message.id for message in messages}

        selected, _ = await graves.select(Selection())
        await graves.redrive([each.message_id for each in selected], publish)
        await graves.close()

        assert [each.message_id for each in selected] == published == order

    @pytest.mark.gate
    async def test_what_pubsub_does_not_take_stays(self, placed: Callable[[], Place], pubsub: PubSub) -> None:
        place, (_, subscription) = placed(), pubsub.pair()
        full = Message("1", b"x", {f"a{n}": "" for n in range(100)}, "", BEGAN)
        async with place.opened() as sink:
            await sink.write_dead_letters([a_death(full), a_death("2")])
        done = await redrive(place.server.url, place.spec, Redrive(subscription))

        assert done.published == 1
        assert list(done.refused) == ["1"]
        assert "101 attributes" in done.refused["1"]
        assert place.ask("SELECT message_id FROM {}_dead_letters WHERE redriven_at IS NULL") == [("1",)]

    async def test_a_mark_that_a_trigger_swallows_is_said(self, placed: Callable[[], Place], pubsub: PubSub) -> None:
        place, (_, subscription) = placed(), pubsub.pair()
        async with place.opened() as sink:
            await sink.write_dead_letters([a_death("1")])
        place.do(
            "CREATE FUNCTION f_{}() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; "
            "CREATE TRIGGER f BEFORE UPDATE ON {}_dead_letters FOR EACH ROW EXECUTE FUNCTION f_{}()"
        )
        with pytest.raises(SinkRefused, match="does not let a dead letter be marked as redriven: a trigger keeps"):
            await redrive(place.server.url, place.spec, Redrive(subscription))

    async def test_a_message_of_ten_megabytes_goes_alone(self, placed: Callable[[], Place], pubsub: PubSub) -> None:
        place, (_, subscription) = placed(), pubsub.pair()
        large = [Message(name, b"x" * 9_900_000, {}, "", BEGAN) for name in ("1", "2")]
        async with place.opened() as sink:
            await sink.write_dead_letters([a_death(each) for each in [*large, Message("3", b"y", {}, "", BEGAN)]])

        assert (await redrive(place.server.url, place.spec, Redrive(subscription))).published == 3

    async def test_what_is_missing_is_said(self, placed: Callable[[], Place], pubsub: PubSub) -> None:
        place, (topic, subscription) = placed(), pubsub.pair()
        what = Redrive(subscription)
        with pytest.raises(SinkRefused, match=f"there is no table {place.table}_dead_letters: the stream makes it"):
            await redrive(place.server.url, place.spec, what)
        async with place.opened() as sink:
            await sink.write_dead_letters([a_death("1")])
        with pytest.raises(PubSubRefused, match="NotFound"):
            await redrive(place.server.url, place.spec, Redrive(f"projects/local/subscriptions/s{unique()}"))
        with pytest.raises(PubSubRefused, match="NotFound"):
            await redrive(place.server.url, place.spec, Redrive(subscription, topic=f"projects/local/topics/t{unique()}"))
        place.do("ALTER TABLE {}_dead_letters DROP COLUMN redriven_as, DROP COLUMN redriven_at")
        with pytest.raises(SinkRefused, match="lacks redriven_at and redriven_as") as caught:
            await redrive(place.server.url, place.spec, what)
        place.do(f"ALTER {str(caught.value).partition(': ALTER ')[2]}")
        pubsub.publisher.delete_topic(topic=topic)
        with pytest.raises(PubSubRefused, match="has been deleted"):
            await redrive(place.server.url, place.spec, what)
        assert (await redrive(place.server.url, place.spec, Redrive(subscription, topic=pubsub.topic()))).published == 1


def at(hours: int) -> datetime:
    return BEGAN + timedelta(hours=hours)
