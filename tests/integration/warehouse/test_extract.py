"""From the query to the plan: what is exported, in which order, and that a repeat never exports twice."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import obstore
import pyarrow.parquet as pq
import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import bigquery
from google.cloud.storage import Client as StorageClient  # type: ignore[import-untyped]

from nightshift.hooks.warehouse import labelled
from nightshift.run.plan import ExportedSource, PlanError, load_plan
from nightshift.spec import JobSpec
from nightshift.warehouse import Warehouse, WarehouseError, jobs, query
from nightshift.warehouse.extract import build_plan, exported
from tests.builders import a_fix
from tests.integration.emulators import PROJECT
from tests.integration.warehouse.conftest import OTHER, PARTITION, TEXTS, Night

pytestmark = pytest.mark.integration


def with_query(night: Night, query: str, **source: Any) -> JobSpec:
    return night.spec.model_copy(update={"source": night.spec.source.model_copy(update={"query": query, **source})})


def rows_of(night: Night, paths: list[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path in paths:
        body = bytes(obstore.get(night.store, f"{night.run.prefix}/{path}").bytes())
        found += pq.read_table(io.BytesIO(body)).to_pylist()
    return found


@pytest.mark.gate
def test_the_query_is_exported_and_planned(night: Night) -> None:
    plan = night.extract(night.run)
    rows = rows_of(night, [file.path for file in plan.files])

    assert len(rows) == len(TEXTS)
    assert {row["name"]: row["text"] for row in rows} == TEXTS
    assert (plan.rows, {file.path.split("-part-")[0] for file in plan.files}) == (len(TEXTS), {"inputs/0"})
    assert sum(sum(file.row_groups) for file in plan.files) == len(TEXTS)
    assert load_plan(night.store, night.run) == plan


def test_an_order_that_the_query_asks_for_is_kept(night: Night) -> None:
    night.spec = with_query(night, f"{night.spec.source.query} ORDER BY name DESC")
    rows = rows_of(night, [file.path for file in night.extract(night.run).files])

    assert [row["name"] for row in rows] == sorted(TEXTS, reverse=True)


def test_the_plan_names_the_version_of_each_file(night: Night) -> None:
    for file in night.extract(night.run).files:
        meta = obstore.head(night.store, f"{night.run.prefix}/{file.path}")
        assert (file.etag, file.size) == (meta["e_tag"], meta["size"])


@pytest.mark.parametrize(
    "tail", ["", ";", " -- the end", ";\n-- the end ;", "\n# the end", " /* ; */ ; ;", " ORDER BY text LIMIT 3;"]
)
def test_what_follows_the_query_does_not_break_the_export(night: Night, tail: str) -> None:
    night.spec = with_query(night, night.spec.source.query + tail)
    plan = night.extract(night.run)

    assert plan.rows == night.warehouse.count_rows(night.spec, PARTITION) == (3 if "LIMIT" in tail else 5)


def test_a_query_without_rows_is_a_plan_without_rows(night: Night) -> None:
    run = night.run_of("1999-01-01")
    plan = night.extract(run)

    assert (plan.rows, plan.files, plan.chunk_count) == (0, (), 0)


def test_a_repeat_finds_the_job_and_the_plan(night: Night) -> None:
    first = night.warehouse.start_extract(night.spec, night.run)
    second = night.warehouse.start_extract(night.spec, night.run)
    night.succeed(first)
    plan = night.plan(night.run)

    assert first == second == night.warehouse.start_extract(night.spec, night.run)
    assert first == f"nightshift-{night.settings.deployment}-{night.run.run_id}-20261120-extract-0"
    assert night.plan(night.run) == plan


@pytest.mark.gate
def test_attempts_that_race_share_one_job(night: Night) -> None:
    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda _: night.warehouse.start_extract(night.spec, night.run), range(8)))
    night.succeed(ids[0])

    assert len(set(ids)) == 1
    assert [job.job_id for job in night.client.list_jobs() if night.run.run_id in job.job_id] == [ids[0]]


def test_after_a_failed_export_the_next_one_writes_beside_it(night: Night, storage_client: StorageClient) -> None:
    later = f"{night.settings.bucket}-later"
    warehouse = Warehouse(night.client, replace(night.settings, bucket=later))
    failed = night.finished(warehouse.start_extract(night.spec, night.run))
    assert failed.done
    assert failed.error is not None

    storage_client.create_bucket(later)
    second = warehouse.start_extract(night.spec, night.run)
    night.succeed(second)

    assert second.endswith("-extract-1")
    names = [blob.name for blob in storage_client.list_blobs(later)]
    assert {name.split("-part-")[0] for name in names} == {f"{night.run.prefix}/inputs/1"}


@pytest.mark.gate
def test_what_a_failed_export_left_is_never_planned(night: Night) -> None:
    obstore.put(night.store, f"{night.run.prefix}/inputs/0-part-000000000000.parquet", b"half-written")
    failed = f"nightshift-{night.settings.deployment}-{night.run.run_id}-20261120-extract-0"
    night.client.query("SELECT ERROR('made to fail')", job_id=failed, job_retry=None)
    assert "made to fail" in str(night.finished(failed).error)
    job_id = night.warehouse.start_extract(night.spec, night.run)
    night.succeed(job_id)
    plan = night.plan(night.run, attempt=1)

    assert job_id.endswith("-extract-1")
    assert plan.rows == len(TEXTS)
    assert {file.path.split("-part-")[0] for file in plan.files} == {"inputs/1"}


def test_a_job_that_bigquery_forgot_is_lost_and_may_be_started_again(night: Night) -> None:
    job_id = night.warehouse.start_extract(night.spec, night.run)
    night.succeed(job_id)
    night.client.delete_job_metadata(job_id)
    lost = night.warehouse.job(job_id)

    assert (lost.done, lost.retryable) == (True, True)
    assert "does not know" in str(lost.error)
    assert night.warehouse.start_extract(night.spec, night.run) == job_id
    night.succeed(job_id)


def test_a_run_whose_folder_was_deleted_is_exported_again(night: Night) -> None:
    def start() -> str:
        return night.warehouse.start_extract(
            night.spec, night.run, holds=lambda attempt: bool(exported(night.store, night.run, attempt))
        )

    first = start()
    night.succeed(first)
    assert start() == first
    obstore.delete(night.store, exported(night.store, night.run, 0))
    second = start()
    night.succeed(second)

    assert second.endswith("-extract-1")
    assert night.plan(night.run, attempt=1).rows == len(TEXTS)


@pytest.mark.gate
def test_every_job_says_what_it_is_for(night: Night) -> None:
    """The export of Cloud Billing is split by labels."""
    asked_at = "2026-11-21T00:00:00+00:00"
    before = {job.job_id for job in night.client.list_jobs()}
    labelled(night.client, {"job": "job", "run": night.run.run_id, "step": "Group.publish"})
    try:
        assert night.warehouse.count_rows(night.spec, PARTITION) == len(TEXTS)
        night.succeed(night.warehouse.start_extract(night.spec, night.run))
        manifest = night.seal(night.run, list(TEXTS))
        night.succeed(*night.warehouse.start_staging(night.spec, night.run, manifest, night.source, asked_at=asked_at))
    finally:
        labelled(night.client, {})

    made = [job for job in night.client.list_jobs() if job.job_id not in before]
    assert {job.job_type for job in made} == {"query", "load"}
    wanted = {"nightshift-job": "job", "nightshift-run": night.run.run_id, "nightshift-step": "group-publish"}
    assert [job.labels for job in made] == [wanted] * len(made)


@pytest.mark.parametrize("said", [len(TEXTS) - 1, len(TEXTS) + 1])
def test_files_that_do_not_hold_what_was_exported_are_refused(night: Night, said: int) -> None:
    night.succeed(night.warehouse.start_extract(night.spec, night.run))

    with pytest.raises(PlanError, match=f"exported {said} rows, but the files in .* hold {len(TEXTS)}"):
        night.plan(night.run, rows=said)
    assert load_plan(night.store, night.run) is None
    assert night.plan(night.run, rows=len(TEXTS)).rows == len(TEXTS)


def test_how_many_rows_an_export_wrote_is_read_from_its_job() -> None:
    resource = {
        "jobReference": {"projectId": "p", "jobId": "x"},
        "configuration": {"query": {"query": "EXPORT DATA"}},
        "statistics": {"query": {"exportDataStatistics": {"fileCount": "1", "rowCount": "5"}}},
    }
    job = bigquery.QueryJob.from_api_repr(resource, bigquery.Client("p", AnonymousCredentials()))  # type: ignore[no-untyped-call]

    assert jobs.statistics(job)["exported_rows"] == 5


def test_a_destination_in_another_location_is_found_before_the_night(night: Night) -> None:
    elsewhere = Warehouse(night.client, replace(night.settings, location="europe-west4"))

    with pytest.raises(WarehouseError, match=r"is in US, but jobs run in europe-west4"):
        elsewhere.check_query(night.spec, PARTITION)


def test_a_file_without_a_column_that_the_job_reads_is_refused(night: Night) -> None:
    night.succeed(night.warehouse.start_extract(night.spec, night.run))
    spec = night.spec.model_copy(update={"request": night.spec.request.model_copy(update={"input": "{{ title }}"})})

    with pytest.raises(PlanError, match=r"lacks the columns \['title'\]"):
        build_plan(night.store, night.run, spec, night.source, fix=a_fix(spec), attempt=0)
    assert load_plan(night.store, night.run) is None


def test_rows_are_counted_for_the_partition_alone(night: Night) -> None:
    assert night.warehouse.count_rows(night.spec, PARTITION) == len(TEXTS)
    assert night.warehouse.count_rows(night.spec, OTHER) == 1


@pytest.mark.gate
def test_the_plan_records_the_types_of_the_query_and_its_tables(night: Night) -> None:
    night.warehouse.check_query(night.spec, PARTITION)
    night.extract(night.run)
    plan = load_plan(night.store, night.run)

    columns = {"name": "STRING", "version": "INT64", "text": "STRING", "day": "DATE", "parts": "ARRAY<STRING>"}
    assert plan is not None
    assert plan.source == ExportedSource(columns, (f"{PROJECT}.{night.settings.bucket}.source",))


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT name, version, txt FROM `{d}.source`", r"source.query.*Unrecognized name: txt.*Correct the SQL"),
        ("SELEC name", r"source.query.*at \[1:\d+\]. Correct the SQL"),
        ("SELECT * FROM `{d}.nowhere`", r"Not found: Table .*nowhere.*Create it, or correct its name"),
        ("SELECT name, version FROM `{d}.source`", r"request.input names the column text, which source.query does not return"),
        ("SELECT name, text FROM `{d}.source`", r"source.key names the column version, which"),
        ("SELECT Name AS names, version, text FROM `{d}.source`", r"source.key names the column name.*did you mean names\?"),
        (
            "SELECT name, version, text, day AS Text FROM `{d}.source`",
            r"Duplicate column names in the result are not supported. Found duplicate\(s\): Text. Correct the SQL",
        ),
        ("SELECT parts AS name, version, text FROM `{d}.source`", r"name of type ARRAY<STRING>, which cannot be copied"),
        ("SELECT PARSE_JSON('1') AS name, version, text FROM `{d}.source`", r"name of type JSON, which cannot be copied"),
        ("SELECT STRUCT(1 AS a) AS name, version, text FROM `{d}.source`", r"name of type STRUCT<.*>, which cannot be copied"),
        ("SELECT *, INTERVAL 1 DAY AS age FROM `{d}.source`", r"column age of type INTERVAL, and .* not export INTERVAL"),
        (
            "SELECT *, [STRUCT(RANGE(day, NULL) AS `INTERVAL`)] AS stays FROM `{d}.source`",
            r"column stays of type ARRAY<STRUCT<`INTERVAL` RANGE>>, and BigQuery does not export RANGE to Parquet. Leave",
        ),
        (
            "SELECT * FROM `{d}.source` WHERE TIMESTAMP(day) = @partition",
            r"types: TIMESTAMP, DATE .*Correct the SQL. @partition is a DATE: with a TIMESTAMP column, write DATE\(column\)",
        ),
        (
            "SELECT * FROM `{d}.source` WHERE text < @partition",
            r"with a STRING column, write CAST\(column AS DATE\) = @partition",
        ),
        ("DELETE FROM `{d}.source` WHERE day = @partition", r"is a DELETE statement. Write one SELECT"),
        ("SELECT 1 AS a; SELECT 2 AS a", r"has 2 statements, the second in line 1"),
        ("SELECT 'open", r"cannot be read as SQL"),
        (" ; -- nothing", r"has no statement"),
    ],
)
def test_a_query_that_does_not_fit_is_explained(night: Night, query: str, message: str) -> None:
    spec = with_query(night, query.replace("{d}", night.settings.bucket))

    with pytest.raises(WarehouseError, match=message):
        night.warehouse.check_query(spec, PARTITION)


def test_a_second_statement_that_was_hidden_here_is_found_by_the_dry_run(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    """Should our rules about the text of a query ever differ from BigQuery's, this refusal is left, before anything runs."""
    source = f"`{night.settings.bucket}.source`"
    spec = with_query(night, f"SELECT * FROM {source} WHERE day = @partition; DROP TABLE {source}")
    monkeypatch.setattr(query, "bare_query", lambda sql: sql)

    with pytest.raises(WarehouseError, match=r"source.query is a SCRIPT statement. Write one SELECT"):
        night.warehouse.check_query(spec, PARTITION)


@pytest.mark.parametrize(
    ("destination", "message"),
    [({"column": "NAME"}, "two columns called"), ({"partition_column": "version"}, "two columns called")],
)
def test_a_destination_column_may_not_be_a_key(night: Night, destination: dict[str, str], message: str) -> None:
    spec = night.spec.model_copy(update={"destination": night.spec.destination.model_copy(update=destination)})

    with pytest.raises(WarehouseError, match=message):
        night.warehouse.check_query(spec, PARTITION)
