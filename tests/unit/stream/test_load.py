"""Batches of a stream's files, what is merged of them, and what the command refuses before it asks anybody."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlglot

from nightshift import cli
from nightshift.settings import Settings
from nightshift.spec import StreamSpec, load_stream
from nightshift.stream.bigquery import merge
from nightshift.stream.bigquery.load import Batch
from nightshift.stream.bigquery.tables import StreamTables
from nightshift.warehouse.errors import WarehouseError
from tests.unit.spec.test_stream import EXAMPLE, FILES, stream
from tests.unit.spec_file import write

pytestmark = pytest.mark.unit

SETTINGS = Settings(bucket="b", project="p")
LOADED = {**FILES, "bigquery": "catalog.vectors"}


def spec(folder: Path, **changes: Any) -> StreamSpec:
    return load_stream(write(folder, stream(**{"sink": LOADED, **changes})))


def url(kind: str, hour: str, name: str = "a", day: str = "2026-11-20") -> str:
    return f"gs://bucket/answers/{kind}/dt={day}/hour={hour}/{name}.parquet"


class TestABatch:
    def test_is_named_by_its_files(self) -> None:
        one = Batch({"answers": [url("answers", "01")], "dead_letters": []})
        same = Batch({"answers": [url("answers", "01")]})
        other = Batch({"answers": [url("answers", "02")]})

        assert one.digest == same.digest
        assert one.digest != other.digest
        assert len(one.digest) == 16

    def test_knows_its_kinds_and_the_time_that_it_spans(self) -> None:
        batch = Batch({"answers": [url("answers", "23")], "dead_letters": [url("dead_letters", "05")]})

        assert batch.kinds == ["answers", "dead_letters"]
        assert batch.span == (
            datetime(2026, 11, 20, 5, tzinfo=UTC),
            datetime(2026, 11, 20, 23, 59, 59, 999_999, tzinfo=UTC),
        )


class TestTheTables:
    def test_have_the_columns_of_the_files(self, tmp_path: Path) -> None:
        tables = StreamTables(spec(tmp_path), SETTINGS)
        answers, dead, files = tables.as_created()

        assert (str(answers.reference), str(dead.reference)) == ("p.catalog.vectors", "p.catalog.vectors_dead_letters")
        assert str(files.reference) == "p.nightshift.stream_files"
        kinds = {field.name: (field.field_type, field.mode) for field in answers.schema}
        assert kinds["embedding"] == ("FLOAT", "REPEATED")
        assert kinds["nightshift_publish_time"] == ("TIMESTAMP", "NULLABLE")
        assert answers.clustering_fields == ["name", "version"]
        assert {field.name: field.field_type for field in dead.schema}["data"] == "BYTES"

    def test_are_clustered_by_four_columns_at_most(self, tmp_path: Path) -> None:
        source = {"subscription": "texts", "key": list("abcdef")}

        assert StreamTables(spec(tmp_path, source=source), SETTINGS).as_created()[0].clustering_fields == list("abcd")

    @pytest.mark.parametrize("sink", [FILES, {"table": "vectors", "column": "embedding"}])
    def test_are_none_of_a_stream_without_one(self, tmp_path: Path, sink: dict[str, Any]) -> None:
        with pytest.raises(WarehouseError, match=r"has no sink\.bigquery"):
            StreamTables(spec(tmp_path, sink=sink), SETTINGS)


class TestTheScript:
    def test_is_one_transaction_that_bigquery_can_read(self, tmp_path: Path) -> None:
        script = merge.script(StreamTables(spec(tmp_path), SETTINGS), "0f", ["answers", "dead_letters"])
        statements = [each for each in sqlglot.parse(script, dialect="bigquery") if each is not None]

        assert [each.key for each in statements] == ["transaction", "merge", "delete", "merge", "merge", "commit"]

    def test_touches_only_what_the_batch_has(self, tmp_path: Path) -> None:
        tables = StreamTables(spec(tmp_path), SETTINGS)

        assert "_0f_dead_letters" not in merge.script(tables, "0f", ["answers"])
        assert "_0f_answers" not in merge.script(tables, "0f", ["dead_letters"])

    def test_reads_all_days_for_a_key_and_only_those_of_the_files_without(self, tmp_path: Path) -> None:
        keyed = merge.script(StreamTables(spec(tmp_path), SETTINGS), "0f", ["answers"])
        source = {"subscription": "texts", "format": "text"}
        plain = merge.script(
            StreamTables(spec(tmp_path, source=source, request={"input": "{{ text }}"}), SETTINGS), "0f", ["answers"]
        )

        assert "t.nightshift_publish_time BETWEEN @first AND @last" not in keyed
        assert "t.nightshift_publish_time BETWEEN @first AND @last" in plain


class TestTheCommand:
    @pytest.fixture(autouse=True)
    def settings(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NIGHTSHIFT_BUCKET", "b")
        monkeypatch.setenv("NIGHTSHIFT_PROJECT", "p")

    def test_says_what_is_wrong_with_the_file(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = write(tmp_path, stream(sink={**LOADED, "bigquery": "vectors"}))

        assert cli.main(["stream", "load", str(file)]) == 2
        assert "sink.bigquery: 'vectors' is not a table name" in capsys.readouterr().err

    def test_needs_a_table(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for file in (EXAMPLE, write(tmp_path, stream(sink=FILES))):
            assert cli.main(["stream", "load", str(file)]) == 2
            assert capsys.readouterr().err == f"{file}: sink.bigquery: The stream's files have no table. Write dataset.table.\n"

    def test_needs_the_deployments_settings(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.delenv("NIGHTSHIFT_BUCKET")

        assert cli.main(["stream", "load", str(write(tmp_path, stream(sink=LOADED)))]) == 2
        assert "NIGHTSHIFT_BUCKET is not set" in capsys.readouterr().err

    @pytest.mark.parametrize("days", ["0", "-1", "x"])
    def test_looks_back_a_day_at_least(self, days: str) -> None:
        with pytest.raises(SystemExit) as caught:
            cli.main(["stream", "load", "f", "--days", days])

        assert caught.value.code == 2
