"""Parquet files whose lists are repeated fields, as BigQuery exports an ARRAY.

Source: "Exporting table data", Parquet: an ARRAY becomes a repeated group, and a STRUCT a group. pyarrow and DuckDB only write
the three levels ``f (LIST) { repeated list { element } }``. If neither the list nor its elements may be null, these have the
same definition and repetition levels as ``repeated f``, so their pages are the same bytes. Only the footer is different, and
is written again here. It is a struct in Thrift's compact protocol (apache/parquet-format, src/main/thrift/parquet.thrift).
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, BinaryIO, Final

MAGIC: Final = b"PAR1"
TAIL: Final = struct.Struct("<I4s")

# Thrift's compact types.
TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
# Fields of FileMetaData, SchemaElement, RowGroup, ColumnChunk and ColumnMetaData.
SCHEMA, ROW_GROUPS = 2, 4
REPETITION, NAME, CHILDREN, CONVERTED, LOGICAL = 3, 4, 5, 6, 10
REPEATED: Final = 2
LOGICAL_LIST: Final = 3
CONVERTED_LIST: Final = 3
COLUMNS, METADATA, PATH = 1, 3, 3

Struct = dict[int, tuple[int, Any]]
"""A Thrift struct: type and value of each field. A list is a pair: the type of its elements, and their values."""


def rewrite(file: Path) -> None:
    """Replaces the footer of a Parquet file whose lists are all required, with required elements."""
    with open(file, "r+b") as body:
        start, footer = _footer(body)
        _unwrap(footer)
        written = _struct_bytes(footer)
        body.seek(start)
        body.write(written + TAIL.pack(len(written), MAGIC))
        body.truncate()


def list_columns(file: Path) -> set[str]:
    """The columns of a Parquet file that are annotated as LIST, which a repeated field is not."""
    with open(file, "rb") as body:
        elements = _footer(body)[1][SCHEMA][1][1]
    return {element[NAME][1].decode() for element in elements if _is_list(element)}


def _footer(body: BinaryIO) -> tuple[int, Struct]:
    """Where it begins, and its content."""
    body.seek(-TAIL.size, 2)
    length, _ = TAIL.unpack(body.read())
    start = body.seek(-TAIL.size - length, 2)
    return start, _Reader(body.read(length)).struct()


def _is_list(element: Struct) -> bool:
    return LOGICAL_LIST in element.get(LOGICAL, (STRUCT, {}))[1] or element.get(CONVERTED) == (I32, CONVERTED_LIST)


def _unwrap(footer: Struct) -> None:
    """Leaves out the two inner levels of each list, in the schema and in the paths of the columns."""
    element_type, elements = footer[SCHEMA][1]
    leaves: list[list[bytes]] = []
    kept: list[Struct] = []
    _walk(elements, 0, [], kept, leaves)
    footer[SCHEMA] = (LIST, (element_type, kept))
    for group in footer[ROW_GROUPS][1][1]:
        for column, path in zip(group[COLUMNS][1][1], leaves, strict=True):
            column[METADATA][1][PATH] = (LIST, (BINARY, path))


def _walk(elements: list[Struct], at: int, path: list[bytes], kept: list[Struct], leaves: list[list[bytes]]) -> int:
    """Copies the element at this place and those below it; returns the place of the next one. The root has no name in paths."""
    element = elements[at]
    if _is_list(element):
        name = element[NAME]
        at += 2
        element = elements[at] | {NAME: name, REPETITION: (I32, REPEATED)}
    kept.append(element)
    here = [*path, element[NAME][1]] if at else []
    children = element.get(CHILDREN, (I32, 0))[1]
    if not children and at:
        leaves.append(here)
    at += 1
    for _ in range(children):
        at = _walk(elements, at, here, kept, leaves)
    return at


class _Reader:
    """Reads Thrift's compact protocol."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def struct(self) -> Struct:
        fields: Struct = {}
        number = 0
        while header := self._byte():
            delta, type_ = header >> 4, header & 15
            number = number + delta if delta else _unzigzag(self._varint())
            fields[number] = (type_, self._value(type_) if type_ > FALSE else None)
        return fields

    def _value(self, type_: int) -> Any:
        if type_ in (TRUE, FALSE, BYTE):  # In a list, a boolean takes a byte.
            return self._byte()
        if type_ in (I16, I32, I64):
            return _unzigzag(self._varint())
        if type_ == DOUBLE:
            return self._take(8)
        if type_ == BINARY:
            return self._take(self._varint())
        if type_ == LIST:
            header = self._byte()
            size = header >> 4 if header >> 4 < 15 else self._varint()
            return header & 15, [self._value(header & 15) for _ in range(size)]
        if type_ == STRUCT:
            return self.struct()
        raise ValueError(f"a Parquet footer has no field of Thrift's type {type_}")

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _take(self, size: int) -> bytes:
        self._at += size
        return self._data[self._at - size : self._at]


def _struct_bytes(fields: Struct) -> bytes:
    written = bytearray()
    last = 0
    for number, (type_, value) in sorted(fields.items()):
        delta = number - last
        written += bytes([delta << 4 | type_]) if delta <= 15 else bytes([type_]) + _varint(_zigzag(number))
        if type_ > FALSE:
            written += _value_bytes(type_, value)
        last = number
    return bytes(written) + b"\0"


def _value_bytes(type_: int, value: Any) -> bytes:
    if type_ in (TRUE, FALSE, BYTE):
        return bytes([value])
    if type_ in (I16, I32, I64):
        return _varint(_zigzag(value))
    if type_ == DOUBLE:
        return bytes(value)
    if type_ == BINARY:
        return _varint(len(value)) + bytes(value)
    if type_ == LIST:
        inner, values = value
        header = bytes([len(values) << 4 | inner]) if len(values) < 15 else bytes([0xF0 | inner]) + _varint(len(values))
        return header + b"".join(_value_bytes(inner, item) for item in values)
    return _struct_bytes(value)


def _varint(value: int) -> bytes:
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    return bytes(written) + bytes([value])


def _zigzag(value: int) -> int:
    return value * 2 if value >= 0 else -value * 2 - 1


def _unzigzag(value: int) -> int:
    return value >> 1 ^ -(value & 1)
