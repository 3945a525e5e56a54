"""Rows of Parquet files, without unpacking more of a file than is asked for. Every reader of rows uses it.

A text that many rows repeat is in a file once: 374 KiB can unpack to GiB, and the sizes in a footer are those of what is
encoded. So texts keep their dictionaries (*packed*) until rows are decoded, whose size is known by then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from nightshift.fields.text import n
from nightshift.run.parquet_cost import TEXT_BYTES_MOST, UNPACKED_BYTES_MOST, TooLarge, text_bytes

BATCH_BYTES: Final = 64 << 20
"""Of a row group, packed, that is in memory at once. A smaller group stays there whole, so that any of its rows is at hand."""
VALUE_BYTES: Final = 32
"""The most that a value takes beside what is encoded of its column: a number, or a place in a dictionary."""
GROUP_BYTES_MOST: Final = 512 << 20
"""Of a row group as it is in the file, of the columns that are read: a driver's container has 2 GiB."""
PIECE_BYTES: Final = 64 << 20
"""Of rows that are decoded at once, if they need not be together."""

COMPARED_BYTES: Final = 8 << 20
"""The same of columns that are compared: the seal compares several chunks at once."""


class RowGroups:
    """The row groups of one file. Holds the last batch that was read. columns: names; None: all.

    Raises TooLarge for rows that are too large to be held at once, and what pyarrow and the file raise.
    """

    def __init__(self, file: Any, columns: Sequence[str] | None = None) -> None:
        plain = pq.ParquetFile(file)
        self.metadata: pq.FileMetaData = plain.metadata
        self.schema: pa.Schema = plain.schema_arrow
        self._file = packed(file, plain)
        self._columns = None if columns is None else list(columns)
        self._group = -1
        self._start = 0
        self._batch: pa.Table | None = None
        self._batches: Iterator[pa.RecordBatch] = iter(())

    def rows(self, group: int, offsets: range) -> pa.Table:
        """These rows of a row group, packed. Those that follow the last ones cost least."""
        try:
            return self._rows(group, offsets)
        except BaseException:
            self._group = -1  # What was read half is read again.
            raise

    def _rows(self, group: int, offsets: range) -> pa.Table:
        if group != self._group or offsets.start < self._start:
            self._group, self._start, self._batch = group, 0, None
            self._batches = self._file.iter_batches(self._rows_at_once(group), row_groups=[group], columns=self._columns)
        found: list[pa.Table] = []
        at = offsets.start
        while at < offsets.stop or not found:
            batch = self._holding(at)
            found.append(batch.slice(at - self._start, offsets.stop - at))
            at += len(found[-1])
            if (size := sum(table.nbytes for table in found)) > UNPACKED_BYTES_MOST:
                raise TooLarge(
                    f"{n(at - offsets.start, 'row')} of {n(len(offsets), 'row')} take {size:,} bytes", at - offsets.start
                )
        return pa.concat_tables(found)

    def parts(self) -> Iterator[tuple[int, range]]:
        """All rows, for `rows`: of each row group as many at once as the memory is to hold."""
        for group in range(self.metadata.num_row_groups):
            size, step = self.metadata.row_group(group).num_rows, self._rows_at_once(group)
            yield from ((group, range(start, min(start + step, size))) for start in range(0, size, step))

    def _holding(self, offset: int) -> pa.Table:
        while self._batch is None or self._start + len(self._batch) <= offset:
            self._start += 0 if self._batch is None else len(self._batch)
            self._batch = None  # Both would not be needed.
            batch = next(self._batches, None)
            if batch is None:
                raise pa.ArrowInvalid(f"row group {self._group} has fewer rows than its footer says")
            self._batch = pa.Table.from_batches([batch])
        return self._batch

    def _rows_at_once(self, group: int) -> int:
        rows = self.metadata.row_group(group)
        leaves = map(rows.column, range(rows.num_columns))
        wanted = [leaf for leaf in leaves if self._columns is None or leaf.path_in_schema.split(".")[0] in self._columns]
        size = sum(int(leaf.total_uncompressed_size) + VALUE_BYTES * int(leaf.num_values) for leaf in wanted)
        return max(1, min(int(rows.num_rows), BATCH_BYTES * int(rows.num_rows) // max(1, size)))


def cannot_be_read(metadata: pq.FileMetaData, columns: Sequence[str]) -> str | None:
    """Why no reader would have room for a row group; None if it would. A column is unpacked in parts, and read whole."""
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        leaves = [group.column(each) for each in range(group.num_columns)]
        sizes = {each.path_in_schema: int(each.total_compressed_size) for each in leaves}
        read = {path: size for path, size in sizes.items() if path.split(".")[0] in columns}
        if (size := sum(read.values())) > GROUP_BYTES_MOST:
            largest = max(read, key=lambda path: read[path])
            return f"row group {number} has {size:,} bytes, more than {GROUP_BYTES_MOST:,}: {read[largest]:,} of {largest}"
    return None


def packed(source: Any, file: pq.ParquetFile, but: Sequence[str] = ()) -> pq.ParquetFile:
    """The same file, whose texts keep their dictionaries. source: what it was opened from. but: columns that are decoded."""
    leaves = [file.schema.column(number) for number in range(file.metadata.num_columns)]
    texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY" and leaf.logical_type.type != "DECIMAL"]
    kept = [path for path in texts if path.split(".")[0] not in but]
    return pq.ParquetFile(source, metadata=file.metadata, read_dictionary=kept)


def whole(body: bytes, rows: int | None = None) -> pa.Table:
    """All rows of a small file, decoded. rows: the most that it may have. Raises TooLarge, and what pyarrow raises."""
    groups = RowGroups(pa.BufferReader(body))
    if rows is not None and groups.metadata.num_rows > rows:
        raise TooLarge(f"it has {n(groups.metadata.num_rows, 'row')}, more than {rows:,}", rows)
    parts = [groups.rows(number, offsets) for number, offsets in groups.parts()]
    return decoded(pa.concat_tables(parts)) if parts else groups.schema.empty_table()


def check(table: pa.Table, most: int = TEXT_BYTES_MOST) -> None:
    """Raises TooLarge for a packed table of which a column decodes to more bytes than `most`."""
    for name in table.column_names:
        if (size := text_bytes(table.column(name))) > most:
            fit = max(1, most * len(table) // size)
            raise TooLarge(f"the column {name} has {size:,} bytes in {n(len(table), 'row')}, more than {most:,}", fit)


def decoded(table: pa.Table) -> pa.Table:
    """The same rows with texts instead of dictionaries. Raises TooLarge."""
    check(table)
    types = [plain(field.type) for field in table.schema]
    if types == table.schema.types:
        return table
    fields = [field.with_type(kind) for field, kind in zip(table.schema, types, strict=True)]
    return table.cast(pa.schema(fields, table.schema.metadata))


def pieces(table: pa.Table, most: int = PIECE_BYTES) -> Iterator[pa.Table]:
    """The rows of a packed table, decoded, as many at once as have `most` bytes; one at least. Raises TooLarge."""
    if len(table) > 1 and sum(map(text_bytes, table.columns)) > most:
        half = len(table) // 2
        yield from pieces(table.slice(0, half), most)
        yield from pieces(table.slice(half), most)
    else:
        yield decoded(table)


def plain(kind: pa.DataType) -> pa.DataType:
    """The type of a column once it is decoded."""
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(plain(kind.value_type)))
    if pa.types.is_struct(kind):
        fields = map(kind.field, range(kind.num_fields))
        return pa.struct([field.with_type(plain(field.type)) for field in fields])
    return kind


def other_columns(planned: pa.Table, table: pa.Table) -> list[str]:
    """The columns of the planned rows in which a chunk or partial differs from them. Both may be packed."""
    return [name for name in planned.column_names if not _same(planned.column(name), table.column(name))]


def _same(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    """Whether two columns hold the same values; NaN is one of them."""
    if plain(one.type) != plain(other.type) or len(one) != len(other):
        return False
    parts = pieces(pa.table([one, other], ["one", "other"]), COMPARED_BYTES)
    return all(_equal(part.column("one"), part.column("other")) for part in parts)


def _equal(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    if pa.types.is_floating(one.type):
        nan, others = pc.is_nan(one), pc.is_nan(other)
        return bool(nan.equals(others) and pc.if_else(nan, 0.0, one).equals(pc.if_else(others, 0.0, other)))
    return bool(one.equals(other))
