"""The partition shows all of the old run or all of the new one, whatever is repeated, fails or is killed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import obstore
import pytest
from google.api_core.exceptions import BadRequest, Conflict
from google.cloud import bigquery

from local.ports import new_port
from nightshift.warehouse import Warehouse, WarehouseError, WarehouseUnavailable, jobs, publish
from tests.integration.emulators import HOST, BigQueryEmulator
from tests.integration.warehouse.conftest import OTHER, PARTITION, Night, opened_at, prediction

pytestmark = pytest.mark.integration

NAMES = ["alpha", "be\N{GRINNING FACE}ta", "nul \x00", "quo\"te's", "epsilon"]


@pytest.mark.gate
def test_predictions_and_dead_letters_are_published_with_their_run_and_ordinal(night: Night) -> None:
    counts = night.publish(night.run, night.seal(night.run, NAMES, dead=[1, 3]))

    assert [row[:3] + row[4:] for row in night.shown()] == [
        (NAMES[ordinal], ordinal, prediction(ordinal), night.run.run_id, ordinal) for ordinal in (0, 2, 4)
    ]
    assert [row[3].isoformat() for row in night.shown()] == [PARTITION] * 3
    found = night.dead_letters()
    assert [(row[0], row[1].isoformat(), row[2], row[3], *row[5:]) for row in found] == [
        (night.spec.job, PARTITION, night.run.run_id, n, "too_long", f"row {n} is too long", 2) for n in (1, 3)
    ]
    assert [json.loads(row[4]) for row in found] == [{"name": NAMES[n], "version": n} for n in (1, 3)]
    assert {name: counts[name] for name in ("rows", "predictions", "dead_letters")} == {
        "rows": 5,
        "predictions": 3,
        "dead_letters": 2,
    }
    assert (counts["table"], counts["partition"]) == (night.destination, PARTITION)


def test_the_destination_is_made_with_the_types_of_the_source_and_partitioned(night: Night) -> None:
    night.publish(night.run, night.seal(night.run, NAMES))
    table = night.client.get_table(night.destination)

    assert [(field.name, field.field_type, field.mode) for field in table.schema] == [
        ("name", "STRING", "NULLABLE"),
        ("version", "INTEGER", "NULLABLE"),
        ("vector", "FLOAT", "REPEATED"),
        ("snapshot_date", "DATE", "NULLABLE"),
        ("nightshift_run_id", "STRING", "NULLABLE"),
        ("nightshift_ordinal", "INTEGER", "NULLABLE"),
    ]
    assert table.time_partitioning is not None
    assert (table.time_partitioning.field, table.time_partitioning.type_) == ("snapshot_date", "DAY")


def test_only_the_tables_that_shall_stay_are_left(night: Night) -> None:
    night.publish(night.run, night.seal(night.run, NAMES))

    assert night.tables() == {"audit", "dead_letters", "publications"}


def test_a_published_run_is_not_staged_again(night: Night) -> None:
    manifest = night.seal(night.run, NAMES, dead=[2])
    first = night.publish(night.run, manifest)

    assert night.stage(night.run, manifest) == []
    assert night.publish(night.run, manifest) == first
    assert first["job_id"].endswith("-publish-0")


@pytest.mark.gate
def test_each_step_repeated_at_any_moment_finds_its_job(night: Night) -> None:
    manifest = night.seal(night.run, NAMES)
    staged = night.stage(night.run, manifest)
    assert night.stage(night.run, manifest) == staged
    for job_id in staged:
        night.succeed(job_id)
    assert night.stage(night.run, manifest) == staged
    published = night.replace_partition(night.run, manifest)
    assert night.replace_partition(night.run, manifest) == published
    night.succeed(published)
    assert night.replace_partition(night.run, manifest) == published
    first = night.verify(night.run, manifest)

    assert night.verify(night.run, manifest) == first


@pytest.mark.gate
def test_publishing_again_what_was_destroyed_gives_identical_tables(night: Night) -> None:
    manifest = night.seal(night.run, NAMES, dead=[0])
    night.publish(night.run, manifest)
    before = night.shown(), night.dead_letters()
    night.rows(f"DELETE FROM `{night.destination}` WHERE nightshift_ordinal = 2")
    with pytest.raises(WarehouseError, match="does not show run"):
        night.verify(night.run, manifest)
    again = night.publish(night.run, manifest)

    assert again["job_id"].endswith("-publish-1")
    assert (night.shown(), night.dead_letters()) == before


def test_a_run_computed_again_after_its_folder_was_deleted_is_published_again(night: Night) -> None:
    night.publish(night.run, night.seal(night.run, NAMES))
    night.forget(night.run)
    again = night.seal(night.run, NAMES, bias=8.0)
    night.publish(night.run, again)

    assert [row[2] for row in night.shown()] == [prediction(n, 8.0) for n in range(len(NAMES))]
    assert night.stage(night.run, again) == []


@pytest.mark.gate
def test_a_new_run_replaces_the_partition_and_no_other(night: Night) -> None:
    other = night.run_of(OTHER)
    night.publish(other, night.seal(other, NAMES[:3], dead=[1]))
    night.publish(night.run, night.seal(night.run, NAMES, dead=[1, 2]))
    before = night.shown(OTHER)
    second = night.run_of(PARTITION, generation=2)
    night.publish(second, night.seal(second, NAMES[:4], dead=[0], bias=8.0))

    assert [(row[2], row[4]) for row in night.shown()] == [(prediction(n, 8.0), second.run_id) for n in (1, 2, 3)]
    assert night.shown(OTHER) == before
    assert [(row[1].isoformat(), row[2], row[3]) for row in night.dead_letters()] == [
        (OTHER, other.run_id, 1),
        (PARTITION, second.run_id, 0),
    ]


@pytest.mark.gate
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rows": 6, "predictions": 6}, "number of staged rows differs from the manifest"),
        ({"predictions": 4, "dead_letters": 1}, "number of staged predictions differs from the manifest"),
    ],
)
def test_a_manifest_that_does_not_match_its_chunks_changes_nothing(night: Night, wrong: dict[str, Any], message: str) -> None:
    night.publish(night.run, night.seal(night.run, NAMES, dead=[1]))
    before = night.shown(), night.dead_letters()
    second = night.run_of(PARTITION, generation=2)
    manifest = night.seal(second, NAMES, bias=8.0)
    night.staged(second, manifest)
    failed = night.finished(night.replace_partition(second, replace(manifest, **wrong)))

    assert message in str(failed.error)
    assert (night.shown(), night.dead_letters()) == before
    retried = night.replace_partition(second, manifest)
    assert retried.endswith("-publish-1")
    night.succeed(retried)
    assert len(night.shown()) == 5


def test_an_ordinal_that_is_there_twice_changes_nothing(night: Night) -> None:
    night.publish(night.run, night.seal(night.run, NAMES))
    before = night.shown()
    second = night.run_of(PARTITION, generation=2)
    manifest = night.seal(second, NAMES[:4])
    manifest = replace(manifest, chunks=(manifest.chunks[0], manifest.chunks[0]))
    # One object listed twice is read once or twice, by BigQuery's leave; the count or the ordinals give it away.
    for job_id in night.stage(second, manifest):
        night.finished(job_id)
    failed = night.finished(night.replace_partition(second, manifest))

    assert "staged rows" in str(failed.error)
    assert night.shown() == before


@pytest.mark.gate
def test_every_ordinal_is_staged_once_at_every_size(night: Night) -> None:
    assert asserted(night, [], 0) == ""
    for rows in (1, 31, 32, 33, 64, 65, 1000):
        assert asserted(night, range(rows), rows) == ""
        for wrong in (-1, rows, rows + 31):
            assert "every ordinal once" in asserted(night, [*range(rows)[1:], wrong], rows)


@pytest.mark.gate
@pytest.mark.parametrize("ordinals", [[0, 0, 3, 3], [1, 1, 2, 3], [32, 1, 2, 3], [0, 1, 2, 3, 3], [0, 1, 2], [None, 1, 2, 3]])
def test_ordinals_that_are_missing_or_there_twice_are_noticed(night: Night, ordinals: list[int | None]) -> None:
    assert "taged rows" in asserted(night, ordinals, 4)


def asserted(night: Night, ordinals: Iterable[int | None], rows: int) -> str:
    """What is said before the transaction begins about staged rows with these ordinals."""
    values = ", ".join("NULL" if each is None else str(each) for each in ordinals)
    staged = f"(SELECT ordinal, CAST(NULL AS STRING) AS dead_reason FROM UNNEST(ARRAY<INT64>[{values}]) AS ordinal)"
    counts = [bigquery.ScalarQueryParameter(name, "INT64", rows) for name in ("rows", "planned", "predictions")]
    try:
        night.client.query(publish.assertions(staged), bigquery.QueryJobConfig(query_parameters=counts)).result()
    except BadRequest as error:
        return str(error)
    return ""


@pytest.mark.gate
def test_a_failure_at_the_last_assertion_rolls_everything_back(night: Night) -> None:
    """The same script with its last assertion made impossible, so that it fails after every change was made."""
    night.publish(night.run, night.seal(night.run, NAMES, dead=[1]))
    before = night.shown(), night.dead_letters()
    second = night.run_of(PARTITION, generation=2)
    manifest = night.seal(second, NAMES, dead=[0, 2], bias=8.0)
    night.staged(second, manifest)
    staging = [name for name, _ in publish.staging_tables(second, manifest, night.settings)]
    script = publish.publish_script(night.spec, staging, night.settings, dead=True, stale=True)
    head, _, tail = script.rpartition("@@row_count = @predictions")
    parameters = publish.publish_parameters(night.spec, second, manifest, night.settings, opened_at(second))
    config = bigquery.QueryJobConfig(query_parameters=parameters)
    job = night.client.query(f"{head}@@row_count = @predictions + 1{tail}", job_config=config)

    assert "would not hold every row of the run once" in str(job.exception(timeout=600))  # type: ignore[no-untyped-call]
    assert (night.shown(), night.dead_letters()) == before


def test_a_missing_chunk_fails_the_load_and_names_the_object(night: Night) -> None:
    manifest = night.seal(night.run, NAMES)
    gone = manifest.chunks[1].path
    body = obstore.get(night.store, gone).bytes()
    obstore.delete(night.store, gone)
    (job_id,) = night.stage(night.run, manifest)

    assert gone in str(night.finished(job_id).error)
    obstore.put(night.store, gone, body)
    (again,) = night.stage(night.run, manifest)
    assert again.endswith("-stage0-1")


def test_objects_that_the_manifest_does_not_list_are_not_published(night: Night) -> None:
    manifest = night.seal(night.run, NAMES, per_chunk=1)
    strays = [*NAMES, "stray", "stray"]
    for ordinal in (5, 6):
        values = [prediction(n) for n in range(7)]
        night.commit(night.run, manifest.plan, ordinal, strays, range(ordinal, ordinal + 1), values=values)
    night.publish(night.run, manifest)

    assert [row[0] for row in night.shown()] == NAMES


def test_more_chunks_than_a_load_job_takes_are_staged_side_by_side(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "URIS_PER_LOAD", 2)
    manifest = night.seal(night.run, NAMES, dead=[4], per_chunk=1)
    staged = night.stage(night.run, manifest)
    for job_id in staged:
        night.succeed(job_id)
    assert [job_id.rsplit("-", 2)[1] for job_id in staged] == ["stage0", "stage1", "stage2"]
    night.client.delete_table(publish.staging_tables(night.run, manifest, night.settings)[1][0])
    repeated = night.stage(night.run, manifest)
    assert [new == old for new, old in zip(repeated, staged, strict=True)] == [True, False, True]
    night.publish(night.run, manifest)

    assert [row[0] for row in night.shown()] == NAMES[:4]
    assert night.tables() == {"audit", "dead_letters", "publications"}


@pytest.mark.gate
def test_a_run_without_rows_empties_the_partition(night: Night) -> None:
    night.publish(night.run, night.seal(night.run, NAMES, dead=[1]))
    second = night.run_of(PARTITION, generation=2)
    counts = night.publish(second, night.seal(second, []))

    assert (counts["rows"], night.shown(), night.dead_letters()) == (0, [], [])


def test_a_run_of_dead_letters_alone_is_published(night: Night) -> None:
    night.publish(night.run, night.seal(night.run, NAMES[:2], dead=[0, 1]))

    assert (night.shown(), [row[3] for row in night.dead_letters()]) == ([], [0, 1])


OWN = "nightshift_run_id STRING, nightshift_ordinal INT64"
BY_DAY = "PARTITION BY snapshot_date"


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        (
            f"(name STRING, version INT64, snapshot_date DATE, {OWN}) {BY_DAY}",
            r"no column vector. Add it: ALTER TABLE `.*` ADD COLUMN `vector` ARRAY<FLOAT64>",
        ),
        (
            f"(name STRING, version STRING, vector ARRAY<FLOAT64>, snapshot_date DATE, {OWN}) {BY_DAY}",
            r"column version as STRING; this job writes INT64",
        ),
        (
            f"(name STRING, version INT64, vector ARRAY<FLOAT64>, snapshot_date DATE, {OWN})",
            r"not partitioned by day on snapshot_date",
        ),
        (
            f"(name STRING, version INT64, vector ARRAY<FLOAT64>, snapshot_date DATE, {OWN}, extra STRING NOT NULL) {BY_DAY}",
            r"requires the column extra.*DROP NOT NULL",
        ),
    ],
)
def test_a_destination_that_does_not_fit_is_explained_before_anything_is_computed(
    night: Night, definition: str, message: str
) -> None:
    night.rows(f"CREATE TABLE `{night.destination}` {definition}")

    with pytest.raises(WarehouseError, match=message):
        night.warehouse.check_query(night.spec, PARTITION)
    with pytest.raises(WarehouseError, match=message):
        night.replace_partition(night.run, night.seal(night.run, NAMES))


def test_a_destination_that_is_a_view_is_explained(night: Night) -> None:
    night.rows(f"CREATE VIEW `{night.destination}` AS SELECT 1 AS a")

    with pytest.raises(WarehouseError, match=r"is a view, not a table"):
        night.warehouse.check_query(night.spec, PARTITION)


def test_a_destination_with_more_columns_is_kept_as_it_is(night: Night) -> None:
    night.rows(
        f"CREATE TABLE `{night.destination}` "
        f"(note STRING, name STRING, version INT64, vector ARRAY<FLOAT64>, snapshot_date DATE, {OWN}) {BY_DAY}"
    )
    night.publish(night.run, night.seal(night.run, NAMES))

    assert [row[:2] for row in night.shown()] == [(None, name) for name in NAMES]


def test_a_destination_without_its_dataset_is_explained(night: Night) -> None:
    spec = night.spec.model_copy(update={"destination": night.spec.destination.model_copy(update={"table": "nowhere.vectors"})})

    with pytest.raises(WarehouseError, match=r"destination local.nowhere.vectors: Not found: Dataset.*Create it"):
        night.warehouse.check_query(spec, PARTITION)


@pytest.mark.gate
def test_a_warehouse_out_of_reach_is_no_verdict(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "RETRY_TIMEOUT_S", 0.2)
    gone = BigQueryEmulator((), {}, "", Path(), f"http://{HOST}:{new_port()}", "").client()
    warehouse = Warehouse(gone, night.settings)

    for ask in (
        lambda: warehouse.job("any"),
        lambda: warehouse.check_query(night.spec, PARTITION),
        lambda: warehouse.start_extract(night.spec, night.run),
    ):
        with pytest.raises(WarehouseUnavailable, match=r"BigQuery job any|query of job|cannot be looked up"):
            ask()


def test_who_finds_the_id_taken_at_the_last_moment_takes_that_job(night: Night) -> None:
    """The 409 between the look and the submit, which also follows a submit whose reply was lost."""
    finder = jobs.Jobs(night.client, night.settings)

    def too_late(job_id: str, attempt: int) -> None:
        for _ in range(2):
            night.client.query("SELECT 1", job_id=job_id, job_retry=None)

    job_id = finder.find_or_start(night.run, "step", too_late)
    night.succeed(job_id)
    with pytest.raises(Conflict):
        too_late(job_id, 0)


def test_a_step_that_always_fails_ends_with_its_reason(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "ATTEMPTS_MAX", 3)
    finder = jobs.Jobs(night.client, night.settings)
    for attempt in range(3):
        job_id = finder.find_or_start(
            night.run, "step", lambda name, _: night.client.query("SELECT ERROR('worn out')", job_id=name, job_retry=None)
        )
        assert job_id.endswith(f"-step-{attempt}")
        night.finished(job_id)

    with pytest.raises(WarehouseError, match=r"tried 3 times.*worn out.*fresh"):
        finder.find_or_start(night.run, "step", lambda name, _: pytest.fail("a fourth job"))
