"""What a bad night does to the tables and objects that publishing uses: other deployments, other hands, old tables, limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import requests
from google.cloud import bigquery
from google.cloud.storage import Client as StorageClient  # type: ignore[import-untyped]

from nightshift.run.manifest import RunManifest
from nightshift.run.names import RunRef
from nightshift.run.seal import merkle_root
from nightshift.run.sealed_objects import SealBroken, check_sealed
from nightshift.store import open_store
from nightshift.warehouse import WarehouseError, publications, publish, schema
from nightshift.warehouse.statements import Statements
from tests.integration.warehouse.conftest import PARTITION, Night, prediction

pytestmark = pytest.mark.integration

NAMES = ["alpha", "beta", "gamma"]


def rehearsal(night: Night, storage_client: StorageClient) -> Night:
    """The same job in another deployment with the same dataset, which publishes into a table of its own."""
    storage_client.create_bucket(bucket := f"{night.settings.bucket}-b")
    settings = replace(night.settings, bucket=bucket)
    table = night.spec.destination.model_copy(update={"table": f"{night.settings.bucket}.rehearsal"})
    spec = night.spec.model_copy(update={"destination": table})
    return replace(night, settings=settings, store=open_store(f"gs://{bucket}"), spec=spec)


@pytest.mark.gate
def test_deployments_that_share_a_dataset_keep_their_dead_letters(night: Night, storage_client: StorageClient) -> None:
    """Production and its rehearsal: their runs have the same id."""
    manifest = night.seal(night.run, NAMES, dead=[1])
    night.publish(night.run, manifest)
    before = night.dead_letters()
    other = rehearsal(night, storage_client)
    other.publish(other.run, other.seal(other.run, NAMES, dead=[0, 2]))

    assert [row[3] for row in night.dead_letters()] == [0, 1, 2]
    night.verify(night.run, manifest)
    again = other.run_of(PARTITION, generation=2)
    other.publish(again, other.seal(again, NAMES))
    assert night.dead_letters() == before


def test_a_run_that_has_lost_all_rows_is_published_over_what_was_staged_before(night: Night) -> None:
    """It was staged, then its folder was deleted and it was computed again: BigQuery still has the first life's table."""
    night.staged(night.run, night.seal(night.run, NAMES))
    night.forget(night.run)
    manifest = night.seal(night.run, [])
    night.staged(night.run, manifest)
    ((staging, _),) = publish.staging_tables(night.run, manifest, night.settings)

    assert night.client.get_table(staging).expires is not None, "or an abandoned run without rows would leave it for ever"
    assert night.publish(night.run, manifest)["rows"] == 0
    assert night.shown() == []


def staged_again(night: Night, dead: Sequence[int] = ()) -> tuple[RunRef, RunManifest, str]:
    """A second run of the partition, staged but not published, its manifest, and its staging table."""
    second = night.run_of(PARTITION, generation=2)
    manifest = night.seal(second, NAMES, dead=dead, bias=8.0)
    night.staged(second, manifest)
    ((staging, _),) = publish.staging_tables(second, manifest, night.settings)
    return second, manifest, staging


def test_a_staging_table_that_expires_before_the_transaction_is_loaded_again(night: Night) -> None:
    night.publish(night.run, night.seal(night.run, NAMES))
    before = night.shown()
    second, manifest, staging = staged_again(night)
    night.client.delete_table(staging)

    assert night.finished(night.replace_partition(second, manifest)).error
    assert night.shown() == before
    night.publish(second, manifest)
    assert [row[2] for row in night.shown()] == [prediction(n, 8.0) for n in range(3)]


def test_a_staging_table_that_is_created_again_before_the_transaction_is_loaded_again(night: Night) -> None:
    """By another try, after a third one has published the run and dropped what was staged."""
    night.publish(night.run, night.seal(night.run, NAMES))
    before = night.shown()
    second, manifest, staging = staged_again(night)
    table = night.client.get_table(staging)
    night.client.delete_table(staging)
    night.client.create_table(bigquery.Table(staging, table.schema))

    failed = night.finished(night.replace_partition(second, manifest))
    assert failed.error
    assert failed.retryable
    assert night.shown() == before
    night.publish(second, manifest)
    assert [row[2] for row in night.shown()] == [prediction(n, 8.0) for n in range(3)]


@pytest.mark.parametrize("dead", [[1], [0, 1, 2]])
def test_a_staging_table_that_is_empty_once_the_transaction_begins_changes_nothing(
    night: Night, monkeypatch: pytest.MonkeyPatch, dead: list[int]
) -> None:
    """It was whole when the script checked it."""
    night.publish(night.run, night.seal(night.run, NAMES))
    before = night.shown(), night.dead_letters()
    second, manifest, staging = staged_again(night, dead)
    submit = Statements.submit

    def emptied(self: Statements, sql: str, *args: Any, **kwargs: Any) -> bigquery.QueryJob:
        emptying = f"DELETE FROM `{staging}` WHERE TRUE;\nBEGIN TRANSACTION;"
        return submit(self, sql.replace("BEGIN TRANSACTION;", emptying), *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Statements, "submit", emptied)
        failed = night.finished(night.replace_partition(second, manifest))

    assert "would not hold every row" in str(failed.error)
    assert failed.retryable
    assert (night.shown(), night.dead_letters()) == before
    night.publish(second, manifest)
    assert [row[3] for row in night.dead_letters()] == dead


def test_a_transaction_that_committed_and_was_then_reported_as_failed_may_be_repeated(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is lost after the COMMIT. Another statement fails there, because the emulator has no outages of its own."""
    manifest = night.seal(night.run, NAMES, dead=[1])
    night.staged(night.run, manifest)
    submit = Statements.submit

    def fails_at_last(self: Statements, sql: str, *args: Any, **kwargs: Any) -> bigquery.QueryJob:
        return submit(self, f"{sql}\nSELECT ERROR('backend');" if "COMMIT" in sql else sql, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Statements, "submit", fails_at_last)
        ended = night.finished(night.replace_partition(night.run, manifest))
    before = night.shown(), night.dead_letters()
    published = night.publish(night.run, manifest)

    assert "backend" in str(ended.error)
    assert len(before[0]) == 2
    assert published["job_id"].endswith("-publish-1")
    assert (night.shown(), night.dead_letters()) == before


@pytest.mark.parametrize("wipe", ["DROP TABLE", "TRUNCATE TABLE", "DELETE FROM"])
def test_without_its_publications_a_partition_is_left_alone(night: Night, wipe: str) -> None:
    """Somebody drops or empties the table that says whose rows these are: nobody replaces them then, not even their own job."""
    night.publish(night.run, night.seal(night.run, NAMES))
    before = night.shown()
    night.rows(f"{wipe} `{publications.table(night.settings)}`" + (" WHERE TRUE" if wipe == "DELETE FROM" else ""))
    second = night.run_of(PARTITION, generation=2)
    manifest = night.seal(second, NAMES, bias=8.0)
    night.staged(second, manifest)

    assert publications.FOREIGN in str(night.finished(night.replace_partition(second, manifest)).error)
    assert night.shown() == before


def test_a_key_that_the_destination_requires_and_a_row_lacks_changes_nothing(night: Night) -> None:
    """The query's rows may lose their keys between two nights."""
    fields = schema.destination_fields(night.spec, night.source.columns)
    required = [bigquery.SchemaField("name", "STRING", "REQUIRED"), *fields[1:]]
    table = bigquery.Table(night.destination, schema=required)
    table.time_partitioning = bigquery.TimePartitioning(field="snapshot_date")
    night.client.create_table(table)
    night.publish(night.run, night.seal(night.run, NAMES))
    before = night.shown()
    second = night.run_of(PARTITION, generation=2)
    manifest = night.seal(second, ["alpha", None, "gamma"])  # type: ignore[list-item]
    night.staged(second, manifest)

    assert "name" in str(night.finished(night.replace_partition(second, manifest)).error)
    assert night.shown() == before


Alter = Callable[[RunManifest, RunManifest], RunManifest]


@pytest.mark.gate
@pytest.mark.parametrize(
    "alter",
    [
        lambda own, other: replace(own, chunks=(other.chunks[0], *own.chunks[1:])),
        lambda own, other: replace(own, chunks=other.chunks, merkle_root=other.merkle_root),
        lambda _, other: other,
        lambda own, _: replace(own, chunks=own.chunks[::-1]),
        lambda own, _: replace(own, chunks=own.chunks[:1], merkle_root=merkle_root([own.chunks[0].sha256])),
        lambda own, _: replace(own, chunks=(own.chunks[0], replace(own.chunks[1], sha256="00" * 32), *own.chunks[2:])),
        lambda own, _: replace(own, predictions=own.predictions - 1, dead_letters=own.dead_letters + 1),
    ],
    ids=["a chunk of another run", "its chunks", "its manifest", "other order", "fewer chunks", "other digest", "other counts"],
)
def test_a_manifest_that_was_edited_or_copied_is_not_published(night: Night, alter: Alter) -> None:
    """Each chunk that it names is the object that some seal has proven, so its generation alone shows nothing."""
    manifest = night.seal(night.run, NAMES)
    second = night.run_of(PARTITION, generation=2)
    check_sealed(night.store, night.run, manifest)
    altered = alter(manifest, night.seal(second, NAMES, bias=8.0))

    with pytest.raises(SealBroken, match=r"manifest.json is not what the task 'seal' wrote.*Nothing is published"):
        check_sealed(night.store, night.run, altered)


def limited(night: Night, **limits: bool) -> None:
    url = f"{night.client._connection.API_BASE_URL}/limits/{night.settings.bucket}"
    requests.put(url, json=limits, timeout=60).raise_for_status()


@pytest.mark.gate
@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (
            {"data_updates": False},
            r"a dry run of DELETE\): Access Denied: .*tables\.updateData denied .* Grant the connection's service account",
        ),
        ({"upserts": True}, r"a dry run of DELETE\): DELETE/UPDATE/MERGE DMLs are not supported over tables that had UPSERT"),
    ],
)
def test_a_destination_that_takes_no_dml_is_refused_before_the_night(night: Night, limits: dict[str, bool], words: str) -> None:
    """By `plan` and the doctor, which both ask this: its metadata is as it should be."""
    night.publish(night.run, night.seal(night.run, NAMES))
    before = night.shown()
    limited(night, **limits)

    with pytest.raises(WarehouseError, match=words):
        night.warehouse.check_destination(night.spec, night.source)
    limited(night)
    night.warehouse.check_destination(night.spec, night.source)
    assert night.shown() == before


def test_a_destination_that_wants_a_filter_over_its_partitions_can_be_tried(night: Night) -> None:
    night.publish(night.run, night.seal(night.run, NAMES))
    night.rows(f"ALTER TABLE `{night.destination}` SET OPTIONS (require_partition_filter = TRUE)")

    night.warehouse.check_destination(night.spec, night.source)


def test_columns_in_other_letters_are_the_same_columns(night: Night) -> None:
    """BigQuery does not tell upper from lower case in the name of a column."""
    night.rows(
        f"CREATE TABLE `{night.destination}` (NAME STRING, Version INT64, VECTOR ARRAY<FLOAT64>, Snapshot_Date DATE, "
        "Nightshift_Run_Id STRING, NIGHTSHIFT_ORDINAL INT64) PARTITION BY Snapshot_Date"
    )
    night.warehouse.check_destination(night.spec, night.source)
    night.publish(night.run, night.seal(night.run, NAMES))
    second = night.run_of(PARTITION, generation=2)
    night.publish(second, night.seal(second, NAMES[:2], bias=8.0))

    assert [(row[0], row[2]) for row in night.shown()] == [(NAMES[n], prediction(n, 8.0)) for n in (0, 1)]
