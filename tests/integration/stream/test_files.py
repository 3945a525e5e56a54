"""`nightshift stream` with files: as its sink, as its source, and on their way into BigQuery; with faults."""

from __future__ import annotations

import asyncio
import io
import json
import threading
import uuid
from collections import Counter
from typing import Any

import obstore
import psycopg
import pyarrow.parquet as pq
import pytest
import yaml
from aiohttp import web
from google.cloud import bigquery
from google.cloud.storage import Client as StorageClient  # type: ignore[import-untyped]
from obstore.store import ObjectStore

from nightshift.settings import Settings
from nightshift.spec import load_stream
from nightshift.store import open_store
from nightshift.stream.bigquery.load import StreamLoader
from tests.integration.driver.canned import vector_of
from tests.integration.emulators import PROJECT, PostgresServer, StorageEmulator
from tests.integration.pubsub import unique, wait_until
from tests.integration.stream.processes import LEASE_S, Stage, Staged, vector_text

pytestmark = pytest.mark.integration


class Bucket:
    """A bucket of the test's own, with folders for what comes in and what goes out."""

    def __init__(self, storage: StorageClient) -> None:
        self.name = f"files{uuid.uuid4().hex[:10]}"
        storage.create_bucket(self.name)

    def sink(self, **terms: Any) -> dict[str, Any]:
        return {"files": f"gs://{self.name}/out", "column": "embedding", "every": "300ms", **terms}

    @property
    def out(self) -> ObjectStore:
        return open_store(f"gs://{self.name}/out")

    @property
    def incoming(self) -> ObjectStore:
        return open_store(f"gs://{self.name}/in")

    def rows(self, kind: str = "answers") -> list[dict[str, Any]]:
        """Of all files of a kind, with the file of each."""
        paths = [meta["path"] for page in obstore.list(self.out, kind) for meta in page]
        return [
            {**row, "file": path}
            for path in paths
            for row in pq.read_table(io.BytesIO(bytes(obstore.get(self.out, path).bytes()))).to_pylist()
        ]

    def put(self, path: str, *texts: str) -> None:
        obstore.put(self.incoming, path, b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts))

    def markers(self) -> set[str]:
        """The objects that are done."""
        found = [meta["path"] for page in obstore.list(self.incoming, "_nightshift/texts") for meta in page]
        return {json.loads(bytes(obstore.get(self.incoming, path).bytes()))["object"] for path in found}


@pytest.fixture
def bucket(storage_client: StorageClient, storage_emulator: StorageEmulator, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_emulator.url)
    return Bucket(storage_client)


async def says_no(texts: list[str]) -> web.StreamResponse | None:
    if any("poison" in text for text in texts):
        return web.json_response({"error": {"message": "I do not like it"}}, status=400)
    return None


@pytest.mark.gate
def test_every_message_is_in_a_file_once_and_the_poisoned_in_others(staged: Staged, bucket: Bucket) -> None:
    stage = staged(behaviour=says_no, sink=bucket.sink())
    texts = [f"poison {n}" if n % 37 == 5 else f"text {n}" for n in range(300)]
    ids = stage.publish(*({"text": text} for text in texts), kind="test")
    with stage.subscriber() as subscriber:
        stage.await_all_acknowledged()
        code = subscriber.terminate()

    good = {name: list(vector_of(text)) for name, text in zip(ids, texts, strict=True) if "poison" not in text}
    rows = bucket.rows()
    assert len(rows) == len(good)
    assert {row["nightshift_message_id"]: row["embedding"] for row in rows} == good
    assert all(row["file"].startswith(f"answers/dt={row['nightshift_publish_time']:%Y-%m-%d/hour=%H}/") for row in rows)
    poisoned = {name for name, text in zip(ids, texts, strict=True) if "poison" in text}
    dead = bucket.rows("dead_letters")
    assert Counter(row["message_id"] for row in dead) == Counter(poisoned)
    assert {row["text"] for row in dead} == {"I do not like it"}
    announced = [received.message for received in stage.pubsub.pull_all(stage.dead_subscription)]
    assert {message.attributes["nightshift_message_id"] for message in announced} == poisoned
    assert stage.delivered_once(ids)
    assert code == 0


def test_rows_are_collected_and_a_drain_writes_what_there_is(staged: Staged, bucket: Bucket) -> None:
    """More than the engine may have at once wait for one file."""
    stage = staged(sink=bucket.sink(every="50s", rows=250))
    stage.publish(*({"text": f"text {n}"} for n in range(300)))
    with stage.subscriber() as subscriber:
        wait_until(lambda: len(bucket.rows()) >= 250, "the first file is full")
        assert len(bucket.rows()) == 250
        wait_until(lambda: len(set(stage.engine.seen)) == 300, "all are computed")
        code = subscriber.terminate()

    assert code == 0
    assert len(bucket.rows()) == 300
    assert len({row["file"] for row in bucket.rows()}) == 2
    assert stage.backlog == 0


def test_what_waits_for_its_file_stays_leased(staged: Staged, bucket: Bucket) -> None:
    stage = staged(sink=bucket.sink(every=f"{LEASE_S + 10}s"))
    ids = stage.publish(*({"text": f"text {n}"} for n in range(20)))
    with stage.subscriber():
        stage.await_all_acknowledged()

    assert stage.delivered_once(ids)
    assert len({row["file"] for row in bucket.rows()}) == 1


def test_a_message_that_comes_again_to_the_same_process_is_not_written_again(staged: Staged, bucket: Bucket) -> None:
    stage = staged(sink=bucket.sink())
    stage.pubsub.order(kind="drop_acks", resource=stage.subscription, times=1)
    ids = stage.publish({"text": "once"})
    with stage.subscriber():
        wait_until(lambda: len(bucket.rows()) == 1, "the answer is in a file")
        wait_until(lambda: stage.pubsub.faults()[0]["done"] == 1, "its acknowledgement was forgotten")
        stage.pubsub.advance(700)
        stage.await_all_acknowledged()

    assert stage.pubsub.deliveries(stage.subscription)[ids[0]] == 2
    assert stage.engine.seen == ["once"]
    assert len(bucket.rows()) == 1


def test_a_killed_subscriber_may_write_twice_and_the_load_makes_it_once(
    staged: Staged, bucket: Bucket, bigquery_client: bigquery.Client
) -> None:
    bigquery_client.create_dataset(bucket.name)
    stage = staged(sink=bucket.sink(bigquery=f"{bucket.name}.vectors"))
    stage.pubsub.order(kind="drop_acks", resource=stage.subscription, times=100)
    ids = stage.publish(*({"text": f"text {n}"} for n in range(50)))
    with stage.subscriber() as first:
        wait_until(lambda: len(bucket.rows()) == 50, "all are in files, and none is acknowledged")
        first.kill()
    stage.pubsub.end_faults()
    stage.pubsub.advance(700)
    # Else the second process may collect the same messages, and find their file there.
    document = yaml.safe_load(stage.file.read_text())
    stage.file.write_text(yaml.safe_dump({**document, "sink": {**document["sink"], "rows": 13}}))
    with stage.subscriber():
        stage.await_all_acknowledged()

    copies = Counter(row["nightshift_message_id"] for row in bucket.rows())
    assert copies.keys() == set(ids)
    assert max(copies.values()) == 2
    assert len({(row["nightshift_message_id"], row["file"].rpartition("/")[0]) for row in bucket.rows()}) == 50
    assert load(stage, bucket, bigquery_client) > 0
    found = bigquery_client.query(f"SELECT nightshift_message_id FROM `{PROJECT}.{bucket.name}.vectors`").result()
    assert sorted(row[0] for row in found) == sorted(ids)


def load(stage: Stage, bucket: Bucket, client: bigquery.Client) -> int:
    settings = Settings(bucket=bucket.name, project=PROJECT, dataset=f"{bucket.name}_own")
    loader = StreamLoader(client, settings, load_stream(stage.file), bucket.out)
    # By the emulator's clock, which other tests put forward, too, and by days.
    days = [row["nightshift_publish_time"].date() for row in bucket.rows()]
    return loader.load(min(days), max(days), on_batch=lambda _: None)


def test_a_bucket_that_does_not_exist_ends_the_process(staged: Staged, bucket: Bucket) -> None:
    stage = staged(sink=bucket.sink(files="gs://nightshift-has-no-such-bucket/out"))
    with stage.subscriber() as subscriber:
        code = subscriber.process.wait(120)

    (line,) = [line for line in subscriber.lines() if line["message"] == "cannot continue"]
    assert "the sink said so 6 times" in line["error"]
    assert code == 78


@pytest.mark.gate
def test_each_row_of_a_watched_folder_is_answered_once_and_its_objects_are_done(staged: Staged, bucket: Bucket) -> None:
    stage = staged(behaviour=says_no, source={"prefix": f"gs://{bucket.name}/in", "every": "200ms"})
    bucket.put("before.json", *(f"before {n}" for n in range(100)))
    bucket.put("a/bad.json", "good", "poison", "fine")
    obstore.put(bucket.incoming, "broken.json", b"{\n" + b'{"text": "after"}\n')
    with stage.subscriber() as subscriber:
        wait_until(lambda: bucket.markers() == {"before.json", "a/bad.json", "broken.json"}, "all objects are done")
        bucket.put("later.json", "later")
        wait_until(lambda: "later.json" in bucket.markers(), "what comes later is done, too")
        code = subscriber.terminate()

    texts = [*(f"before {n}" for n in range(100)), "good", "fine", "after", "later"]
    assert sorted(row[1] for row in stage.rows()) == sorted(map(vector_text, texts))
    assert sorted(reason for _, reason in stage.dead()) == ["bad_input", "rejected"]
    assert code == 0


def test_a_subscriber_that_is_killed_over_an_object_loses_nothing_and_answers_nothing_twice(
    staged: Staged, bucket: Bucket
) -> None:
    release = threading.Event()

    async def slow(texts: list[str]) -> None:
        if "text 50" in texts:
            await asyncio.to_thread(release.wait, 60)

    stage = staged(behaviour=slow, source={"prefix": f"gs://{bucket.name}/in", "every": "200ms"})
    bucket.put("a.json", *(f"text {n}" for n in range(100)))
    with stage.subscriber() as first:
        wait_until(lambda: len(stage.rows()) > 10, "some are answered")
        first.kill()
    assert bucket.markers() == set()
    release.set()
    with stage.subscriber(), stage.subscriber():
        wait_until(lambda: bucket.markers() == {"a.json"}, "the object is done")

    assert len(stage.rows()) == 100
    assert {row[1] for row in stage.rows()} == {vector_text(f"text {n}") for n in range(100)}
    assert stage.dead() == []


def test_a_wrong_password_and_a_missing_database_end_the_process_with_the_servers_words(
    staged: Staged, postgres_server: PostgresServer
) -> None:
    stage = staged()
    parts = psycopg.conninfo.conninfo_to_dict(postgres_server.url)
    for change, words in (
        ({"dbname": f"no_{unique()}"}, "does not exist"),
        ({"password": "hush"}, "password authentication failed"),
    ):
        url = psycopg.conninfo.make_conninfo(**{name: str(value) for name, value in {**parts, **change}.items()})
        with stage.subscriber(NIGHTSHIFT_SINK_URL=url) as subscriber:
            code = subscriber.process.wait(120)
        (line,) = [line for line in subscriber.lines() if line["message"] == "cannot continue"]
        assert "the sink said so 6 times" in line["error"]
        assert words in line["error"]
        assert code == 78
