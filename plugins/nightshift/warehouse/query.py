"""The source query of a job: checked by a dry run, and safely wrapped into other statements."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from nightshift.fields.mistakes import nearest
from nightshift.warehouse.errors import WarehouseError
from nightshift.warehouse.schema import CARRIED_TYPES, ORDINAL_COLUMN, RUN_ID_COLUMN, scalar_parameters, sql_type

if TYPE_CHECKING:
    from google.cloud.bigquery import ScalarQueryParameter, SchemaField

    from nightshift.spec import JobSpec

_UNLIKE: Final = re.compile(r"No matching signature for operator \S+ for argument types: (\w+), (\w+)")
_NOT_IN_PARQUET: Final = re.compile(r"`[^`]*`|\b(INTERVAL|RANGE)\b")
"""A quoted name within a type, or a type that BigQuery does not export to Parquet."""


def bare_query(sql: str) -> str:
    """The query without semicolons and comments after its end. Raises WarehouseError for more than one statement."""
    from nightshift.spec import lexer, one_select

    try:
        statement = one_select.one_statement(lexer.words(sql))
    except lexer.Unclosed as error:
        raise WarehouseError(
            f"source.query cannot be read as SQL: {error}. Close the quote or comment that it names."
        ) from None
    except one_select.BadQuery as error:
        where = f", the second in line {error.line}" if error.line else ""
        raise WarehouseError(f"source.query: {error.problem}{where}. {error.remedy}.") from None
    return sql[: statement[-1].end]


def parameters(spec: JobSpec, partition: str) -> list[ScalarQueryParameter]:
    """@partition: the day; or of a job with periods, the start of its period, and @partition_end. partition: its name."""
    from nightshift.spec.periods import END, PARAMETER, bounds

    if spec.every is None:
        return scalar_parameters((PARAMETER, "DATE", partition))
    start, end = (moment.isoformat() for moment in bounds(partition, spec.every))
    return scalar_parameters((PARAMETER, "TIMESTAMP", start), (END, "TIMESTAMP", end))


@contextmanager
def hinted(spec: JobSpec) -> Iterator[None]:
    """Adds to BigQuery's words what to write instead, for the most common mistake: @partition compared with another type."""
    try:
        yield
    except WarehouseError as error:
        own, other = ("DATE", "TIMESTAMP") if spec.every is None else ("TIMESTAMP", "DATE")
        found = _UNLIKE.search(str(error))
        types = set(found.groups()) if found else set()
        if own not in types or len(types) == 1:
            raise
        (column,) = types - {own}
        instead = f"{own}(column)" if column == other else f"CAST(column AS {own})"
        raise WarehouseError(
            f"{error} @partition is a {own}: with a {column} column, write {instead} = @partition and the like."
        ) from error


def plain_export(spec: JobSpec, bucket: str, pattern: str) -> str:
    """``EXPORT DATA`` of the query to the files of an export attempt (`nightshift.run.names.RunRef.export_pattern`).

    Nothing is sorted, unless the query itself does it: the plan fixes whatever order the files have. In an order of ours:
    `nightshift.warehouse.ordered`.
    """
    return export_statement(bucket, pattern, bare_query(spec.source.query))


def export_statement(bucket: str, pattern: str, query: str) -> str:
    """``EXPORT DATA`` of one SELECT. pattern: a path in the bucket, with one ``*``."""
    options = f"uri='gs://{bucket}/{pattern}', format='PARQUET', compression='SNAPPY', overwrite=true"
    return f"EXPORT DATA OPTIONS ({options}) AS\n{query}"


def count_statement(spec: JobSpec) -> str:
    return f"SELECT COUNT(*) FROM (\n{bare_query(spec.source.query)}\n)"


def sample_statement(spec: JobSpec, columns: Iterable[str], rows: int) -> str:
    """Some of the query's rows, whichever come first, with the columns that the request reads.

    A LIMIT costs as much as the whole query does, and is used for any query: TABLESAMPLE takes only tables.
    """
    names = ", ".join(f"`{name}`" for name in columns)
    return f"SELECT {names} FROM (\n{bare_query(spec.source.query)}\n) LIMIT {rows}"


ROW: Final = "nightshift_row"
"""The name of a whole row in `some_rows_statement`."""


def some_rows_statement(spec: JobSpec, rows: int) -> str:
    """How many rows the query has, and some of them, whole, in one statement that reads what the query reads, once.

    Always the same ones as long as the table stays: those whose keys have the smallest fingerprints. An aggregate with a LIMIT
    keeps no more rows than these at any place.
    """
    keys = ", ".join(f"{ROW}.`{name}`" for name in spec.source.key)
    order = f"FARM_FINGERPRINT(TO_JSON_STRING(STRUCT({keys})))"
    return (
        f"SELECT COUNT(*) AS total, ARRAY_AGG({ROW} ORDER BY {order} LIMIT {rows}) AS sampled\n"
        f"FROM (\n{bare_query(spec.source.query)}\n) AS {ROW}"
    )


def check_columns(spec: JobSpec, fields: Iterable[SchemaField]) -> dict[str, str]:
    """The query's columns and their GoogleSQL types. Raises WarehouseError if the query lacks something that the job needs."""
    from nightshift.tasks import base

    columns = {field.name: sql_type(field) for field in fields}
    _check_exportable(columns)
    carried = [("source.key", spec.source.key), ("source.pass_through", spec.source.pass_through)]
    read = [(f"request.{field}", names) for field, names in base.read_columns(spec.request)]
    ordered = [("source.order", spec.source.order)] if isinstance(spec.source.order, tuple) else []
    for place, names in (*carried, *ordered, *read):
        for name in names:
            if name not in columns:
                raise WarehouseError(
                    f"{place} names the column {name}, which source.query does not return{_near(name, columns)} "
                    f"It returns {', '.join(columns)}. Add {name} to the query or correct {place}."
                )
    _check_request_types(spec, columns)
    for place, names in carried:
        for name in names:
            _check_carried(place, name, columns[name])
    for name in ordered[0][1] if ordered else ():
        if columns[name] == "GEOGRAPHY":
            raise WarehouseError(
                f"source.order names the column {name} of type GEOGRAPHY, which has no order. Add ST_ASTEXT({name}) to the "
                "query as a column of its own, and name that one."
            )
    _check_names(spec)
    return columns


def _check_carried(place: str, name: str, kind: str) -> None:
    if kind in CARRIED_TYPES:
        return
    text = "ST_ASTEXT" if kind == "GEOGRAPHY" else "TO_JSON_STRING"
    raise WarehouseError(
        f"{place} names the column {name} of type {kind}, which cannot be copied to the destination. Write in the query: "
        f"{text}({name}) AS {name}. Columns of {place} have one of the types {', '.join(sorted(CARRIED_TYPES))}."
    )


def _check_exportable(columns: Mapping[str, str]) -> None:
    for name, type_ in columns.items():
        refused = next(filter(None, _NOT_IN_PARQUET.findall(type_)), None)
        if refused:
            raise WarehouseError(
                f"source.query returns the column {name} of type {type_}, and BigQuery does not export {refused} to Parquet. "
                "Leave the column out of the query, or cast it to STRING there."
            )


def _check_request_types(spec: JobSpec, columns: Mapping[str, str]) -> None:
    """A column that a request uses directly must have a type that the task can send; templates take any."""
    for field, types in spec.request.COLUMNS.items():
        name = getattr(spec.request, field)
        if name is not None and not columns[name].startswith(types):
            raise WarehouseError(
                f"request.{field} names the column {name} of type {columns[name]}; it takes {' or '.join(types)}. "
                "Name another column, or cast this one in the query."
            )


def _check_names(spec: JobSpec) -> None:
    """No two columns of the staging table or of the destination may have one name."""
    from nightshift.spec.columns import REASONING, with_carried

    carried = {name.lower() for name in spec.source.carried}
    kept = (REASONING,) if spec.request.keeps_reasoning else ()
    for name in sorted(carried & set(with_carried((), reasoning=spec.request.keeps_reasoning))):
        raise WarehouseError(
            f"source.key and source.pass_through may not have a column {name}: nightshift writes one of that name itself. "
            "Rename it in the query with AS."
        )
    destination = spec.destination
    written = [*spec.source.carried, destination.column, destination.partition_column, *kept, RUN_ID_COLUMN, ORDINAL_COLUMN]
    lowered = [name.lower() for name in written]
    for place, name in zip(written, lowered, strict=True):
        if lowered.count(name) > 1:
            raise WarehouseError(
                f"The destination would have two columns called {place}: source.key, source.pass_through, destination.column, "
                f"destination.partition_column, {', '.join((*kept, RUN_ID_COLUMN))} and {ORDINAL_COLUMN} need different names. "
                "Rename the column with AS in the query, or change the destination."
            )


def _near(name: str, columns: Iterable[str]) -> str:
    near = nearest(name, columns)
    return f" (did you mean {near}?)." if near else "."
