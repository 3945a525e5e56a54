"""Scores of pairs: ``POST /score`` with two lists of texts of equal length, one number per row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import orjson
from pydantic import Field

from nightshift.fields import section
from nightshift.tasks._request import ListRequest, truncation
from nightshift.tasks.base import Answers, Text, each_alone, finite, numbered, union, usage

if TYPE_CHECKING:
    import pyarrow as pa

    from nightshift.tasks.base import Job, RowName


class Request(ListRequest):
    """What the model is asked for a row of a score job."""

    TEMPLATES: ClassVar = ("text_1", "text_2")
    PAIRS: ClassVar = True

    text_1: section.Text = Field(
        description="Jinja2 template: the first text of the pair; for a cross-encoder, the query.", examples=["{{ query }}"]
    )
    text_2: section.Text = Field(
        description="Jinja2 template: the second text of the pair.", examples=["{{ title }} {{ body }}"]
    )


class Kind:
    """`nightshift.tasks.base.TaskKind` for cross-encoders, and for the similarity of embeddings. A payload is a pair."""

    server_args = ("--runner=pooling",)

    def __init__(self, job: Job, request: Request) -> None:
        self._first, self._second = Text(request.text_1, job.rendering), Text(request.text_2, job.rendering)
        self.columns = union(self._first.columns, self._second.columns)
        self.rows_per_request, self.chars_per_request = job.rows_per_request, request.chars_per_request
        self._options = {"model": job.model.name, **truncation(request)}

    @property
    def prediction_type(self) -> pa.DataType:
        import pyarrow as pa

        return pa.float32()

    def render(self, row: Mapping[str, Any], name: RowName) -> tuple[str, str]:
        return self._first.of(row), self._second.of(row)

    def chars(self, payload: tuple[str, str]) -> int:
        return len(payload[0]) + len(payload[1])

    def request(self, payloads: Sequence[Any], retry: int) -> tuple[str, bytes]:
        first, second = zip(*payloads, strict=True)
        return "/score", orjson.dumps({**self._options, "text_1": first, "text_2": second})

    def answers(self, reply: Any, payloads: Sequence[Any]) -> Answers:
        items = numbered(reply, "data", len(payloads))
        return Answers(each_alone(items, lambda item: finite(item.get("score"))), *usage(reply))
