"""The assets of what nightshift writes, for other DAGs."""

from __future__ import annotations

from typing import Final

from airflow.sdk import Asset

from nightshift.fields.values import duration, duration_seconds
from nightshift.spec import JobSpec
from nightshift.spec.model import SETTLE
from nightshift.spec.periods import DAY

HOURLY: Final = "1h"
"""As the folders of a stream's files are."""


def table_asset(spec: JobSpec, project: str) -> Asset:
    """The published table of a job: ``project.dataset.table``. `project` holds it if its name has none.

    Without a scheme: BigQuery's would make Airflow import, at each parse, the clients of every provider that has one.
    """
    table = spec.destination.table
    return Asset(table if table.count(".") > 1 else f"{project}.{table}")


def files_asset(url: str, *, every: str = HOURLY, settle: str = SETTLE) -> Asset:
    """The files that appear in a folder, ``gs://BUCKET/FOLDER``, such as those of a stream.

    It carries its watcher, so a DAG with ``schedule=[files_asset(...)]`` is triggered when a period is over in which objects
    appeared: `nightshift.triggers.files.FilesTrigger` describes the event, `every` and `settle`. All DAGs with the same
    arguments share one asset and one watcher. A run may have several events.

    Its parse costs what `table_asset` avoids. Raises ValueError for another URL or length.
    """
    from airflow.sdk import AssetWatcher

    from nightshift.triggers.files import FilesTrigger

    bucket, _, folder = url.removeprefix("gs://").rstrip("/").partition("/")
    if not url.startswith("gs://") or not bucket:
        raise ValueError(f"{url!r} is not a folder of Cloud Storage. Write gs://BUCKET/FOLDER.")
    if duration_seconds(duration(every)) % 60 or duration_seconds(DAY) % duration_seconds(every):
        raise ValueError(f"{every!r} is not the length of a period. Write whole minutes that divide a day, for example 10m.")
    place = f"gs://{bucket}/{folder}".rstrip("/")
    trigger = FilesTrigger(url=place, every=every, settle=duration(settle))
    # Airflow has one asset for each URI, and passes each event of an asset to all DAGs that are scheduled on it.
    return Asset(f"{place}?every={every}&settle={settle}", watchers=[AssetWatcher(name="files", trigger=trigger)])
