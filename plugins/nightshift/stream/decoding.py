"""A message's data becomes a row: the columns that templates and the key name."""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Mapping
from datetime import date, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import orjson

from nightshift.spec.stream import MESSAGE_ID, ORDERING_KEY, PUBLISH_TIME, TEXT_COLUMN, Messages
from nightshift.stream.messages import PROBLEM, Message
from nightshift.tasks.base import BadInput

if TYPE_CHECKING:
    from nightshift.spec import StreamSpec

ENCODING: Final = "googclient_schemaencoding"
"""Pub/Sub says with this attribute how a message of a topic with a schema is encoded (its documentation, "Parse messages from a
topic with a schema")."""
REVISION: Final = "googclient_schemarevisionid"
"""And with this one, which revision of the topic's schema it is of (the same page)."""
NAMES_SHOWN: Final = 20
NAME_SHOWN: Final = 40
"""How many names of a message's fields a dead letter tells, and how many characters of each."""

Row = Mapping[str, Any]


class UnknownRevision(Exception):
    """The message is of a revision of its topic's schema that the stream's file does not name.

    Read with another one, its fields may be exchanged without a word. It is not the message's fault, so all of its revision
    wait until the file names it.
    """

    def __init__(self, revision: str) -> None:
        super().__init__(revision)
        self.revision = revision


class Decoder:
    """Reads the messages of one stream. columns: those that its task kind reads. Raises ValueError for a broken Avro schema."""

    def __init__(self, spec: StreamSpec, columns: tuple[str, ...]) -> None:
        self._source = source = spec.source
        self._columns = tuple(dict.fromkeys((*columns, *source.key)))
        schema, keys = (source.avro_schema, source.ordering_keys) if isinstance(source, Messages) else (None, None)
        self._avro = None if schema is None else _AvroReader(schema)
        self._keys = keys

    def row(self, message: Message) -> Row:
        """The message's columns. Raises BadInput, whose message says what is wrong with it; UnknownRevision."""
        if isinstance(self._source, Messages):
            self._check_order(message, self._source)
            values = {**self._data(message), **self._attributes(message, self._source)}
        else:
            values = {**self._of_folder(message)}
        values |= {MESSAGE_ID: message.id, PUBLISH_TIME: message.published, ORDERING_KEY: message.ordering_key}
        optional = self._source.optional
        if missing := [name for name in self._columns if name not in values and name not in optional]:
            raise BadInput(f"the message has no {' and no '.join(map(repr, missing))}; it has {_listed(values)}")
        # Only these: the objects of a few bytes of JSON may take twenty times as many.
        return {name: values.get(name) for name in self._columns}

    def key(self, message: Message, row: Row) -> tuple[str, ...]:
        """What tells its row in the sink from others, as text. Raises BadInput for a value that cannot."""
        if not self._source.key:
            return (message.id,)
        return tuple(_key_text(name, row[name]) for name in self._source.key)

    def _check_order(self, message: Message, source: Messages) -> None:
        if not source.ordering:
            return
        if not message.ordering_key:
            raise BadInput("the message has no ordering key, but the stream answers in order")
        if self._keys is not None and not any(fits(message.ordering_key, each) for each in self._keys):
            raise BadInput(f"the ordering key {message.ordering_key!r} is not among those that the stream allows")

    def _data(self, message: Message) -> Mapping[str, Any]:
        if not message.data:
            raise BadInput("the message is empty")
        match self._source.format:
            case "text":
                return {TEXT_COLUMN: _text(message.data)}
            case "avro":
                assert self._avro is not None
                assert isinstance(self._source, Messages)
                revision = message.attributes.get(REVISION)
                if revision is not None and revision not in self._source.avro_revisions:
                    raise UnknownRevision(revision)
                return self._avro.record(message)
        return _json_object(message.data)

    def _of_folder(self, message: Message) -> Mapping[str, Any]:
        """What a row of a watched folder has: `nightshift.stream.folder_objects` made it."""
        if (problem := message.attributes.get(PROBLEM)) is not None:
            raise BadInput(problem)
        return {TEXT_COLUMN: _text(message.data)} if self._source.format == "text" else _json_object(message.data)

    def _attributes(self, message: Message, source: Messages) -> Mapping[str, str | None]:
        missing = [name for name in source.attributes if name not in (*message.attributes, *source.optional)]
        if missing:
            raise BadInput(f"the message lacks the attribute {' and '.join(map(repr, missing))}")
        # A missing one is NULL even if the data has a field of its name: a column has one meaning in all messages.
        return {name: message.attributes.get(name) for name in source.attributes}


def _json_object(data: bytes) -> Mapping[str, Any]:
    try:
        value = orjson.loads(data)
    except ValueError as error:
        raise BadInput(f"the message is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadInput("the message is JSON, but not an object")
    return value


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadInput(f"the message is not UTF-8 text: {error}") from None


class _AvroReader:
    def __init__(self, schema: str) -> None:
        import fastavro

        try:
            self._schema = fastavro.parse_schema(json.loads(schema))
        except Exception as error:  # fastavro has no common base for what it raises.
            raise ValueError(f"source.avro_schema is not an Avro schema: {error}") from error

    def record(self, message: Message) -> Mapping[str, Any]:
        """The record in the data, in the encoding that the message names. Raises BadInput."""
        import fastavro
        from fastavro.validation import ValidationError, validate

        try:
            if message.attributes.get(ENCODING) == "JSON":
                # fastavro reads one record in each line, and takes NaN and half a surrogate pair.
                line = orjson.dumps(orjson.loads(_text(message.data))).decode()
                (value,) = fastavro.json_reader(io.StringIO(line), self._schema)
                # It reads a number where the schema has text, and the other way round.
                validate(value, self._schema)
            else:
                stream = io.BytesIO(message.data)
                value = fastavro.schemaless_reader(stream, self._schema, None)
                if left := len(message.data) - stream.tell():
                    raise BadInput(f"the message has {left} bytes more than a record of the stream's Avro schema")
        except BadInput:
            raise
        except ValidationError as error:
            said = "; ".join(map(str, error.errors))
            raise BadInput(f"the message is not a record of the stream's Avro schema: {said}") from None
        except Exception as error:  # As above: EOFError, IndexError, ValueError and others, all about this message.
            raise BadInput(f"the message is not a record of the stream's Avro schema: {error!r}") from None
        assert isinstance(value, dict)
        return value


def _key_text(name: str, value: Any) -> str:
    if isinstance(value, str):
        text = value
    elif isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, int | float):
        text = _number_text(name, value)
    elif isinstance(value, date | time):
        text = value.isoformat()
    elif isinstance(value, UUID | Decimal):
        text = str(value)
    else:
        kind = "NULL" if value is None else f"a {type(value).__name__}"
        raise BadInput(f"the key column {name!r} is {kind}; it must be text, a number or a boolean")
    if "\0" in text:
        raise BadInput(f"the key column {name!r} has a NUL character, which PostgreSQL cannot hold")
    return text


def _number_text(name: str, value: float) -> str:
    if not math.isfinite(value):
        raise BadInput(f"the key column {name!r} is not a finite number")
    if isinstance(value, float) and value.is_integer() and abs(value) >= 2**63:
        raise BadInput(f"the key column {name!r} is a number that is too large to be exact; publish it as text")
    return orjson.dumps(value).decode()


def fits(text: str, pattern: str) -> bool:
    """Whether a text is what a pattern allows, in which * stands for any characters. One pass: others choose the text."""
    first, *parts = pattern.split("*")
    if not parts:
        return text == first
    last = parts.pop()
    if not text.startswith(first) or not text.endswith(last) or len(text) < len(first) + len(last):
        return False
    at, end = len(first), len(text) - len(last)
    for part in parts:
        found = text.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def memory_of(row: Row) -> int:
    """Bytes that a row takes, with all that is in it."""
    size, waiting = 0, list(row.values())
    while waiting:
        value = waiting.pop()
        size += sys.getsizeof(value)
        if isinstance(value, dict):
            waiting += value.keys()
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return size


def _listed(values: Mapping[str, Any]) -> str:
    names = list(values)
    shown = [name if len(name) <= NAME_SHOWN else f"{name[:NAME_SHOWN]}..." for name in names[:NAMES_SHOWN]]
    return ", ".join(shown) + (f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else "")
