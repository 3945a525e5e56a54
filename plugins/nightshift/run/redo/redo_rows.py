"""The rows of a redo (`nightshift.run.redo.redo`): found, copied from the earlier run's files, and proven to be the right ones.

The rows of a corrected one: `nightshift.run.redo.corrected_rows`.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import obstore
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from obstore.store import ObjectStore

from nightshift.run import chunks
from nightshift.run.inputs import InputBroken, InputChanged, InputReader
from nightshift.run.manifest import CompletedRun, RunManifest, SealedChunk, load_completed
from nightshift.run.names import RunRef
from nightshift.run.parquet_rows import decoded, pieces
from nightshift.run.plan import InputFile, Plan, load_plan
from nightshift.run.redo.redo import NotRedone, Redo
from nightshift.spec import columns
from nightshift.store import get_bytes, reaching

ORDINAL: Final = "nightshift_redo_ordinal"
"""The column of a redo's input files with the ordinal that the row has in the earlier run."""
FILE_BYTES: Final = 64 << 20
"""How large an input file of a redo gets, in memory; one chunk's rows are never split."""
WRITTEN: Final = 1
"""The export attempt by whose names the input files of a redo go."""
READERS: Final = 16
"""Objects asked for in parallel."""
NAMED: Final = 3
"""How many files an error message names."""


def check_inputs(store: ObjectStore, run: RunRef, plan: Plan) -> None:
    """Raises NotRedone unless the run's exported files are those that were planned. One HEAD for each; StoreUnavailable."""

    def is_there(file: InputFile) -> bool:
        try:
            return str(obstore.head(store, f"{run.prefix}/{file.path}")["e_tag"]) == file.etag
        except FileNotFoundError:
            return False

    with reaching(f"look at the inputs of {run.prefix}"), ThreadPoolExecutor(READERS) as pool:
        gone = [file.path for file, found in zip(plan.files, pool.map(is_there, plan.files), strict=True) if not found]
    if gone:
        raise _gone(run, ", ".join(gone[:NAMED]) + (", ..." if len(gone) > NAMED else ""))


def _gone(run: RunRef, what: str) -> NotRedone:
    return NotRedone(
        f"The rows that run {run.run_id} exported are gone, or not as they were planned ({run.prefix}/: {what}), "
        "so those without an answer cannot be computed again. The partition stays as it is. Trigger the DAG with "
        "fresh to compute all rows from the source as it is now. To be able to do this later, let the bucket keep the folders "
        "of runs longer (its lifecycle)."
    )


def left_rows(
    store: ObjectStore, run: RunRef, plan: Plan, manifest: RunManifest, keys: Sequence[str] = ()
) -> Iterator[tuple[int, pa.Table]]:
    """The chunks of a run in which a row has no answer, each with these rows, in order: columns.ORDINAL and `keys`.

    plan, manifest: of the run; it is sealed, or closed. Raises NotRedone for a chunk that is not the one that was sealed, and
    for input files that are gone; StoreUnavailable.
    """
    committed = {entry.chunk: entry for entry in manifest.chunks}
    reader = InputReader(store, run, plan, tuple(keys))
    for chunk in range(plan.chunk_count):
        entry = committed.get(chunk)
        if entry is None:
            yield chunk, _planned_rows(reader, run, plan, chunk, keys)
        elif entry.dead_letters:
            table = _sealed_chunk(store, run, entry, keys)
            yield chunk, decoded(table.filter(pc.is_valid(table.column(columns.DEAD_REASON))).select([columns.ORDINAL, *keys]))


def _planned_rows(reader: InputReader, run: RunRef, plan: Plan, chunk: int, keys: Sequence[str]) -> pa.Table:
    """All rows of a chunk that was not committed."""
    span = plan.chunk_range(chunk)
    ordinals = pa.arange(span.start, span.stop)
    if not keys:
        return pa.table({columns.ORDINAL: ordinals})
    try:
        return reader.read(chunk).add_column(0, columns.ORDINAL, ordinals)
    except (InputChanged, InputBroken) as error:
        raise _gone(run, str(error)) from error


def night_keys(store: ObjectStore, run: RunRef, keys: Sequence[str]) -> Iterator[pa.Array]:
    """The keys of all rows of a run, as `key_bytes`. Raises NotRedone, StoreUnavailable."""
    plan = load_plan(store, run)
    if plan is None:
        raise _gone(run, "plan.json")
    reader = InputReader(store, run, plan, tuple(keys))
    for chunk in range(plan.chunk_count):
        yield key_bytes(_planned_rows(reader, run, plan, chunk, keys), keys)


def key_bytes(table: pa.Table, keys: Sequence[str]) -> pa.Array:
    """Each row's key as one binary value: two rows have the same one if and only if their keys are equal. NULL is a value."""
    parts = []
    table = decoded(table.select(list(keys)))
    for name in keys:
        column = table.column(name).combine_chunks()
        text = column if pa.types.is_binary(column.type) else column.cast(pa.string()).cast(pa.binary())
        # Its length before each value: else ("a", "bc") would be ("ab", "c").
        length = pc.binary_length(text).cast(pa.string()).cast(pa.binary())
        parts.append(pc.fill_null(pc.binary_join_element_wise(length, text, b":"), b"-"))
    return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, b",")


def _sealed_chunk(store: ObjectStore, run: RunRef, entry: SealedChunk, keys: Sequence[str] = ()) -> pa.Table:
    """A chunk of the sealed run, by `nightshift.run.chunks.decode_outcomes`. Raises NotRedone; StoreUnavailable."""
    with reaching(f"read {entry.path}"):
        body = get_bytes(store, entry.path)
    if body is None or hashlib.sha256(body).hexdigest() != entry.sha256:
        raise NotRedone(
            f"{entry.path} was overwritten or deleted after run {run.run_id} was sealed. Nothing was changed. Find out "
            "who may write into the bucket, then trigger the DAG with fresh."
        )
    try:
        return chunks.decode_outcomes(body, keys)[0]
    except chunks.NotAChunk as error:
        raise NotRedone(f"{entry.path}: {error}. Trigger the DAG with fresh.") from error


def widths_of(store: ObjectStore, run: RunRef, manifest: RunManifest) -> dict[int, str]:
    """How many numbers a vector of the sealed run has, with the chunk that shows it; empty for a run without answers.

    The seal has proven that all have the same number, those of the runs that a redo completes included. Raises NotRedone;
    StoreUnavailable.
    """
    entry = next((each for each in manifest.chunks if each.predictions), None)
    if entry is None:
        return {}
    found = pc.unique(_sealed_chunk(store, run, entry).column(chunks.WIDTH)).drop_null().to_pylist()
    return dict.fromkeys(found, entry.path)


def copy_rows(store: ObjectStore, run: RunRef, earlier: RunRef, plan: Plan, manifest: RunManifest) -> None:
    """Writes the input files of the redo `run`: the rows of the earlier run without an answer, in their order.

    earlier, plan, manifest: `load_earlier`. Every column is kept as it was exported, and `ORDINAL` joins them. Safe to
    repeat: a file that exists has the same rows. Memory: one chunk and one row group of the earlier run, and one file.
    Raises NotRedone; StoreUnavailable.
    """
    reader = InputReader(store, earlier, plan, None)
    left = left_rows(store, earlier, plan, manifest)
    write_rows(store, run, (list(_rows(reader, earlier, plan, chunk, table)) for chunk, table in left))


def _rows(reader: InputReader, run: RunRef, plan: Plan, chunk: int, left: pa.Table) -> Iterator[pa.Table]:
    """left: of this chunk, by `left_rows`. Raises NotRedone, StoreUnavailable."""
    ordinals, span = left.column(columns.ORDINAL).combine_chunks(), plan.chunk_range(chunk)
    start = span.start
    for file, number, offsets in plan.locate(span):
        here = ordinals.filter(pc.and_(pc.greater_equal(ordinals, start), pc.less(ordinals, start + len(offsets))))
        if len(here):
            try:
                table = reader.part(file, number, offsets)
            except (InputChanged, InputBroken) as error:
                raise _gone(run, str(error)) from error
            # A redo's own file has the column: of it, only the ordinals in the earlier run are of use.
            table = table.drop_columns([ORDINAL] if ORDINAL in table.column_names else [])
            yield table.take(pc.subtract(here, start)).append_column(ORDINAL, here)
        start += len(offsets)


def write_rows(store: ObjectStore, run: RunRef, rows: Iterable[Sequence[pa.Table]]) -> None:
    """Writes the input files of a redo, each of about `FILE_BYTES`. rows: packed. What comes together stays in one file."""
    files = 0
    waiting: list[pa.Table] = []
    for tables in rows:
        waiting += tables
        if sum(table.nbytes for table in waiting) >= FILE_BYTES:
            _write(store, run, files, waiting)
            files, waiting = files + 1, []
    if waiting:
        _write(store, run, files, waiting)


def load_earlier(store: ObjectStore, run: RunRef, redo: Redo) -> tuple[RunRef, Plan, RunManifest]:
    """The earlier run of the redo `run`, its plan and its manifest, or closing. Raises NotRedone if it is not that run now."""
    earlier = redo.earlier(run)
    plan, manifest = load_plan(store, earlier), load_completed(store, earlier, redo.manifest_digest)
    if plan is None or manifest is None or plan.uid != manifest.plan:
        raise NotRedone(
            f"{earlier.prefix} is not the run any more whose rows without an answer run {run.run_id} computes: it was deleted "
            "or computed again meanwhile. Nothing is published. Trigger the DAG with fresh."
        )
    return earlier, plan, manifest


def _write(store: ObjectStore, run: RunRef, number: int, tables: Sequence[pa.Table]) -> None:
    body = io.BytesIO()
    parts = pieces(pa.concat_tables(tables))
    first = next(parts)
    with pq.ParquetWriter(body, first.schema, compression="zstd", write_page_checksum=True) as writer:
        for part in itertools.chain((first,), parts):
            writer.write_table(part)
    path = run.export_pattern(WRITTEN).replace("*", f"{number:012d}")
    # An earlier try of the task wrote the same rows; the seal compares them.
    with reaching(f"write {path}"), contextlib.suppress(obstore.exceptions.AlreadyExistsError):
        obstore.put(store, path, body.getvalue(), mode="create")


def prove(store: ObjectStore, run: RunRef, keys: Sequence[str], plan: Plan, redo: Redo) -> tuple[CompletedRun, ...]:
    """Proves that the rows of the redo `run` are exactly those that the earlier run has left; returns what it completes.

    keys: names of the key columns. plan: of the redo. Each row has the ordinal and the key that it has in the earlier run. So
    the predictions of both and the dead letters of the redo are all rows of the partition, each once. Raises NotRedone;
    StoreUnavailable.
    """
    earlier, their_plan, manifest = load_earlier(store, run, redo)
    mine = _ordinals_and_keys((each for _, each in _redone(store, run, plan, keys)), ORDINAL, keys)
    if redo.corrected:  # In the order of the query, and few enough.
        mine = iter(sorted(mine))
    left = left_rows(store, earlier, their_plan, manifest, keys)
    theirs = _ordinals_and_keys((each for _, each in left), columns.ORDINAL, keys)
    for number, (one, other) in enumerate(itertools.zip_longest(mine, theirs, fillvalue=(None, None))):
        if one != other:
            differ = f"row {other[0]}" if one[0] != other[0] else f"row {other[0]} with another key"
            raise NotRedone(
                f"Row {number} of run {run.run_id} is row {one[0]} of run {earlier.run_id}, whose next row without an answer "
                f"is {differ}: the rows are not those. Nothing is published. Trigger the DAG with fresh."
            )
    completes = (manifest.as_completed, *manifest.completes)
    found, wanted = (completes[-1].rows, completes[0].left), (redo.rows, plan.rows)
    chain = [each.left for each in completes[1:]]
    if found != wanted or chain != [each.rows for each in completes[:-1]]:
        raise NotRedone(f"The runs that {run.prefix} completes do not add up: {completes}. Trigger the DAG with fresh.")
    return completes


def _redone(store: ObjectStore, run: RunRef, plan: Plan, keys: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
    """The columns `ORDINAL` and `keys` of the redo's planned rows, by chunk."""
    reader = InputReader(store, run, plan, (ORDINAL, *keys))
    for chunk in range(plan.chunk_count):
        try:
            yield chunk, reader.read(chunk)
        except (InputChanged, InputBroken) as error:
            raise NotRedone(
                f"The rows of {run.prefix} are not those that were planned, or do not say which rows they are: {error}. "
                "Nothing is published. Trigger the DAG with fresh."
            ) from error


def _ordinals_and_keys(tables: Iterable[pa.Table], ordinal: str, keys: Sequence[str]) -> Iterator[tuple[int, bytes]]:
    for table in tables:
        yield from zip(table.column(ordinal).to_pylist(), key_bytes(table, keys).to_pylist(), strict=True)
