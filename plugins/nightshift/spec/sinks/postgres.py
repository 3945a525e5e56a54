"""The section of the sink `nightshift.stream.postgres`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar, Final

from pydantic import AfterValidator, Field

from nightshift.fields.mistakes import FieldPath, Finding
from nightshift.fields.section import ColumnName, pattern
from nightshift.fields.values import COLUMN_PATTERN
from nightshift.spec import values
from nightshift.spec.document import Document
from nightshift.spec.sinks.base import DEAD_LETTERS, SinkSection

_SYSTEM: Final = ("tableoid", "xmin", "cmin", "xmax", "cmax", "ctid")
"""Columns that every table has itself (PostgreSQL's documentation, "System Columns")."""

SqlTable = Annotated[str, AfterValidator(values.sql_table), pattern(values.SQL_TABLE_PATTERN)]

NAME_BYTES_MAX: Final = 63
"""Of a column in PostgreSQL, which cuts longer names without a word (its documentation, "Identifiers and Key Words")."""


class TableSink(SinkSection):
    """Where the predictions go: a table of PostgreSQL or AlloyDB."""

    KEY: ClassVar = "table"
    MODULE: ClassVar = "postgres"
    PORTS: ClassVar = (5432, 5433, 6432)
    """PostgreSQL's own; that of AlloyDB's connectors and Auth Proxy; that of poolers, AlloyDB's managed one among them."""

    table: SqlTable = Field(
        description="table or schema.table; created if it does not exist. Dead letters are kept in TABLE_dead_letters.",
        examples=["catalog.package_vectors"],
    )
    column: ColumnName = Field(description="The column that holds the prediction.", examples=["embedding"])
    shared: bool = Field(
        default=False,
        description="Whether this stream may write to a table that is another stream's. It then needs source.key.",
        examples=[True],
    )

    @property
    def place(self) -> str:
        return self.table

    @property
    def dead_letters_table(self) -> str:
        """With its schema, if the table has one."""
        return f"{self.table}{DEAD_LETTERS}"

    @property
    def dead_letters_place(self) -> str:
        return f"the table {self.dead_letters_table}"

    @classmethod
    def check(cls, document: Document, key: Sequence[str]) -> Iterator[Finding]:
        column, table = document.get("sink", "column"), document.get("sink", "table")
        if (
            isinstance(column, str)
            and re.fullmatch(COLUMN_PATTERN, column)
            and (found := cls.unfit(("sink", "column"), column))
        ):
            yield found
        room = NAME_BYTES_MAX - len(DEAD_LETTERS)
        if isinstance(table, str) and room < len(name := table.rpartition(".")[2]) <= NAME_BYTES_MAX:
            problem = f"{name!r} has {len(name)} characters; the table of dead letters adds {DEAD_LETTERS} to it"
            yield Finding(("sink", "table"), problem, f"Write a name of at most {room} characters")
        if document.get("sink", "shared") is True and not key:
            problem = "Without a key the message id is one, and those of two topics may be the same"
            yield Finding(("sink", "shared"), problem, "Write source.key, or a table of its own")

    @classmethod
    def unfit(cls, path: FieldPath, column: str) -> Finding | None:
        if column in _SYSTEM:
            return Finding(path, f"{column!r} is a column that every table in PostgreSQL has itself", "Choose another name")
        if len(column.encode()) <= NAME_BYTES_MAX:
            return None
        problem = f"{column!r} has more than {NAME_BYTES_MAX} characters, the most of a column in PostgreSQL"
        return Finding(path, problem, "Shorten it")
