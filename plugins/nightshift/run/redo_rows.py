"""The rows of a redo (`nightshift.run.redo`): found, copied from the earlier run's files, and proven to be the right ones."""

from __future__ import annotations

import hashlib
import io
import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import obstore
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from obstore.store import ObjectStore

from nightshift.run import chunks
from nightshift.run.manifest import CompletedRun, RunManifest, SealedChunk
from nightshift.run.names import RunRef
from nightshift.run.plan import InputFile, Plan
from nightshift.run.redo import NotRedone, Redo
from nightshift.spec import columns
from nightshift.store import ObjectChanged, ObjectFile, StoreUnavailable, get_bytes

ORDINAL: Final = "nightshift_redo_ordinal"
"""The column of a redo's input files with the ordinal that the row has in the earlier run."""
FILE_BYTES: Final = 64 << 20
"""How large an input file of a redo gets, in memory; one chunk's rows are never split."""
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

    try:
        with ThreadPoolExecutor(READERS) as pool:
            gone = [file.path for file, found in zip(plan.files, pool.map(is_there, plan.files), strict=True) if not found]
    except (obstore.exceptions.BaseError, OSError) as error:
        raise StoreUnavailable(f"look at the inputs of {run.prefix}: {error}") from error
    if gone:
        raise _gone(run, ", ".join(gone[:NAMED]) + (", ..." if len(gone) > NAMED else ""))


def _gone(run: RunRef, what: str) -> NotRedone:
    return NotRedone(
        f"The rows that run {run.run_id} exported are gone, or not as they were planned ({run.prefix}/: {what}), "
        "so its dead letters cannot be computed again from the same rows. The partition stays as it is. Trigger the DAG with "
        "fresh to compute all rows from the source as it is now. To be able to do this later, let the bucket keep the folders "
        "of runs longer (its lifecycle)."
    )


def dead_ordinals(store: ObjectStore, run: RunRef, manifest: RunManifest) -> Iterator[tuple[int, pa.Array]]:
    """The chunks of a sealed run that have dead letters, each with their ordinals (int64), in order.

    Raises NotRedone for a chunk that is not the one that was sealed; StoreUnavailable.
    """
    for entry in manifest.chunks:
        if not entry.dead_letters:
            continue
        table = _sealed_chunk(store, run, entry)
        dead = table.filter(pc.is_valid(table.column(columns.DEAD_REASON)))
        yield entry.chunk, dead.column(columns.ORDINAL).combine_chunks()


def _sealed_chunk(store: ObjectStore, run: RunRef, entry: SealedChunk) -> pa.Table:
    """A chunk of the sealed run, by `nightshift.run.chunks.decode_outcomes`. Raises NotRedone; StoreUnavailable."""
    try:
        body = get_bytes(store, entry.path)
    except (obstore.exceptions.BaseError, OSError) as error:
        raise StoreUnavailable(f"read {entry.path}: {error}") from error
    if body is None or hashlib.sha256(body).hexdigest() != entry.sha256:
        raise NotRedone(
            f"{entry.path} was overwritten or deleted after run {run.run_id} was sealed. Nothing was changed. Find out "
            "who may write into the bucket, then trigger the DAG with fresh."
        )
    return chunks.decode_outcomes(body)[0]


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
    """Writes the input files of the redo `run`: the rows of the earlier run that are dead letters, in their order.

    plan, manifest: of the earlier run. Every column is kept as it was exported, and `ORDINAL` joins them. Safe to repeat: a
    file that exists has the same rows. Memory: one chunk and one row group of the earlier run, and one file. Raises NotRedone;
    StoreUnavailable.
    """
    rows = _Rows(store, earlier, plan)
    files = 0
    waiting: list[pa.Table] = []
    for chunk, ordinals in dead_ordinals(store, earlier, manifest):
        waiting += rows.of(chunk, ordinals)
        if sum(table.nbytes for table in waiting) >= FILE_BYTES:
            _write(store, run, files, waiting)
            files, waiting = files + 1, []
    if waiting:
        _write(store, run, files, waiting)


def _write(store: ObjectStore, run: RunRef, number: int, tables: Sequence[pa.Table]) -> None:
    body = io.BytesIO()
    pq.write_table(pa.concat_tables(tables), body, compression="zstd", write_page_checksum=True)
    path = run.export_pattern(1).replace("*", f"{number:012d}")
    try:
        obstore.put(store, path, body.getvalue(), mode="create")
    except obstore.exceptions.AlreadyExistsError:
        return  # An earlier try of the task wrote the same rows; the seal compares them.
    except (obstore.exceptions.BaseError, OSError) as error:
        raise StoreUnavailable(f"write {path}: {error}") from error


class _Rows:
    """Rows of a planned run by their ordinals. Holds the row group that was read last."""

    def __init__(self, store: ObjectStore, run: RunRef, plan: Plan) -> None:
        self._store = store
        self._run = run
        self._plan = plan
        self._group: tuple[tuple[str, int], pa.Table] | None = None

    def of(self, chunk: int, ordinals: pa.Array) -> Iterator[pa.Table]:
        """ordinals: of this chunk, ascending. Raises NotRedone, StoreUnavailable."""
        span = self._plan.chunk_range(chunk)
        start = span.start
        for file, number, offsets in self._plan.locate(span):
            here = ordinals.filter(pc.and_(pc.greater_equal(ordinals, start), pc.less(ordinals, start + len(offsets))))
            if len(here):
                rows = self._row_group(file, number).take(pc.add(pc.subtract(here, start), offsets.start))
                yield rows.append_column(ORDINAL, here)
            start += len(offsets)

    def _row_group(self, file: InputFile, number: int) -> pa.Table:
        name = (file.path, number)
        if self._group is None or self._group[0] != name:
            self._group = None
            try:
                parquet = pq.ParquetFile(ObjectFile(self._store, f"{self._run.prefix}/{file.path}", file.size, file.etag))
                table = parquet.read_row_group(number)
            except (ObjectChanged, pa.ArrowException, OSError) as error:  # OSError: not readable Parquet
                raise _gone(self._run, f"{file.path}: {error}") from error
            # A redo's own file has the column: of it, only the ordinals in the earlier run are of use.
            kept = [each for each in table.column_names if each != ORDINAL]
            self._group = (name, table.select(kept).replace_schema_metadata(None))
        return self._group[1]


def prove(store: ObjectStore, run: RunRef, plan: Plan, redo: Redo, manifest: RunManifest | None) -> tuple[CompletedRun, ...]:
    """Proves that the rows of the redo `run` are exactly the dead letters of the earlier run; returns what it completes.

    plan: of the redo. manifest: of the earlier run. So the predictions of both and the dead letters of the redo are all rows of
    the partition, each once. Raises NotRedone; StoreUnavailable.
    """
    earlier = redo.earlier(run)
    if manifest is None or manifest.digest != redo.manifest_digest:
        raise NotRedone(
            f"{earlier.manifest_path} is not the one whose dead letters run {run.run_id} computes again: that run was deleted "
            "or computed again meanwhile. Nothing is published. Trigger the DAG with fresh."
        )
    dead = (ordinal for _, found in dead_ordinals(store, earlier, manifest) for ordinal in found.to_pylist())
    for number, (mine, theirs) in enumerate(itertools.zip_longest(_ordinals(store, run, plan), dead)):
        if mine != theirs:
            raise NotRedone(
                f"Row {number} of run {run.run_id} is row {mine} of run {earlier.run_id}, where its next dead letter is row "
                f"{theirs}: the rows are not that run's dead letters. Nothing is published. Trigger the DAG with fresh."
            )
    completes = (manifest.as_completed, *manifest.completes)
    found, wanted = (completes[-1].rows, completes[0].dead_letters), (redo.rows, plan.rows)
    chain = [each.dead_letters for each in completes[1:]]
    if found != wanted or chain != [each.rows for each in completes[:-1]]:
        raise NotRedone(f"The runs that {run.prefix} completes do not add up: {completes}. Trigger the DAG with fresh.")
    return completes


def _ordinals(store: ObjectStore, run: RunRef, plan: Plan) -> Iterator[int]:
    """The column `ORDINAL` of the redo's planned rows."""
    for file in plan.files:
        try:
            parquet = pq.ParquetFile(ObjectFile(store, f"{run.prefix}/{file.path}", file.size, file.etag))
            for batch in parquet.iter_batches(columns=[ORDINAL]):
                yield from batch.column(0).to_pylist()
        except (ObjectChanged, pa.ArrowException, OSError, IndexError) as error:
            raise NotRedone(
                f"{run.prefix}/{file.path} is not the file that was planned, or does not say which rows it holds: {error}. "
                "Nothing is published. Trigger the DAG with fresh."
            ) from error
