"""A chunk's input rows, read from the run's Parquet files with the types that the query declared.

A file may show less than the query declared: BigQuery exports TIMESTAMP like DATETIME, without UTC. What the driver renders and
writes must not depend on how a file was written, so columns of scalar types get one Arrow type each.
"""

from __future__ import annotations

from typing import Final

import obstore
import pyarrow as pa
from obstore.store import ObjectStore

from nightshift.run.names import RunRef
from nightshift.run.parquet_cost import TooLarge
from nightshift.run.parquet_rows import RowGroups, decoded, plain
from nightshift.run.plan import InputFile, Plan
from nightshift.store import ObjectChanged, ObjectFile, reaching

DECLARED: Final = {
    "BIGNUMERIC": pa.decimal256(76, 38),
    "BOOL": pa.bool_(),
    "BYTES": pa.binary(),
    "DATE": pa.date32(),
    "DATETIME": pa.timestamp("us"),
    "FLOAT64": pa.float64(),
    "INT64": pa.int64(),
    "JSON": pa.string(),
    "NUMERIC": pa.decimal128(38, 9),
    "STRING": pa.string(),
    "TIME": pa.time64("us"),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
}
"""The Arrow type of each GoogleSQL type that is not nested."""


class InputChanged(ValueError):
    """An input file is not the one that was planned. The ordinals no longer name the same rows, so the run cannot continue."""


class InputBroken(ValueError):
    """An input file is the one that was planned, but cannot be read as Parquet."""


def missing_files(store: ObjectStore, run: RunRef, plan: Plan) -> list[str]:
    """The planned files that are not there, or not as large as they were, by their paths in the run's folder; from one LIST.

    Raises StoreUnavailable.
    """
    with reaching(f"list {run.inputs_folder}"):
        found = {meta["path"]: meta["size"] for page in obstore.list(store, run.inputs_folder) for meta in page}
    return [file.path for file in plan.files if found.get(f"{run.prefix}/{file.path}") != file.size]


class InputReader:
    """Reads chunks of one run. Holds a part of the row group that was read last (`nightshift.run.parquet_rows`).

    columns: None for all, typed as in the files. packed: texts keep their dictionaries, so that a chunk may be of any size.
    Synchronous: call it in a thread, one call at a time.
    """

    def __init__(
        self, store: ObjectStore, run: RunRef, plan: Plan, columns: tuple[str, ...] | None, *, packed: bool = False
    ) -> None:
        self._packed = packed
        self._store = store
        self._run = run
        self._plan = plan
        self._columns = None if columns is None else list(dict.fromkeys(columns))
        self._types = plan.source.columns if plan.source else {}
        self._file: tuple[str, RowGroups] | None = None

    def read(self, chunk: int) -> pa.Table:
        """The planned columns of a chunk's rows, in ordinal order, typed as in the plan's source.

        Raises InputChanged, InputBroken, StoreUnavailable.
        """
        return self.rows(self._plan.chunk_range(chunk))

    def rows(self, ordinals: range) -> pa.Table:
        """As `read`, of any ordinals of the plan."""
        parts = [self.part(file, number, offsets) for file, number, offsets in self._plan.locate(ordinals)]
        table = pa.concat_tables(parts)
        if self._packed:
            return table
        try:
            return decoded(table).combine_chunks()
        except TooLarge as error:
            raise _too_large(error) from error

    def part(self, file: InputFile, number: int, offsets: range) -> pa.Table:
        """These rows of a row group, packed. Raises as `read`."""
        path = f"{self._run.prefix}/{file.path}"
        try:
            return self._typed(self._open(file, path).rows(number, offsets))
        except ObjectChanged as error:
            raise InputChanged(f"{path} was overwritten or deleted after it was planned; {_STAY}") from error
        except MemoryError:
            raise
        except TooLarge as error:
            raise _too_large(error) from error
        except (pa.ArrowException, OSError) as error:  # The store's own errors come under names of their own.
            raise InputBroken(
                f"{path} is the file that was planned, but not readable Parquet: {error}. Trigger the DAG with fresh"
            ) from error

    def _typed(self, table: pa.Table) -> pa.Table:
        """Packed texts stay packed. Raises ArrowInvalid for a value that the declared type does not have."""
        if self._columns is None:
            return table.replace_schema_metadata(None)
        types = {field.name: (field.type, DECLARED.get(self._types.get(field.name, ""))) for field in table.schema}
        kinds = {name: found if wanted in (None, plain(found)) else wanted for name, (found, wanted) in types.items()}
        return table.cast(pa.schema(kinds))

    def _open(self, file: InputFile, path: str) -> RowGroups:
        if self._file is None or self._file[0] != file.path:
            self._file = None
            # Every read asks for the planned version, the first one included.
            groups = RowGroups(ObjectFile(self._store, path, file.size, file.etag), self._columns)
            missing = [name for name in self._columns or () if name not in groups.schema.names]
            if missing:
                raise InputChanged(f"{path} lacks the columns {missing}; it has {groups.schema.names}")
            self._file = (file.path, groups)
        return self._file[1]


def _too_large(error: TooLarge) -> InputBroken:
    return InputBroken(f"the rows of a chunk cannot be read: {error}. Set chunk_rows lower, and trigger the DAG with fresh")


_STAY: Final = (
    "input files must stay as they are until the run is published. Trigger the DAG with fresh to compute the partition again"
)
