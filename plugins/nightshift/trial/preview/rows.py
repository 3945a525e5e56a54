"""Some rows of a job's query, kept in the bucket: a prompt is tried on the same rows again, and the query is paid once."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

import obstore
import pyarrow as pa
import pyarrow.parquet as pq

from nightshift.formats import loaded
from nightshift.run.parquet_rows import whole
from nightshift.store import get_bytes, reaching
from nightshift.trial.preview.names import rows_path

if TYPE_CHECKING:
    from obstore.store import ObjectStore

    from nightshift.spec import JobSpec

METADATA_KEY: Final = b"nightshift.trial.preview"


class NoRows(LookupError):
    """The query returns nothing for the partition."""


class Source(Protocol):
    """What is asked of the warehouse: `nightshift.warehouse.samples.Samples`."""

    def query_bytes(self, spec: JobSpec, partition: str) -> int | None:
        """Bytes that the query reads, by a dry run; None if it does not say. Raises as `check_query` does."""
        ...

    def some_rows(self, spec: JobSpec, partition: str, rows: int) -> tuple[int, pa.Table]:
        """How many rows the query has, and some of them, always the same ones. Reads as much as the query does."""
        ...


@dataclass(frozen=True)
class Rows:
    """of_night: how many the whole query had. query_bytes: that it reads, if BigQuery says so. read_at: ISO 8601.

    kept: they were read for an earlier preview.
    """

    table: pa.Table
    of_night: int
    query_bytes: int | None
    read_at: str
    kept: bool = False


def kept_rows(store: ObjectStore, spec: JobSpec, partition: str, rows: int, project: str) -> Rows | None:
    """Those of an earlier preview of the same query; None if there are none that can be read. Raises StoreUnavailable."""
    path = rows_path(spec, partition, rows, project)
    try:
        with reaching(f"read {path}"):
            body = get_bytes(store, path)
        if body is None:
            return None
        table = whole(body, rows)
        said = loaded((table.schema.metadata or {})[METADATA_KEY])
        return Rows(table, int(said["of_night"]), said["query_bytes"], str(said["read_at"]), kept=True)
    except (KeyError, TypeError, ValueError, pa.ArrowException):
        return None  # They only save a query, which is asked again.


def read_rows(
    store: ObjectStore, source: Source, spec: JobSpec, partition: str, rows: int, project: str, bytes_: int | None
) -> Rows:
    """Asks the warehouse, and keeps the rows. bytes_: that the query reads. Raises NoRows, StoreUnavailable, as `source`."""
    of_night, table = source.some_rows(spec, partition, rows)
    if not of_night:
        raise NoRows(f"Name another --partition. {_of_an_empty_night(spec, partition)}")
    found = Rows(table, of_night, bytes_, datetime.now(UTC).isoformat(timespec="seconds"))
    path = rows_path(spec, partition, rows, project)
    with reaching(f"write {path}"):
        obstore.put(
            store, path, to_parquet(found.table, {"of_night": of_night, "query_bytes": bytes_, "read_at": found.read_at})
        )
    # Read back, so that the first preview sees what the later ones see.
    return replace(kept_rows(store, spec, partition, rows, project) or found, kept=False)


def _of_an_empty_night(spec: JobSpec, partition: str) -> str:
    from nightshift.planner.source import Unfit, check_rows

    try:
        return check_rows(spec, partition, 0)
    except Unfit as unfit:
        return str(unfit)


def to_parquet(table: pa.Table, said: dict[str, Any] | None = None) -> bytes:
    """said: kept in its metadata."""
    sink = io.BytesIO()
    if said is not None:
        table = table.replace_schema_metadata({METADATA_KEY: json.dumps(said).encode()})
    pq.write_table(table, sink)
    return sink.getvalue()
