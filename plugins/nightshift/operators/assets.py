"""The assets by which other DAGs know what nightshift writes."""

from __future__ import annotations

from airflow.sdk import Asset

from nightshift.spec import JobSpec


def table_asset(spec: JobSpec, project: str) -> Asset:
    """The published table of a job: ``project.dataset.table``. `project` holds it if its name says none.

    Without a scheme: BigQuery's would make Airflow import, at each parse, the clients of every provider that has one.
    """
    table = spec.destination.table
    return Asset(table if table.count(".") > 1 else f"{project}.{table}")


def files_asset(url: str) -> Asset:
    """The files below a folder, ``gs://BUCKET/FOLDER``, as other DAGs name them: for those that a stream writes.

    Its parse costs what `table_asset` avoids. Raises ValueError for another URL.
    """
    bucket, _, folder = url.removeprefix("gs://").rstrip("/").partition("/")
    if not url.startswith("gs://") or not bucket:
        raise ValueError(f"{url!r} is not a folder of Cloud Storage. Write gs://BUCKET/FOLDER.")
    return Asset(f"gs://{bucket}/{folder}".rstrip("/"))
