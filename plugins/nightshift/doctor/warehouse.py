"""BigQuery: the datasets and where they are, the right to run jobs and to write, and the query of the job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from nightshift.doctor import bucket, colocation, fixes
from nightshift.doctor.context import Surroundings
from nightshift.doctor.findings import Failed, Finding, Ok, Skipped
from nightshift.warehouse import WarehouseError, WarehouseUnavailable

DATASET: Final = "dataset"
LOCATION: Final = "location"
JOBS: Final = "bigquery.jobs.create"
TABLES: Final = "dataset permissions"
QUERY: Final = "query"


def dataset(here: Surroundings) -> Iterator[Finding]:
    name = here.dataset
    breaks = "publish and audit, unless the account may create datasets"
    try:
        where = here.connections.trial().location(name)
    except WarehouseError as error:
        fix = fixes.dataset_role(here.settings, name, "bigquery.dataEditor", here.connections.google().email)
        yield Failed(DATASET, str(error), "publish and audit", fix)
        return
    if where is None:
        create = f"bq --location={here.settings.location} mk --dataset {here.settings.project}:{here.settings.dataset}"
        yield Failed(DATASET, f"{name} (NIGHTSHIFT_DATASET) does not exist", breaks, create)
    else:
        yield Ok(DATASET, f"{name} in {where}")


def location(here: Surroundings) -> Iterator[Finding]:
    """One BigQuery job reads and writes in one location: that of the dataset, which the setting names, with the bucket in it
    (`nightshift.doctor.colocation`, docs/operate/warehouse.md)."""
    wanted, name = here.settings.location, f"gs://{here.settings.bucket}"
    placed = colocation.Bucket.of(json.loads(bucket.metadata(here).body))
    dataset_in = str(here.connections.trial().location(here.dataset)).upper()
    breaks = "extract and publish: a BigQuery job cannot read or write elsewhere"
    places = f"{name} is in {placed.location}, {here.dataset} is in {dataset_in}"
    wrong = f"{places}, and NIGHTSHIFT_LOCATION is {wanted}"
    reached, charged = colocation.is_in(placed, dataset_in), colocation.is_charged(placed, dataset_in)
    if dataset_in == wanted.upper() and reached:
        yield Ok(LOCATION, f"bucket {placed.location}, dataset and NIGHTSHIFT_LOCATION {dataset_in}")
    elif dataset_in == wanted.upper() and charged:
        yield Ok(LOCATION, f"{places}: BigQuery reads and writes there, and the transfer between regions is charged")
    elif reached or charged:
        yield Failed(LOCATION, wrong, breaks, fixes.setting("NIGHTSHIFT_LOCATION", dataset_in))
    elif dataset_in == wanted.upper():
        fix = f"gcloud storage buckets create gs://ANOTHER --location={wanted}, then NIGHTSHIFT_BUCKET=ANOTHER"
        yield Failed(LOCATION, wrong, breaks, fix)
    else:
        fix = f"bq --location={wanted} mk --dataset {here.settings.project}:ANOTHER, then NIGHTSHIFT_DATASET=ANOTHER"
        yield Failed(LOCATION, wrong, breaks, fix)


def jobs(here: Surroundings) -> Iterator[Finding]:
    try:
        here.connections.trial().run_job()
    except WarehouseError as error:
        fix = fixes.project_role(here.settings.project, "bigquery.jobUser", here.connections.google().email)
        yield Failed(JOBS, str(error), "plan, extract and publish: every one runs jobs", fix)
    else:
        yield Ok(JOBS, f"in {here.settings.project}, by a dry run")


def tables(here: Surroundings) -> Iterator[Finding]:
    """A finding for each permission. The table is dropped whatever happens in between; if not even that works, it expires."""
    name = here.dataset
    fix = fixes.dataset_role(here.settings, name, "bigquery.dataEditor", here.connections.google().email)
    failed = ""
    for permission, attempt in here.connections.trial().steps(name):
        if failed.endswith("create"):
            yield Skipped(permission, f"{failed} is not ok", needs=failed)
            continue
        try:
            attempt()
        except (WarehouseError, WarehouseUnavailable) as error:
            failed = failed or permission
            left = "; the table expires within an hour" if permission.endswith("delete") else ""
            yield Failed(permission, f"{error}{left}", "publish and audit, which write tables there", fix)
        else:
            yield Ok(permission, f"in {name}, by a table of the doctor's own")


def query(here: Surroundings) -> Iterator[Finding]:
    """What the task `plan` asks before it plans: the query, by a dry run, and the destination."""
    job, partition = here.named_job, here.partition
    try:
        here.connections.warehouse(job=job.job, step="doctor").check_query(job, partition)
    except WarehouseError as error:
        grant = fixes.dataset_role(here.settings, "SOURCE", "bigquery.dataViewer", here.connections.google().email)
        fix = f"correct the job, or: {grant}"
        yield Failed(QUERY, str(error), f"plan of {job.job}", fix)
    else:
        yield Ok(QUERY, f"{job.job} for {partition}, by a dry run; {job.destination.table} takes its predictions")
