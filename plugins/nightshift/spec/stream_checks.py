"""Checks across values of a stream: whether key, templates and sink fit the messages and each other.

Like `nightshift.spec.job_checks` they work on the document, so a mistake elsewhere hides none of these.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from nightshift.fields.mistakes import FieldPath, Finding
from nightshift.fields.text import n
from nightshift.fields.values import COLUMN_PATTERN, DURATION_PATTERN, MOMENT_PATTERN, duration_seconds, moment_seconds
from nightshift.spec.document import Document
from nightshift.spec.engine_checks import engine
from nightshift.spec.request_checks import Columns, request
from nightshift.spec.sinks import sink_model
from nightshift.spec.stream import MESSAGE_COLUMNS, TEXT_COLUMN, Latency, Watched, source_model


def check(document: Document) -> Iterator[Finding]:
    """Every mistake between values. Values of a wrong type are skipped: the model reports them."""
    columns = _columns(document)
    if not _watched(document):
        yield from _avro(document)
        yield from _attributes(document)
    yield from _key(document, columns)
    yield from request(document, columns)
    yield from _ordering(document)
    yield from sink_model(document.get("sink")).check(document, _texts(document.get("source", "key")))
    yield from _latency(document)
    yield from engine(document)
    yield from _scaling(document)


def _columns(document: Document) -> Columns | None:
    """What templates and the key may name; None if only a message shows that."""
    match document.get("source", "format"):
        case "text":
            data: tuple[str, ...] | None = (TEXT_COLUMN,)
        case "avro" if not _watched(document):
            data = _avro_fields(document)
        case _:
            data = None
    if data is None:
        return None
    names = tuple(dict.fromkeys((*data, *_texts(document.get("source", "attributes")), *MESSAGE_COLUMNS)))
    if _watched(document):
        return Columns(names, "the row", "A row has", "Choose another format if an object has other columns")
    return Columns(names, "the message", "A message has", "List it under source.attributes if it is an attribute")


def _watched(document: Document) -> bool:
    return source_model(document.get("source")) is Watched


def _avro_fields(document: Document) -> tuple[str, ...] | None:
    """The names of the record's fields; None if the schema is not a record."""
    schema = document.get("source", "avro_schema")
    fields = schema.get("fields") if isinstance(schema, dict) and schema.get("type") == "record" else None
    if not isinstance(fields, list) or not all(isinstance(each, dict) and isinstance(each.get("name"), str) for each in fields):
        return None
    return tuple(each["name"] for each in fields)


def _avro(document: Document) -> Iterator[Finding]:
    path: FieldPath = ("source", "avro_schema")
    schema, avro = document.get(*path), document.get("source", "format") == "avro"
    if avro and schema is None:
        yield Finding(
            ("source", "format"), "Avro messages cannot be read without their schema", "Write it as source.avro_schema"
        )
    elif schema is not None and not avro:
        yield Finding(path, "Only messages in Avro have a schema here", "Remove it, or write format: avro")
    if document.get("source", "avro_revisions") and not avro:
        problem = "Only messages in Avro are read by a schema, so other messages of any revision can be read"
        yield Finding(("source", "avro_revisions"), problem, "Remove it, or write format: avro")
    if avro and isinstance(schema, dict) and _avro_fields(document) is None:
        remedy = "Write type: record, a name, and fields with names and types"
        yield Finding(path, "The schema is not a record with named fields", remedy)


def _attributes(document: Document) -> Iterator[Finding]:
    names = _texts(document.get("source", "attributes"))
    taken = {
        *MESSAGE_COLUMNS,
        *((TEXT_COLUMN,) if document.get("source", "format") == "text" else _avro_fields(document) or ()),
    }
    for index, name in enumerate(names):
        path: FieldPath = ("source", "attributes", index)
        if name in names[:index]:
            yield Finding(path, f"The attribute {name!r} is named twice", "Name each attribute once")
        elif name in taken:
            yield Finding(
                path, f"{name!r} is already a column of every message", "Leave it out, or publish it under another name"
            )


def _key(document: Document, columns: Columns | None) -> Iterator[Finding]:
    sink, prediction = sink_model(document.get("sink")), document.get("sink", "column")
    names = _texts(document.get("source", "key"))
    for index, name in enumerate(names):
        path: FieldPath = ("source", "key", index)
        if not re.fullmatch(COLUMN_PATTERN, name):
            continue  # the model says so
        if name in names[:index]:
            yield Finding(path, f"The column {name!r} is named twice", "Name each key column once")
        elif name in _texts(document.get("source", "optional")):
            yield Finding(
                path, f"A message may lack {name!r}, but without its key it has no row", "Remove it from one of the two lists"
            )
        elif unfit := sink.unfit(path, name):
            yield unfit
        elif columns is not None:
            yield from columns.lacking(path, "The key", name)
        if name == prediction:
            remedy = "Give the predictions another column name, for example embedding"
            yield Finding(("sink", "column"), f"{name!r} is already a key column", remedy)


def _ordering(document: Document) -> Iterator[Finding]:
    unordered = sink_model(document.get("sink")).UNORDERED
    if document.get("source", "ordering") is True and unordered and not _watched(document):
        problem = f"{unordered}, so there is nothing to gain from answering messages one after the other"
        yield Finding(("source", "ordering"), problem, "Leave ordering out: of one key, the newest message counts in any case")
    if document.get("source", "ordering_keys") is not None and document.get("source", "ordering") is not True:
        problem = "ordering_keys says which ordering keys may occur, but messages are not answered in order"
        yield Finding(("source", "ordering_keys"), problem, "Write ordering: true, or leave ordering_keys out")


def _latency(document: Document) -> Iterator[Finding]:
    target, flush = document.get("latency", "target"), document.get("latency", "flush")
    if not isinstance(target, str) or not re.fullmatch(DURATION_PATTERN, target):
        return  # the model says so
    if isinstance(flush, str) and re.fullmatch(MOMENT_PATTERN, flush) and moment_seconds(flush) >= duration_seconds(target):
        problem = f"A message that waits {flush} for others is not answered within {target}"
        yield Finding(("latency", "flush"), problem, "Write a smaller flush, or a larger target")
    listed = document.get("source", "every")
    if isinstance(listed, str) and re.fullmatch(MOMENT_PATTERN, listed) and moment_seconds(listed) >= duration_seconds(target):
        problem = f"A folder that is listed every {listed} has rows that are not answered within {target}"
        yield Finding(("source", "every"), problem, "Write a smaller source.every, or a larger target")
    waiting = sink_model(document.get("sink")).model_fields.get("every")
    every = document.get("sink", "every") or (waiting and waiting.default)
    if not isinstance(every, str) or not re.fullmatch(MOMENT_PATTERN, every):
        return
    waits = flush if isinstance(flush, str) and re.fullmatch(MOMENT_PATTERN, flush) else Latency.model_fields["flush"].default
    if moment_seconds(waits) < duration_seconds(target) <= moment_seconds(waits) + moment_seconds(every):
        problem = f"A row that waits {waits} for its request and {every} for its file is not there within {target}"
        yield Finding(("sink", "every"), problem, "Write a smaller sink.every, or a larger target")


def _scaling(document: Document) -> Iterator[Finding]:
    for who in ("subscribers", "servers"):
        least, most = (_count(document.get("scaling", who, end)) for end in ("min", "max"))
        if least is not None and most is not None and least > most:
            problem = f"The fewest {who}, {least}, are more than the most, {most}"
            yield Finding(("scaling", who, "min"), problem, f"Write {most} or less, or raise scaling.{who}.max")
    servers, each = (_count(document.get("scaling", *path)) for path in (("servers", "max"), ("subscribers_per_server",)))
    if servers is None:
        return  # the model says so
    answered = servers * (each or 1)
    end = "min" if document.get("scaling", "subscribers", "max") is None else "max"
    count = _count(document.get("scaling", "subscribers", end))
    if count is not None and count > answered:
        keep = "keep" if servers > 1 else "keeps"
        problem = f"{n(servers, 'server')} {keep} {n(answered, 'subscriber')} busy, not {count}: the others would only wait"
        remedy = f"Write {answered} or less, or raise scaling.servers.max if the quota allows it"
        yield Finding(("scaling", "subscribers", end), problem, remedy)


def _count(value: Any) -> int | None:
    """A whole number of at least 0; None for what the model refuses."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _texts(value: Any) -> tuple[str, ...]:
    """Those items of a list that are text."""
    return tuple(each for each in value if isinstance(each, str)) if isinstance(value, list) else ()
