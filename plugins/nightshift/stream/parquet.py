"""The Parquet form of a stream's outcomes, whose columns are those of `nightshift.spec.stream_files`. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from nightshift.formats import STREAM_FILE
from nightshift.run.chunks import prediction_array, to_parquet
from nightshift.run.names import canonical_json
from nightshift.spec import StreamSpec, stream_files
from nightshift.spec.columns import REASONING
from nightshift.stream.messages import Answered, Dead, Outcome
from nightshift.stream.ports import Unwritable

METADATA_KEY: Final = b"nightshift.stream"
DIGITS: Final = 32
"""Hexadecimal, of a file's name."""


class Format:
    """Of one stream's files. model: for provenance."""

    def __init__(self, spec: StreamSpec, prediction: pa.DataType, model: str) -> None:
        metadata = {METADATA_KEY: json.dumps({**STREAM_FILE.stamp(), "stream": spec.job, "model": model}).encode()}
        self._keys = spec.source.key
        self._column = spec.sink.column
        self._prediction = prediction
        self._model = model
        self._reasoning = spec.request.keeps_reasoning
        answers = stream_files.answer_schema(self._keys, self._column, prediction, reasoning=self._reasoning)
        self._answers = answers.with_metadata(metadata)
        self._dead = stream_files.dead_schema(self._keys).with_metadata(metadata)
        self._job, self._task = spec.job, spec.task
        self._identity = [spec.job, model, self._column, *self._keys, *((REASONING,) if self._reasoning else ())]

    @property
    def description(self) -> bytes:
        """What all files of the folder have in common, as JSON: whose they are, and what decides their columns."""
        said = {"stream": self._job, "task": self._task, "key": self._keys, "column": self._column}
        return canonical_json({**said, REASONING: True} if self._reasoning else said)

    def name(self, kind: str, outcomes: Sequence[Outcome]) -> str:
        """The file's path below the stream's folder. All messages were published in the same hour.

        It follows from which messages they are: to write them again is to write the same file, which is there already.
        """
        said = [kind, self._identity, sorted(each.message.id for each in outcomes)]
        digest = hashlib.sha256(canonical_json(said)).hexdigest()[:DIGITS]
        return f"{stream_files.folder(kind, outcomes[0].message.published)}/{digest}{stream_files.SUFFIX}"

    def answers(self, answered: Sequence[Answered], now: datetime) -> bytes:
        """A file of answers. Raises Unwritable if one of them does not fit the column."""
        try:
            predictions = prediction_array([each.prediction for each in answered], self._prediction)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise Unwritable(f"the prediction does not fit the column {self._column} ({self._prediction}): {error}") from error
        keys = zip(*(each.key for each in answered), strict=True) if self._keys else ()
        columns = [
            *keys,
            predictions,
            *([[each.reasoning for each in answered]] if self._reasoning else ()),
            [each.message.id for each in answered],
            [each.message.published for each in answered],
            [self._model] * len(answered),
            [each.tries for each in answered],
            [now] * len(answered),
        ]
        return _file(self._answers, columns)

    def dead(self, dead: Sequence[Dead], now: datetime) -> bytes:
        """A file of dead letters. Half a surrogate pair, which UTF-8 cannot have, is replaced."""
        keys: list[list[str | None]] = [
            [None if each.key is None else _utf8(each.key[place]) for each in dead] for place in range(len(self._keys))
        ]
        columns = [
            [each.message.id for each in dead],
            [each.message.published for each in dead],
            [each.message.ordering_key for each in dead],
            [json.dumps(dict(each.message.attributes)) for each in dead],
            [each.message.data for each in dead],
            [each.reason for each in dead],
            [_utf8(each.text) for each in dead],
            [each.status for each in dead],
            [each.tries for each in dead],
            [self._model] * len(dead),
            [now] * len(dead),
            *keys,
        ]
        return _file(self._dead, columns)


def _file(schema: pa.Schema, columns: Sequence[Any]) -> bytes:
    arrays = [
        column if isinstance(column, pa.Array) else _array(column, field) for column, field in zip(columns, schema, strict=True)
    ]
    return to_parquet(schema, [pa.Table.from_arrays(arrays, schema=schema)])


def _array(values: Sequence[Any], field: pa.Field) -> pa.Array:
    try:
        return pa.array(list(values), field.type)
    except UnicodeEncodeError as error:
        raise Unwritable(f'a value of the column "{field.name}" has half a surrogate pair, which UTF-8 cannot have') from error


def _utf8(text: str) -> str:
    return text.encode(errors="replace").decode()
