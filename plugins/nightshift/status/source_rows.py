"""The exported rows that a run computes, by their ordinals: for people who look at some of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from obstore.store import ObjectStore

from nightshift.run.answers.bounded import shown
from nightshift.run.inputs import InputBroken, InputChanged, InputReader
from nightshift.run.names import RunRef
from nightshift.run.parquet_rows import RowGroups
from nightshift.run.plan import Plan
from nightshift.run.redo.redo_rows import ORDINAL
from nightshift.store import ObjectChanged, ObjectFile

COLUMN_BYTES_MOST: Final = 64 << 20
"""Of one column in one row group, as it is encoded: a larger one, such as images, is not read to look at a row."""


@dataclass(frozen=True)
class Row:
    """values: of the columns that were read, in Python's types. problem: why there are none; None if there are."""

    values: Mapping[str, Any]
    problem: str | None = None

    def shown(self) -> dict[str, Any]:
        return {name: shown(value) for name, value in self.values.items()}


class SourceRows:
    """Rows of one run. For one look: not shared between threads."""

    def __init__(self, store: ObjectStore, run: RunRef, plan: Plan) -> None:
        self._store, self._run, self._plan = store, run, plan
        self._columns: tuple[str, ...] | None = None
        self._reader: InputReader | None = None
        self.left_out: tuple[str, ...] = ()
        """Columns that are too large to be read here."""

    def row(self, ordinal: int) -> Row:
        """Raises StoreUnavailable."""
        try:
            reader = self._reader or self._open(ordinal)
            table = reader.rows(range(ordinal, ordinal + 1))
            return Row({name: _value(table.column(name)[0]) for name in table.column_names})
        except (InputChanged, InputBroken, ObjectChanged) as error:
            return Row({}, f"its exported row is gone or not as it was planned: {error}")
        except (pa.ArrowException, OSError) as error:
            return Row({}, f"its exported row cannot be read: {error}")

    def _open(self, ordinal: int) -> InputReader:
        file, number, _ = next(iter(self._plan.locate(range(ordinal, ordinal + 1))))
        groups = RowGroups(ObjectFile(self._store, f"{self._run.prefix}/{file.path}", file.size, file.etag))
        group = groups.metadata.row_group(number)
        sizes: dict[str, int] = {}
        for index in range(group.num_columns):
            leaf = group.column(index)
            name = leaf.path_in_schema.split(".")[0]
            sizes[name] = sizes.get(name, 0) + int(leaf.total_uncompressed_size)
        large = {name for name, size in sizes.items() if size > COLUMN_BYTES_MOST}
        self.left_out = tuple(sorted(large))
        columns = tuple(name for name in groups.schema.names if name not in large and name != ORDINAL)
        self._reader = InputReader(self._store, self._run, self._plan, columns)
        return self._reader


def _value(value: pa.Scalar) -> Any:
    """In Python's types; what Python cannot hold as the text of the error."""
    try:
        return value.as_py()
    except (ValueError, OverflowError, pa.ArrowException) as error:
        return f"<cannot be read: {error}>"
