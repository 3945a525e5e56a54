"""A stream's files into BigQuery: each message once, whatever is repeated, killed or loaded by two at a time."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid
from array import array
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.cloud import bigquery
from google.cloud.storage import Client as StorageClient  # type: ignore[import-untyped]

from nightshift import cli
from nightshift.settings import Settings
from nightshift.spec import StreamSpec
from nightshift.store import ObjectStorage, open_store
from nightshift.stream.bigquery.load import Batch, StreamLoader
from nightshift.stream.files import FileSink
from nightshift.stream.messages import Answered, Dead, Message
from nightshift.stream.parquet import Format
from nightshift.tasks.base import load_kind
from nightshift.warehouse import WarehouseError
from nightshift.warehouse.errors import WarehouseUnavailable
from tests.integration.emulators import PROJECT, BigQueryEmulator, StorageEmulator

pytestmark = pytest.mark.integration

BEGAN = datetime(2026, 11, 20, 13, 30, tzinfo=UTC)
FIRST, LAST = date(2026, 11, 13), date(2026, 11, 21)
JOB: dict[str, Any] = {
    "job": "texts",
    "owner": "tests",
    "source": {"subscription": "texts", "key": ["name"]},
    "task": "embedding",
    "request": {"input": "{{ text }}", "dimensions": 2},
    "model": {"name": "m", "uri": "hf://a/b", "revision": "1"},
    "engine": {"max_num_seqs": 16},
    "latency": {"target": "60s"},
    "dead_letters": {"topic": "texts-dead"},
    "compute": {"profile": "cpu"},
}


@dataclass
class Texts:
    """A stream with a bucket and a dataset of its own."""

    client: bigquery.Client
    settings: Settings
    document: dict[str, Any]

    @property
    def spec(self) -> StreamSpec:
        return StreamSpec.model_validate(self.document)

    @property
    def table(self) -> str:
        return f"{PROJECT}.{self.settings.bucket}.vectors"

    @property
    def loader(self) -> StreamLoader:
        """A new one for each use, as each process has its own."""
        return StreamLoader(self.client, self.settings, self.spec, open_store(self.document["sink"]["files"]))

    def load(self) -> int:
        return self.loader.load(FIRST, LAST, sleep=lambda _: None, on_batch=lambda _: None)

    def batches(self) -> list[Batch]:
        loader = self.loader
        loader.prepare()
        return loader.new_batches(FIRST, LAST)

    def write(self, *answered: Answered, at: datetime = BEGAN) -> None:
        """A file of answers, written then."""
        asyncio.run(self._sink(at).write(answered))

    def write_dead_letters(self, *dead: Dead) -> None:
        asyncio.run(self._sink(BEGAN).write_dead_letters(dead))

    def _sink(self, at: datetime) -> FileSink:
        form = Format(self.spec, load_kind(self.spec).prediction_type, "m@1")
        objects = ObjectStorage(open_store(self.document["sink"]["files"]))
        return FileSink(objects, form, rows=10, every_s=1, now=lambda: at)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.client.query(sql).result()]

    def shown(self) -> list[tuple[Any, ...]]:
        return self.rows(f"SELECT nightshift_message_id, embedding FROM `{self.table}` ORDER BY 1")

    def dead(self) -> list[tuple[Any, ...]]:
        return self.rows(f"SELECT message_id, reason FROM `{self.table}_dead_letters` ORDER BY 1")

    def staging(self) -> list[str]:
        tables = self.client.list_tables(f"{PROJECT}.{self.settings.dataset}")
        return [table.table_id for table in tables if table.table_id.startswith("staging_")]


@pytest.fixture
def texts(
    bigquery_client: bigquery.Client,
    storage_client: StorageClient,
    storage_emulator: StorageEmulator,
    monkeypatch: pytest.MonkeyPatch,
) -> Texts:
    name = f"st{uuid.uuid4().hex[:10]}"
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_emulator.url)
    storage_client.create_bucket(name)
    bigquery_client.create_dataset(name)
    sink = {"files": f"gs://{name}/texts", "column": "embedding", "bigquery": f"{name}.vectors"}
    settings = Settings(bucket=name, project=PROJECT, dataset=f"{name}_own")
    return Texts(bigquery_client, settings, {**JOB, "sink": sink})


def a_message(name: str, minutes: float = 0.0) -> Message:
    return Message(name, b"da\0ta", {"tenant": "t"}, "", BEGAN + timedelta(minutes=minutes))


def an_answer(name: str, minutes: float = 0.0, *, key: str = "", number: float = 0.5) -> Answered:
    return Answered(a_message(name, minutes), (key or name,), array("f", [number, -0.25]), 1)


def a_death(name: str, minutes: float = 0.0, key: str | None = None) -> Dead:
    return Dead(a_message(name, minutes), "rejected", "no", 400, 2, None if key is None else (key,))


@pytest.mark.gate
def test_each_message_stands_once_however_many_files_it_is_in(texts: Texts) -> None:
    texts.write(an_answer("a"), an_answer("b", 45))
    texts.write(an_answer("b", 45), an_answer("c", 45), at=BEGAN + timedelta(minutes=1))
    texts.write_dead_letters(a_death("d"))

    assert texts.load() == 4
    assert texts.shown() == [(name, [0.5, -0.25]) for name in "abc"]
    assert texts.dead() == [("d", "rejected")]
    assert texts.staging() == []


def test_nothing_new_is_nothing_to_do(texts: Texts) -> None:
    assert texts.load() == 0
    texts.write(an_answer("a"))
    assert texts.load() == 1
    jobs = len(list(texts.client.list_jobs()))
    assert texts.load() == 0

    submitted = [job.job_id for job in texts.client.list_jobs()][: len(list(texts.client.list_jobs())) - jobs]
    assert not [job_id for job_id in submitted if "merge" in job_id]
    assert texts.shown() == [("a", [0.5, -0.25])]


def test_of_one_key_the_newest_message_stays_whichever_file_is_loaded_first(texts: Texts) -> None:
    texts.write(an_answer("2", 2, key="k", number=2), an_answer("1", 1, key="k", number=1))
    texts.load()
    assert texts.shown() == [("2", [2.0, -0.25])]
    texts.write(an_answer("0", 0, key="k", number=0))
    texts.load()
    assert texts.shown() == [("2", [2.0, -0.25])]
    texts.write(an_answer("20", 2, key="k", number=20), an_answer("3", -120, key="other"))
    texts.load()

    assert texts.shown() == [("20", [20.0, -0.25]), ("3", [0.5, -0.25])]


def test_without_key_columns_each_message_has_its_row(texts: Texts) -> None:
    texts.document["source"] = {"subscription": "texts", "format": "text"}
    texts.write(an_answer("a"), an_answer("b", 600))
    texts.load()
    texts.write(an_answer("b", 600), an_answer("c"), at=BEGAN + timedelta(days=1))
    texts.load()

    assert [name for name, _ in texts.shown()] == ["a", "b", "c"]
    fields = [field.name for field in texts.client.get_table(texts.table).schema]
    assert fields[:2] == ["embedding", "nightshift_message_id"]


def test_a_dead_letter_keeps_its_message_and_stands_once(texts: Texts) -> None:
    texts.write_dead_letters(a_death("a"))
    texts.load()
    texts.write_dead_letters(a_death("a"), a_death("b"))
    texts.load()

    (row,) = texts.rows(
        f"SELECT data, attributes, text, status, key_name FROM `{texts.table}_dead_letters` WHERE message_id = 'a'"
    )
    assert row == (b"da\0ta", '{"tenant": "t"}', "no", 400, None)
    assert [name for name, _ in texts.dead()] == ["a", "b"]


def test_a_loader_that_dies_after_any_step_is_followed_by_one_that_finds_its_jobs(texts: Texts) -> None:
    texts.write(an_answer("a"))
    texts.write_dead_letters(a_death("d"))
    (batch,) = texts.batches()
    staged = texts.loader.start_staging(batch)
    assert texts.loader.start_staging(batch) == staged
    assert len(staged) == 2
    for job_id in staged:
        while not texts.loader.job(job_id).done:
            pass
    merged = texts.loader.start_merge(batch)
    assert texts.loader.start_merge(batch) == merged
    while not (state := texts.loader.job(merged)).done:
        pass
    assert state.error is None

    assert texts.staging() != []
    assert texts.load() == 0
    assert texts.loader.start_merge(batch) == merged
    assert texts.shown() == [("a", [0.5, -0.25])]
    assert texts.dead() == [("d", "rejected")]


def test_merging_again_changes_nothing(texts: Texts) -> None:
    texts.write(an_answer("a"), an_answer("b"))
    texts.write_dead_letters(a_death("d"))
    texts.load()
    before = texts.shown(), texts.dead()
    texts.client.query(f"DELETE FROM `{PROJECT}.{texts.settings.dataset}.stream_files` WHERE TRUE").result()

    assert texts.load() == 2
    assert (texts.shown(), texts.dead()) == before


def test_two_loaders_at_a_time_do_the_work_once(texts: Texts) -> None:
    for number in range(4):
        texts.write(*(an_answer(f"{number} {n}", number) for n in range(5)))
    texts.write_dead_letters(a_death("d"))
    texts.loader.prepare()
    failed: list[BaseException] = []

    def load() -> None:
        try:
            while True:
                with contextlib.suppress(WarehouseUnavailable):
                    texts.load()
                    return
        except BaseException as error:
            failed.append(error)

    loaders = [threading.Thread(target=load) for _ in range(3)]
    for each in loaders:
        each.start()
    for each in loaders:
        each.join()

    assert failed == []
    assert len(texts.shown()) == 20
    assert texts.dead() == [("d", "rejected")]
    files = texts.rows(f"SELECT file FROM `{PROJECT}.{texts.settings.dataset}.stream_files`")
    assert len(files) == len(set(files)) == 5


def test_a_file_that_comes_late_into_an_old_hour_is_found(texts: Texts) -> None:
    texts.write(an_answer("new"))
    texts.load()
    texts.write(an_answer("late", -3 * 24 * 60))
    texts.write(an_answer("too late", -30 * 24 * 60))

    assert texts.load() == 1
    assert [name for name, _ in texts.shown()] == ["late", "new"]


def test_a_table_that_cannot_take_the_rows_is_refused_with_what_to_do(texts: Texts) -> None:
    texts.client.query(f"CREATE TABLE `{texts.table}` (name STRING, embedding STRING)").result()

    with pytest.raises(WarehouseError, match="has the column embedding as STRING; this job writes ARRAY<FLOAT64>"):
        texts.loader.prepare()


def test_another_table_gets_all_files_again(texts: Texts) -> None:
    texts.write(an_answer("a"))
    texts.load()
    texts.document["sink"] = {**texts.document["sink"], "bigquery": f"{texts.settings.bucket}.again"}

    assert texts.load() == 1


def test_the_command(
    texts: Texts,
    tmp_path: Path,
    bigquery_emulator: BigQueryEmulator,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "texts.yaml"
    file.write_text(yaml.safe_dump(texts.document))
    for name in ("bucket", "project", "dataset"):
        monkeypatch.setenv(f"NIGHTSHIFT_{name.upper()}", getattr(texts.settings, name))
    monkeypatch.setenv("BIGQUERY_EMULATOR_HOST", bigquery_emulator.url)
    now = datetime.now(UTC)
    texts.write(replace(an_answer("a"), message=replace(a_message("a"), published=now - timedelta(hours=1))))

    assert cli.main(["stream", "load", str(file)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"1 new file loaded into {texts.settings.bucket}.vectors"
    assert cli.main(["stream", "load", str(file), "--days", "1"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"0 new files loaded into {texts.settings.bucket}.vectors"]
    assert [name for name, _ in texts.shown()] == ["a"]
