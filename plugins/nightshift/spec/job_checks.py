"""Checks across values of a job: whether key, template and destination fit the query and each other.

They work on the document, not on the model, so a mistake elsewhere hides none of these.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any, Final, get_args

from pydantic_core import PydanticCustomError

from nightshift.fields.mistakes import FieldPath, Finding
from nightshift.fields.values import COLUMN_PATTERN, DURATION_PATTERN, duration_seconds
from nightshift.profiles import START_UP_SECONDS, WORK_SECONDS_MIN
from nightshift.spec import cron, notify, one_select, values
from nightshift.spec.columns import CHUNK_COLUMNS
from nightshift.spec.document import Document
from nightshift.spec.engine_checks import engine
from nightshift.spec.limits import CHUNK_ANSWER_BYTES_MAX, chunk_rows_most
from nightshift.spec.periods import Every
from nightshift.spec.request_checks import Columns, is_text, request
from nightshift.spec.tables import may_be, projects_unknown
from nightshift.tasks import TASK_KINDS, request_model

FIRST_DAY: Final = date(1960, 1, 1)
LAST_DAY: Final = date(2159, 12, 31)
"""Of BigQuery's partitions ("Introduction to partitioned tables")."""


AIRFLOW_MOST: Final[Mapping[FieldPath, int]] = {
    ("owner",): 250,
    ("description",): 10_000,
    ("tags",): 50,
    ("destination", "table"): 1_400,
}
"""Characters, or items of a list. An asset's name has 1,500 at most, the project included."""


def check(document: Document) -> Iterator[Finding]:
    """Every mistake between values. Values of a wrong type are skipped: the model reports them."""
    columns: tuple[str, ...] | None = None
    has = ""
    query = document.get("source", "query")
    if is_text(query):
        from nightshift.spec import sql

        path: FieldPath = ("source", "query")
        try:
            statement = sql.parse(query)
        except sql.BadQuery as error:
            yield _query_finding(document, error)
        else:
            wrong = sql.parameters(statement, periods=document.get("every") is not None)
            yield from (_query_finding(document, error) for error in wrong)
            columns = sql.columns(statement)
            yield from _repeated(path, columns or ())
            yield from _sorted_twice(document, statement)
            yield from _reads_destination(document, sql.tables(statement))
            has = f"{sql.unnamed(statement)}The query returns"
    known = Columns(columns, "the query", has, "Add it to the query") if columns is not None else None
    yield from _carried(document, known)
    yield from _ordered(document, known)
    yield from request(document, known)
    yield from _chunk(document)
    yield from _periods(document)
    yield from _watched(document)
    yield from _destination(document)
    yield from _deadline(document)
    yield from notify.check(document)
    yield from _days(document)
    yield from engine(document)
    yield from _airflows(document)


def _query_finding(document: Document, error: Any) -> Finding:
    path: FieldPath = ("source", "query")
    line = document.line_within(path, error.line) if error.line else None
    return Finding(path, error.problem, error.remedy, line)


def _repeated(path: FieldPath, columns: tuple[str, ...]) -> Iterator[Finding]:
    times = Counter(column.casefold() for column in columns)
    for column in {name.casefold(): name for name in columns if times[name.casefold()] > 1}.values():
        yield Finding(path, f"The query returns the column {column!r} more than once", "Rename one with AS, or leave it out")


def _names(document: Document, place: str) -> list[tuple[int, str]]:
    """The valid column names of a list in ``source``, by their places; the model reports the others."""
    value = document.get("source", place)
    listed = enumerate(value if isinstance(value, list) else ())
    return [(n, name) for n, name in listed if isinstance(name, str) and re.fullmatch(COLUMN_PATTERN, name)]


def _ordered(document: Document, columns: Columns | None) -> Iterator[Finding]:
    for index, column in _names(document, "order"):
        if columns is not None:
            yield from columns.lacking(("source", "order", index), "The order", column)


def _sorted_twice(document: Document, statement: Any) -> Iterator[Finding]:
    if isinstance(document.get("source", "order"), list) and one_select.is_sorted(statement.words):
        problem = "The query has an ORDER BY of its own, and the rows have one order"
        yield Finding(("source", "order"), problem, "Leave one of the two out")


def _carried(document: Document, columns: Columns | None) -> Iterator[Finding]:
    """The query's columns that the destination gets, too."""
    yield from _copied(document, "key", "The key", columns)
    yield from _copied(document, "pass_through", "The list", columns)
    keys = {name.casefold() for _, name in _names(document, "key")}
    for index, column in _names(document, "pass_through"):
        if column.casefold() in keys:
            problem = f"{column!r} is a key column, and those are copied anyway"
            yield Finding(("source", "pass_through", index), problem, "Leave it out here")


def _copied(document: Document, place: str, user: str, columns: Columns | None) -> Iterator[Finding]:
    for index, column in _names(document, place):
        path: FieldPath = ("source", place, index)
        if column.casefold() in CHUNK_COLUMNS:
            yield Finding(
                path,
                f"{column!r} is a column that nightshift writes itself",
                f"Rename it in the query: {column} AS row_{column}",
            )
        if columns is not None:
            yield from columns.lacking(path, user, column)


def _chunk(document: Document) -> Iterator[Finding]:
    """Whether the answers of a chunk fit a worker's memory."""
    rows, task, values = document.get("chunk_rows"), document.get("task"), document.get("request")
    if not isinstance(rows, int) or not isinstance(task, str) or task not in TASK_KINDS or not isinstance(values, dict):
        return
    request = request_model(task)
    most = chunk_rows_most(request, values)
    if rows > most:
        size = f"{request.answer_bytes(values):,} bytes"
        problem = (
            f"{rows:,} answers of up to {size} each are more than the {CHUNK_ANSWER_BYTES_MAX >> 20} MiB that a chunk may have"
        )
        smaller = f". If answers are smaller, say so with request.{request.SIZED_BY}" if request.SIZED_BY else ""
        yield Finding(("chunk_rows",), problem, f"Write {most} or less, or leave chunk_rows out: then it is planned{smaller}")


def _days(document: Document) -> Iterator[Finding]:
    """Whether the schedule names days, and the first one is one that Airflow and BigQuery know."""
    schedule, first = document.get("schedule"), document.get("start_date")
    with contextlib.suppress(PydanticCustomError):  # The model reports it.
        if isinstance(schedule, str) and (found := cron.seldom(cron.schedule(schedule)) or cron.often(schedule)):
            yield Finding(("schedule",), *found)
    try:
        day = values.day(first)
    except PydanticCustomError:
        return
    if not FIRST_DAY <= day <= LAST_DAY:
        problem = f"BigQuery has no partition of {day.isoformat()}"
        yield Finding(("start_date",), problem, f"Write a day from {FIRST_DAY.isoformat()} to {LAST_DAY.isoformat()}")


def _airflows(document: Document) -> Iterator[Finding]:
    """What Airflow stores in columns of their own: if one value does not fit, it loses all DAGs of their file."""
    for name, most in AIRFLOW_MOST.items():
        value = document.get(*name)
        if isinstance(value, str | list) and len(value) > most:
            unit = "characters" if isinstance(value, str) else "items"
            yield Finding(name, f"It has {len(value):,} {unit}, and Airflow takes {most:,}", "Shorten it")


def _periods(document: Document) -> Iterator[Finding]:
    """What a job with periods shorter than a day needs."""
    if document.get("every") is None:
        return
    if document.get("schedule") is not None:
        remedy = "Leave one of the two out: a period's run begins when the period is over"
        yield Finding(("every",), "The job has a schedule, too, and both say when it runs", remedy)
    if document.get("destination", "partition_column") is None:
        yield Finding(
            ("destination", "partition_column"),
            "The key is missing: a job with periods has no default for it",
            "Name the TIMESTAMP column that says the start of the period, for example partition_column: period_start",
        )


def _watched(document: Document) -> Iterator[Finding]:
    """What a job needs whose periods come from files."""
    every, watch, settle = document.get("every"), document.get("source", "watch"), document.get("source", "settle")
    if watch is not None and every is None:
        problem = "Files start the runs of periods, and the job has none"
        yield Finding(
            ("source", "watch"), problem, "Add every, for example every: 10m, instead of schedule; or leave watch out"
        )
    if settle is None:
        return
    path: FieldPath = ("source", "settle")
    if watch is None:
        yield Finding(path, "There is no folder that is watched", "Add source.watch, gs://BUCKET/FOLDER; or leave settle out")
    elif (
        every in get_args(Every)
        and isinstance(settle, str)
        and re.fullmatch(DURATION_PATTERN, settle)
        and duration_seconds(settle) > duration_seconds(every)
    ):
        problem = f"The wait for objects would be longer than a period: {settle} is more than {every}"
        yield Finding(path, problem, f"Write {every} or less, or longer periods")


def _destination(document: Document) -> Iterator[Finding]:
    column = document.get("destination", "column")
    partition = document.get("destination", "partition_column")
    place = "partition_column"
    if partition is None:
        place, partition = "column", values.PARTITION_COLUMN
    if not isinstance(partition, str):
        return
    keys = {name.casefold() for _, name in _names(document, "key")}
    passed = {name.casefold(): index for index, name in _names(document, "pass_through")}
    for name, what in ((column, "the predictions"), (partition, "the date of the run")):
        if isinstance(name, str) and (index := passed.get(name.casefold())) is not None:
            problem = f"{name!r} would hold both this column and {what}"
            yield Finding(
                ("source", "pass_through", index), problem, f"Rename it in the query: {name} AS source_{name}; or leave it out"
            )
    if isinstance(column, str):
        if column.casefold() == partition.casefold():
            yield Finding(
                ("destination", place),
                f"{partition!r} would hold both the predictions and the date",
                "Give one of the two columns another name",
            )
        if column.casefold() in keys:
            remedy = "Give the predictions another column name, for example embedding"
            yield Finding(("destination", "column"), f"{column!r} is already a key column", remedy)
    if partition.casefold() in keys:
        remedy = "Leave it out of source.key, or give destination.partition_column another name"
        yield Finding(
            ("destination", place),
            f"{partition!r} is already a key column, but publishing adds it for the date of the run",
            remedy,
        )


def _reads_destination(document: Document, sources: tuple[str, ...]) -> Iterator[Finding]:
    """The query must not read what publishing replaces: a second night, or a repeated one, would find other rows."""
    path: FieldPath = ("destination", "table")
    table = document.get(*path)
    same = next((name for name in sources if may_be(name, table)), None) if is_text(table) else None
    if same is None:
        return
    problem = f"The query reads {same}, and publishing replaces a partition of {table}"
    if projects_unknown(same, table):
        remedy = "Write another table, or if they are in different projects, write the project in both names"
        yield Finding(path, f"{problem}, which may be the same table", remedy)
    else:
        yield Finding(path, problem, "Write another table; it is created if it does not exist")


def _deadline(document: Document) -> Iterator[Finding]:
    value = document.get("deadline")
    if not isinstance(value, str) or not re.fullmatch(DURATION_PATTERN, value):
        return  # the model reports it
    least = START_UP_SECONDS + WORK_SECONDS_MIN
    if 0 < duration_seconds(value) < least:
        problem = f"Within {value} no rows are answered: a worker may take {START_UP_SECONDS / 60:.0f} min to start"
        yield Finding(("deadline",), f"{problem} (node, image, weights)", f"Write {least / 60:.0f}m or more, for example 1h")
