"""The cost of reading a Parquet file, found before anything is unpacked: a file of some KiB can unpack to GiB.

A worker may create any bytes under its prefix, and the digests of a chunk are its own. So before a chunk is decoded, the
headers of its pages are read: they have a page's number of values and unpacked size, which pyarrow trusts. The bounds are far
above what a plan allows (docs/operate/limits.md).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from nightshift.fields.text import n
from nightshift.spec.limits import COLUMN_BYTES_MAX
from nightshift.store import OBJECT_BYTES_MOST

FOOTER_BYTES_MOST: Final = 4 << 20
PAGE_BYTES_MOST: Final = 320 << 20
"""Of a page, unpacked: a row group's answers and one reply of the engine."""
UNPACKED_BYTES_MOST: Final = 1 << 30
"""Of all pages, unpacked. They are unpacked one after another."""
VALUES_MOST: Final = 1 << 26
"""Of one column, those of lists included, unless each takes bytes of its own in the file: a vector's numbers do."""
VALUE_BYTES: Final = 4
TEXT_BYTES_MOST: Final = COLUMN_BYTES_MAX
"""Of one column's texts, each repetition counted."""
COLUMNS_MOST: Final = 2_000
TYPE_DEPTH_MOST: Final = 64
HEAVY_BYTES: Final = 64 << 20
"""A file that unpacks larger is decoded while no other such file is."""

_DATA, _DICTIONARY, _DATA_2 = 0, 2, 3
_ENCODINGS: Final = {0, 2, 3, 8}
"""PLAIN, PLAIN_DICTIONARY, RLE, RLE_DICTIONARY: what pyarrow writes. In others, each value may repeat the one before it."""
_NESTED: Final = 4
"""Structs in structs of a page's header: there are two."""
_heavy = threading.Lock()


class TooLarge(ValueError):
    """The file is larger, or would unpack larger, than any chunk. fit: how many of its rows would not; None if unknown."""

    def __init__(self, problem: str, fit: int | None = None) -> None:
        super().__init__(problem)
        self.fit = fit


def check_footer(size: int) -> None:
    """size: bytes of a file's footer. Raises TooLarge."""
    if size > FOOTER_BYTES_MOST:
        raise TooLarge(f"its footer has {size} bytes, more than {FOOTER_BYTES_MOST}")


def footer_size(body: bytes | memoryview) -> int:
    """Bytes of a Parquet file's footer, including its length (uint32, little endian) and the magic word at the end."""
    return int.from_bytes(body[-8:-4], "little") + 8


def check_own(body: bytes) -> None:
    """What its readers will ask of a chunk, asked before it is stored. Raises TooLarge."""
    if len(body) > OBJECT_BYTES_MOST:
        raise TooLarge(f"it has {len(body):,} bytes, more than {OBJECT_BYTES_MOST:,}")
    check_footer(footer_size(body))
    check(body, pq.ParquetFile(pa.BufferReader(body)))


def check(body: bytes, file: pq.ParquetFile) -> int:
    """How many bytes the file's pages have in all when they are unpacked. Raises TooLarge.

    Raises ValueError for a file that contradicts itself or that nightshift does not write. Reads headers of pages only, and the
    numbers of dictionaries if a column's texts might repeat too often.
    """
    metadata = file.metadata
    if metadata.num_columns > COLUMNS_MOST:
        raise TooLarge(f"it has {n(metadata.num_columns, 'column')}, more than {COLUMNS_MOST}")
    for field in file.schema_arrow:
        _check_type(field.type, TYPE_DEPTH_MOST)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    if sum(group.num_rows for group in groups) != metadata.num_rows:
        raise ValueError("its row groups do not have as many rows as its footer")
    unpacked = 0
    for number in range(metadata.num_columns):
        repeats = file.schema.column(number).max_repetition_level > 0
        values = texts = paid = 0
        for group in groups:
            column = group.column(number)
            if not repeats and column.num_values != group.num_rows:
                raise ValueError(f"{column.path_in_schema} has not one value for each row")
            found = _Pages(body, column)
            paid += found.unpacked
            values += column.num_values
            texts += max(1, found.dictionary) * column.num_values if column.physical_type == "BYTE_ARRAY" else 0
        unpacked += paid
        if values > max(VALUES_MOST, paid // VALUE_BYTES):
            raise TooLarge(f"{groups[0].column(number).path_in_schema} has {values} values, more than {VALUES_MOST}")
        if texts > TEXT_BYTES_MOST:
            _check_texts(body, groups[0].column(number).path_in_schema)
    if unpacked > UNPACKED_BYTES_MOST:
        raise TooLarge(f"its pages unpack to {unpacked} bytes, more than {UNPACKED_BYTES_MOST}")
    return unpacked


@contextmanager
def turn(unpacked: int) -> Iterator[None]:
    """While a file that unpacks to this many bytes is decoded: of large ones, one at a time in this process."""
    if unpacked <= HEAVY_BYTES:
        yield
        return
    with _heavy:
        yield


def _check_type(kind: pa.DataType, depth: int) -> None:
    """The file's own note of its types decides what values become: a list of a fixed size has all its values even where it is
    NULL. Raises ValueError for types that chunks do not have."""
    if depth == 0:
        raise TooLarge(f"its types are nested deeper than {TYPE_DEPTH_MOST}")
    odd = (
        pa.types.is_fixed_size_list(kind)
        or pa.types.is_union(kind)
        or pa.types.is_dictionary(kind)
        or pa.types.is_run_end_encoded(kind)
        or isinstance(kind, pa.BaseExtensionType)
    )
    if odd:
        raise ValueError(f"a chunk has no columns of the type {str(kind)[:100]}")
    for number in range(kind.num_fields):
        _check_type(kind.field(number).type, depth - 1)


class _Pages:
    """The pages of a column in one row group. unpacked: bytes; dictionary: of these, the dictionary's."""

    def __init__(self, body: bytes, column: pq.ColumnChunkMetaData) -> None:
        name = column.path_in_schema
        self.unpacked = self.dictionary = values = 0
        at = column.data_page_offset
        if column.has_dictionary_page and column.dictionary_page_offset is not None:
            at = min(at, column.dictionary_page_offset)
        end = at + column.total_compressed_size
        if not 0 < at <= end <= len(body):
            raise ValueError(f"{name} lies outside of the file")
        while at < end:
            header = _Header(body, at)
            if header.packed < 0 or header.unpacked < 0 or header.values < 0 or header.end + header.packed > end:
                raise ValueError(f"{name} has a page that is larger than its column")
            if header.unpacked > PAGE_BYTES_MOST:
                raise TooLarge(f"{name} has a page of {header.unpacked} bytes, more than {PAGE_BYTES_MOST}")
            if header.encoding not in _ENCODINGS:
                raise ValueError(f"{name} has a page in encoding {header.encoding}")
            self.unpacked += header.unpacked
            if header.kind == _DICTIONARY:
                self.dictionary += header.unpacked
            else:
                values += header.values
            at = header.end + header.packed
        if values != column.num_values:
            raise ValueError(f"{name} has {values} values in its pages, and {column.num_values} by its footer")


class _Header:
    """A page's header (parquet.thrift), which begins at a byte of the file, in Thrift's compact protocol. end: after it."""

    def __init__(self, body: bytes, at: int) -> None:
        self._body = body
        self.end = at
        header = self._struct(_NESTED)
        self.kind = header[1]
        numbers = header.get({_DATA: 5, _DICTIONARY: 7, _DATA_2: 8}.get(self.kind, -1))
        if not isinstance(numbers, dict):
            raise ValueError(f"a page of kind {self.kind}")
        self.unpacked, self.packed = int(header[2]), int(header[3])
        self.values = int(numbers[1])
        self.encoding = numbers[4 if self.kind == _DATA_2 else 2]

    def _byte(self) -> int:
        byte = self._body[self.end]
        self.end += 1
        return byte

    def _number(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("a number of a page's header is too long")

    def _struct(self, depth: int) -> dict[int, Any]:
        """Its whole numbers and structs, by their ids."""
        if depth == 0:
            raise ValueError("a page's header is nested")
        found: dict[int, Any] = {}
        last = 0
        while (head := self._byte()) != 0:
            kind, step = head & 15, head >> 4
            last = last + step if step else self._signed()
            found[last] = self._value(kind, depth)
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (1, 2):
            return kind == 1
        if kind == 3:
            return self._byte()
        if kind in (4, 5, 6):
            return self._signed()
        if kind == 8:
            length = self._number()
            self.end += length
            return None
        if kind == 12:
            return self._struct(depth - 1)
        raise ValueError(f"a page's header has a field of type {kind}")

    def _signed(self) -> int:
        value = self._number()
        return (value >> 1) ^ -(value & 1)


def _check_texts(body: bytes, name: str) -> None:
    """Adds up a column's texts without making them. Raises TooLarge."""
    file = pq.ParquetFile(pa.BufferReader(body), read_dictionary=[name])
    total = 0
    for batch in file.iter_batches(1 << 16, columns=[name]):
        total += sum(map(text_bytes, batch.columns))
        if total > TEXT_BYTES_MOST:
            raise TooLarge(f"{name} has texts of more than {TEXT_BYTES_MOST} bytes")


def text_bytes(array: pa.Array | pa.ChunkedArray) -> int:
    """The bytes of a column once each text stands where its dictionary is pointed to."""
    if isinstance(array, pa.ChunkedArray):
        return sum(map(text_bytes, array.chunks))
    while pa.types.is_list(array.type):
        array = array.flatten()
    if pa.types.is_struct(array.type):
        return sum(map(text_bytes, array.flatten()))
    if pa.types.is_dictionary(array.type):
        lengths = pc.take(pc.binary_length(array.dictionary), array.indices)
        return int(pc.sum(lengths.cast(pa.int64())).as_py() or 0)
    return int(array.nbytes)
