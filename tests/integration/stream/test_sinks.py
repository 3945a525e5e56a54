"""Every sink holds what `tests.integration.stream.sink_contract` says, with real parts behind it."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import obstore
import psycopg
import pyarrow.parquet as pq
import pytest
from google.cloud import bigquery
from google.cloud.storage import Client as StorageClient  # type: ignore[import-untyped]
from obstore.store import LocalStore, ObjectStore

from nightshift import store
from nightshift.settings import Settings
from nightshift.spec import StreamSpec
from nightshift.store import ObjectStorage, StoreUnavailable, open_store
from nightshift.stream import files
from nightshift.stream.bigquery.load import StreamLoader
from nightshift.stream.files import FileSink
from nightshift.stream.parquet import Format
from nightshift.stream.ports import Sink
from nightshift.tasks.base import load_kind
from tests.integration.emulators import PROJECT, PostgresServer, StorageEmulator
from tests.integration.pubsub import unique
from tests.integration.stream import tables
from tests.integration.stream.link import Link
from tests.integration.stream.sink_contract import GuardedContract, OutcomesContract, Placed, Shown, SinkContract

pytestmark = pytest.mark.integration


class Opened:
    """The sinks that a test has opened."""

    def __init__(self) -> None:
        self.sinks: list[Any] = []
        self.links: list[Link] = []

    async def open(self, sink: Any) -> Sink:
        self.sinks.append(sink)
        await sink.open()
        return sink  # type: ignore[no-any-return]

    def link(self, target: tuple[str, int] | str) -> Link:
        self.links.append(Link(target))
        return self.links[-1]

    async def close(self) -> None:
        for sink in self.sinks:
            await sink.close()
        for link in self.links:
            link.close()


@pytest.fixture
async def opened() -> AsyncIterator[Opened]:
    made = Opened()
    yield made
    await made.close()


class PostgresPlace:
    """`sink_contract.Place`: a table of PostgreSQL."""

    first = True
    asked = True

    def __init__(self, server: PostgresServer, folder: Path, opened: Opened, *, keyed: bool) -> None:
        keys = ("name",) if keyed else ()
        self._opened = opened
        self._table = tables.Place(server, folder, *keys)
        self._other = tables.Place(server, folder, *keys, table=self._table.table, job="others")
        parts = psycopg.conninfo.conninfo_to_dict(server.url)
        host = str(parts["host"])
        self._link = opened.link(
            f"{host}/.s.PGSQL.{parts['port']}" if host.startswith("/") else (host, int(str(parts["port"])))
        )

    async def opened(self) -> Sink:
        url = psycopg.conninfo.make_conninfo(self._table.server.url, host="127.0.0.1", port=self._link.port)
        return await self._opened.open(self._table.sink(url))

    def of_another_stream(self) -> Sink:
        return self._other.sink()

    def locked(self) -> Sink:
        return self._table.sink(psycopg.conninfo.make_conninfo(self._table.server.url, password="wrong"))

    async def shown(self) -> Shown:
        return Shown(self._table.answers(), self._table.dead())

    def cut(self, *, after: bool) -> None:
        self._link.cut(b"COMMIT", after=after)

    @property
    def cuts(self) -> int:
        return self._link.cuts


def spec(url: str, *, keyed: bool, job: str = "texts", **sink: str) -> StreamSpec:
    source = {"subscription": "texts", "key": ["name"] if keyed else []}
    return StreamSpec.model_validate(
        {**tables.JOB, **tables.COMPLETION, "job": job, "source": source, "sink": {"files": url, "column": "answer", **sink}}
    )


def newest(answers: list[dict[str, Any]], key: str) -> dict[str, dict[str, Any]]:
    """Of each value of the column `key` the row that counts, as docs/use/streams.md tells readers of the files."""
    found: dict[str, dict[str, Any]] = {}
    for row in sorted(answers, key=lambda row: row["nightshift_answered_at"], reverse=True):
        other = found.get(row[key])
        if other is None or _age(row) >= _age(other):
            found[row[key]] = row
    return found


def _age(row: dict[str, Any]) -> tuple[datetime, int, str]:
    name = row["nightshift_message_id"]
    return row["nightshift_publish_time"], len(name), name


def read(folder: ObjectStore, *, keyed: bool) -> Shown:
    """All files of a stream."""

    def rows(kind: str) -> list[dict[str, Any]]:
        paths = [meta["path"] for page in obstore.list(folder, kind) for meta in page]
        bodies = (io.BytesIO(bytes(obstore.get(folder, path).bytes())) for path in paths)
        return [row for body in bodies for row in pq.read_table(body).to_pylist()]

    answers = rows("answers")
    counts = newest(answers, "name" if keyed else "nightshift_message_id")
    answered = {row["nightshift_message_id"] for row in answers}
    return Shown(
        {row["nightshift_message_id"]: row["answer"] for row in counts.values()},
        {row["message_id"]: row["reason"] for row in rows("dead_letters") if row["message_id"] not in answered},
    )


class FaultyObjects(ObjectStorage):
    """A folder of this machine. fault: the next create is not answered: if true, it has its effect."""

    fault: bool | None = None
    cuts = 0

    async def create(self, path: str, body: bytes) -> bool:
        fault, FaultyObjects.fault = self.fault, None
        if fault is None:
            return await super().create(path, body)
        FaultyObjects.cuts += 1
        if fault:
            await super().create(path, body)
        raise StoreUnavailable("no reply")


class FolderPlace:
    """`sink_contract.Place`: files in a folder of this machine."""

    first = False
    asked = False

    def __init__(self, folder: Path, *, keyed: bool) -> None:
        self._folder = folder
        self._keyed = keyed
        FaultyObjects.fault, FaultyObjects.cuts = None, 0

    def _sink(self, job: str) -> FileSink:
        stream = spec("gs://not-used/here", keyed=self._keyed, job=job)
        form = Format(stream, load_kind(stream).prediction_type, tables.MODEL)
        objects = FaultyObjects(LocalStore(str(self._folder)))
        return FileSink(objects, form, rows=10, every_s=1, now=lambda: datetime.now(UTC))

    async def opened(self) -> Sink:
        sink = self._sink("texts")
        await sink.open()
        return sink

    def of_another_stream(self) -> Sink:
        return self._sink("others")

    async def shown(self) -> Shown:
        return read(LocalStore(str(self._folder)), keyed=self._keyed)

    def cut(self, *, after: bool) -> None:
        FaultyObjects.fault = after

    @property
    def cuts(self) -> int:
        return FaultyObjects.cuts


class BucketPlace:
    """`sink_contract.Place`: files on Cloud Storage."""

    first = False
    asked = False

    def __init__(
        self, storage: StorageClient, emulator: StorageEmulator, opened: Opened, monkeypatch: pytest.MonkeyPatch, *, keyed: bool
    ) -> None:
        self.name = f"sink{unique()}"
        storage.create_bucket(self.name)
        self._direct = emulator.url
        self._opened = opened
        self._keyed = keyed
        self._monkeypatch = monkeypatch
        host, _, port = emulator.url.removeprefix("http://").partition(":")
        self._link = opened.link((host, int(port)))

    def spec(self, job: str = "texts", bucket: str = "") -> StreamSpec:
        return spec(f"gs://{bucket or self.name}/out", keyed=self._keyed, job=job)

    def _sink(self, of: StreamSpec) -> Sink:
        self._monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{self._link.port}")
        return files.make(of, load_kind(of), tables.MODEL, "")

    def store(self) -> ObjectStore:
        """Past the link."""
        self._monkeypatch.setenv("STORAGE_EMULATOR_HOST", self._direct)
        return open_store(f"gs://{self.name}/out")

    async def opened(self) -> Sink:
        return await self._opened.open(self._sink(self.spec()))

    def of_another_stream(self) -> Sink:
        return self._sink(self.spec("others"))

    def locked(self) -> Sink:
        return self._sink(self.spec(bucket="nightshift-has-no-such-bucket"))

    async def shown(self) -> Shown:
        return read(self.store(), keyed=self._keyed)

    def cut(self, *, after: bool) -> None:
        self._link.cut(b"PUT /", after=after)

    @property
    def cuts(self) -> int:
        return self._link.cuts


class BigQueryPlace(BucketPlace):
    """`sink_contract.Place`: files on Cloud Storage, and whoever reads the table that they are loaded into."""

    def __init__(self, client: bigquery.Client, *of: Any, keyed: bool) -> None:
        super().__init__(*of, keyed=keyed)
        self._client = client
        client.create_dataset(self.name)

    def spec(self, job: str = "texts", bucket: str = "") -> StreamSpec:
        return spec(f"gs://{bucket or self.name}/out", keyed=self._keyed, job=job, bigquery=f"{self.name}.texts")

    async def shown(self) -> Shown:
        return await asyncio.to_thread(self._load)

    def _load(self) -> Shown:
        settings = Settings(bucket=self.name, project=PROJECT, dataset=f"{self.name}_own")
        loader = StreamLoader(self._client, settings, self.spec(), self.store())
        loader.load(date(2026, 11, 19), date(2026, 11, 21), sleep=lambda _: None, on_batch=lambda _: None)
        table = f"{PROJECT}.{self.name}.texts"
        return Shown(
            self._rows(f"SELECT nightshift_message_id, answer FROM `{table}`"),
            self._rows(f"SELECT message_id, reason FROM `{table}_dead_letters`"),
        )

    def _rows(self, statement: str) -> dict[str, str]:
        rows = [tuple(row) for row in self._client.query(statement).result()]
        assert len({row[0] for row in rows}) == len(rows), "a message stands twice"
        return dict(rows)


@pytest.mark.gate
class TestPostgres(GuardedContract):
    @pytest.fixture
    def placed(self, postgres_server: PostgresServer, tmp_path: Path, opened: Opened) -> Placed:
        return lambda *, keyed: PostgresPlace(postgres_server, tmp_path, opened, keyed=keyed)


@pytest.mark.gate
class TestFilesInAFolder(SinkContract):
    @pytest.fixture
    def placed(self, tmp_path: Path) -> Placed:
        return lambda *, keyed: FolderPlace(tmp_path, keyed=keyed)


@pytest.fixture
def bucket_of(
    storage_client: StorageClient, storage_emulator: StorageEmulator, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """Makes a place of a class that has a bucket, from what comes before it."""
    monkeypatch.setattr(store, "RETRY_TIMEOUT", timedelta(seconds=1))
    return lambda kind, *before, keyed: kind(*before, storage_client, storage_emulator, opened, monkeypatch, keyed=keyed)


class TestFilesOnCloudStorage(GuardedContract):
    @pytest.fixture
    def placed(self, bucket_of: Callable[..., Any]) -> Placed:
        return lambda *, keyed: bucket_of(BucketPlace, keyed=keyed)


class TestFilesInBigQuery(OutcomesContract):
    # The emulator's catalog cannot look for one.
    unfit_keys: ClassVar = frozenset({"NUL"})

    @pytest.fixture
    def placed(self, bucket_of: Callable[..., Any], bigquery_client: bigquery.Client) -> Placed:
        return lambda *, keyed: bucket_of(BigQueryPlace, bigquery_client, keyed=keyed)
