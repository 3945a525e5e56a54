"""The rows of a trial: some of the job's query, kept in the bucket so that it is paid once, or of an earlier run's inputs; and
which of them stand for all, by how long they are and how they begin."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import obstore
import pyarrow as pa
import pyarrow.parquet as pq

from nightshift.fields.text import n
from nightshift.formats import loaded
from nightshift.run.inputs import InputReader
from nightshift.run.names import RunRef, digest_of
from nightshift.run.opening import load_run, opened_last
from nightshift.run.parquet_rows import whole
from nightshift.run.plan import load_plan
from nightshift.store import get_bytes, reaching
from nightshift.trial.engine_folder import PREVIEWS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from obstore.store import ObjectStore

    from nightshift.spec import JobSpec
    from nightshift.trial.world import Source, World

METADATA_KEY: Final = b"nightshift.preview"
"""As release 0.3.0 wrote it."""
GB: Final = 10**9
STRATA: Final = 10
"""By length, with as many rows each."""
BEGINNING: Final = 64
"""Characters of a row that say which others share its beginning."""
BLOCKS: Final = 32
"""Places of a run from which rows are read."""


class NoRows(LookupError):
    """The query returns nothing for the partition."""


@dataclass(frozen=True)
class Rows:
    """of_night: how many the whole query had. query_bytes: that it reads, if BigQuery says so. read_at: ISO 8601.

    kept: they were read for an earlier trial.
    """

    table: pa.Table
    of_night: int
    query_bytes: int | None
    read_at: str
    kept: bool = False


def rows_path(spec: JobSpec, partition: str, rows: int, project: str) -> str:
    """Of some rows of the job's query. project: of the tables that the query does not name in full."""
    named = [spec.source.query, list(spec.source.key), partition, spec.every, rows, project]
    return f"{PREVIEWS}/{spec.job}/rows/{digest_of(named)}.parquet"


def rows_of_query(world: World, spec: JobSpec, partition: str, rows: int, step: str) -> Rows:
    """Those of an earlier trial of the same query, else from the warehouse. step: ``preview`` or ``tune``.

    Raises NoRows, StoreUnavailable, and what the warehouse raises.
    """
    asked = (spec, partition, rows, world.settings.project)
    if (kept := kept_rows(world.store, *asked)) is not None:
        world.say(f"{len(kept.table)} of {n(kept.of_night, 'row')}, read at {kept.read_at}")
        return kept
    source = world.warehouse(job=spec.job, step=step)
    bytes_ = source.query_bytes(spec, partition)
    size = "an unknown number of bytes" if bytes_ is None else f"{bytes_ / GB:,.3f} GB, by a dry run"
    world.say(f"the query is read once, whole, for {n(rows, 'row')} ({size}); the next {step} of it reads nothing")
    return read_rows(world.store, source, *asked, bytes_)


def kept_rows(store: ObjectStore, spec: JobSpec, partition: str, rows: int, project: str) -> Rows | None:
    """Those of an earlier trial of the same query; None if there are none that can be read. Raises StoreUnavailable."""
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
    # Read back, so that the first trial sees what the later ones see.
    return replace(kept_rows(store, spec, partition, rows, project) or found, kept=False)


def _of_an_empty_night(spec: JobSpec, partition: str) -> str:
    from nightshift.planner.source import Unfit, check_rows

    try:
        return check_rows(spec, partition, 0)
    except Unfit as unfit:
        return str(unfit)


def rows_of_run(
    store: ObjectStore, spec: JobSpec, partition: str, columns: Sequence[str], rows: int
) -> tuple[RunRef, pa.Table] | None:
    """Some rows of the inputs of the partition's latest run, from places spread over them; None if there is none of the same
    query. Raises StoreUnavailable, InputChanged and InputBroken."""
    run = opened_last(store, spec.job, partition)
    plan = load_plan(store, run) if run else None
    if run is None or plan is None or not plan.rows:
        return None
    earlier, _ = load_run(store, run)
    if earlier.source.query != spec.source.query or list(earlier.source.key) != list(spec.source.key):
        return None
    reader = InputReader(store, run, plan, tuple(dict.fromkeys([*spec.source.key, *columns])))
    if plan.rows <= rows:
        return run, reader.rows(range(plan.rows))
    blocks = min(BLOCKS, rows)
    each, apart = rows // blocks, plan.rows / blocks
    starts = [int(number * apart) for number in range(blocks)]
    return run, pa.concat_tables([reader.rows(range(start, min(start + each, plan.rows))) for start in starts])


def stratified(texts: Sequence[str], rows: int) -> list[int]:
    """Which of them stand for all, in their own order: from each stratum of lengths its share, spread over beginnings."""
    if rows >= len(texts):
        return list(range(len(texts)))
    by_length = sorted(range(len(texts)), key=lambda index: (len(texts[index]), index))
    size = len(texts) / STRATA
    ordered: list[int] = []
    for stratum in range(STRATA):
        members = by_length[round(stratum * size) : round((stratum + 1) * size)]
        ordered += sorted(members, key=lambda index: (texts[index][:BEGINNING], index))
    step = len(ordered) / rows
    return sorted(ordered[int((number + 0.5) * step)] for number in range(rows))


def longest(texts: Sequence[str], rows: int) -> list[int]:
    """The longest of them, again and again if there are fewer: what a soak needs. The longest come first."""
    ordered = sorted(range(len(texts)), key=lambda index: (-len(texts[index]), index))
    return [ordered[number % len(ordered)] for number in range(rows)] if ordered else []


def texts_of(table: pa.Table, columns: Sequence[str]) -> list[str]:
    """What a row's template reads of it, as text: two rows that begin alike have prompts that do."""
    named = [table.column(name).to_pylist() for name in columns if name in table.column_names]
    return ["".join("" if value is None else str(value) for value in row) for row in zip(*named, strict=True)] or [""] * len(
        table
    )


def to_parquet(table: pa.Table, said: dict[str, Any] | None = None) -> bytes:
    """said: kept in its metadata."""
    sink = io.BytesIO()
    if said is not None:
        table = table.replace_schema_metadata({METADATA_KEY: json.dumps(said).encode()})
    pq.write_table(table, sink)
    return sink.getvalue()
