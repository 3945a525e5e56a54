"""Scores of pairs: ``POST /score`` with two lists of texts of equal length, one number per row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import orjson
from pydantic import Field

from nightshift.fields import section
from nightshift.tasks._request import ListRequest
from nightshift.tasks.base import Answers, Pooling, each_alone, finite, numbered, usage

if TYPE_CHECKING:
    import pyarrow as pa

    from nightshift.tasks.base import RowName


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


class Kind(Pooling):
    """`nightshift.tasks.base.TaskKind` for cross-encoders, and for the similarity of embeddings. A payload is a pair."""

    @property
    def prediction_type(self) -> pa.DataType:
        import pyarrow as pa

        return pa.float32()

    def render(self, row: Mapping[str, Any], name: RowName) -> tuple[str, str]:
        first, second = self._texts
        return first.of(row), second.of(row)

    def chars(self, payload: tuple[str, str]) -> int:
        return len(payload[0]) + len(payload[1])

    def request(self, payloads: Sequence[Any], retry: int) -> tuple[str, bytes]:
        first, second = zip(*payloads, strict=True)
        return "/score", orjson.dumps({**self._options, "text_1": first, "text_2": second})

    def answers(self, reply: Any, payloads: Sequence[Any]) -> Answers:
        items = numbered(reply, "data", len(payloads))
        return Answers(each_alone(items, lambda item: finite(item.get("score"))), *usage(reply))
