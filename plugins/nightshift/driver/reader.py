"""Reads a chunk's input rows from the run's Parquet files, one row group at a time."""

from __future__ import annotations

from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
from obstore.store import ObjectStore

from nightshift.run.names import RunRef
from nightshift.run.plan import InputFile, Plan
from nightshift.store import ObjectFile, StoreUnavailable


class InputChanged(ValueError):
    """An input file is not the one that was planned. The ordinals no longer name the same rows, so the run cannot continue."""


class InputReader:
    """Reads chunks of one run. Holds one row group, the last one read, however large the input is.

    Synchronous: the loop calls it in a thread, one call at a time.
    """

    def __init__(self, store: ObjectStore, run: RunRef, plan: Plan, columns: tuple[str, ...]) -> None:
        self._store = store
        self._run = run
        self._plan = plan
        self._columns = list(dict.fromkeys(columns))
        self._file: tuple[str, pq.ParquetFile] | None = None
        self._group: tuple[tuple[str, int], pa.Table] | None = None

    def read(self, chunk: int) -> pa.Table:
        """The planned columns of a chunk's rows, in ordinal order. Raises InputChanged, StoreUnavailable."""
        try:
            parts = [
                self._row_group(file, number).slice(offsets.start, len(offsets))
                for file, number, offsets in self._plan.locate(self._plan.chunk_range(chunk))
            ]
        except (obstore.exceptions.BaseError, OSError) as error:
            raise StoreUnavailable(f"read the input of chunk {chunk}: {error}") from error
        return pa.concat_tables(parts).combine_chunks()

    def _row_group(self, file: InputFile, number: int) -> pa.Table:
        name = (file.path, number)
        if self._group is None or self._group[0] != name:
            self._group = None
            table = self._open(file).read_row_group(number, columns=self._columns)
            self._group = (name, table)
        return self._group[1]

    def _open(self, file: InputFile) -> pq.ParquetFile:
        if self._file is None or self._file[0] != file.path:
            path = f"{self._run.prefix}/{file.path}"
            try:
                meta: dict[str, Any] = dict(obstore.head(self._store, path))
            except FileNotFoundError as error:
                raise InputChanged(f"{path} is gone; input files must stay until the run is published") from error
            if meta["e_tag"] != file.etag or meta["size"] != file.size:
                raise InputChanged(f"{path} was overwritten after it was planned (etag {meta['e_tag']}, planned {file.etag})")
            parquet = pq.ParquetFile(ObjectFile(self._store, path, file.size))
            missing = [name for name in self._columns if name not in parquet.schema_arrow.names]
            if missing:
                raise InputChanged(f"{path} lacks the columns {missing}; it has {parquet.schema_arrow.names}")
            self._file = (file.path, parquet)
        return self._file[1]
