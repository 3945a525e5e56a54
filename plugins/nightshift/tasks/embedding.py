"""Embeddings: ``POST /v1/embeddings`` with a list of texts, one vector per row.

The vectors are base64-encoded (little-endian float32, OpenAI's ``encoding_format``), which takes a quarter of the bytes and
parsing of decimal numbers.
"""

from __future__ import annotations

import base64
import math
import sys
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

import orjson
from pydantic import Field

from nightshift.fields import parts
from nightshift.tasks._request import INPUT, ListRequest, truncation
from nightshift.tasks.base import Answer, Answers, InvalidReply, Text, numbered, usage

if TYPE_CHECKING:
    import pyarrow as pa

    from nightshift.tasks.base import Job, RowName


VECTOR_MOST: Final = 4096
"""Numbers in a vector, for planning: only the model knows how many there are, and few have more."""


class Request(ListRequest):
    """What the model is asked for a row of an embedding job."""

    TEMPLATES: ClassVar = ("input",)
    ONE_WIDTH: ClassVar = True

    input: parts.Text = Field(description=INPUT, examples=["{{ summary }} {{ description }}"])

    @classmethod
    def answer_bytes(cls, values: Mapping[str, Any]) -> int:
        return 4 * VECTOR_MOST


class Embedding:
    """`nightshift.tasks.base.TaskKind` for embedding models."""

    server_args = ("--runner", "pooling")

    def __init__(self, job: Job, request: Request) -> None:
        self._text = Text(request.input)
        self.columns = self._text.columns
        self.rows_per_request, self.chars_per_request = job.rows_per_request, request.chars_per_request
        self._options = {"model": job.model.name, "encoding_format": "base64", **truncation(request)}
        self._widths: Counter[int] = Counter()
        self._width = 0

    @property
    def prediction_type(self) -> pa.DataType:
        import pyarrow as pa

        return pa.list_(pa.float32())

    def render(self, row: Mapping[str, Any], name: RowName) -> str:
        return self._text.of(row)

    def chars(self, payload: str) -> int:
        return len(payload)

    def request(self, payloads: Sequence[Any], retry: int) -> tuple[str, bytes]:
        return "/v1/embeddings", orjson.dumps({**self._options, "input": list(payloads)})

    def answers(self, reply: Any, payloads: Sequence[Any]) -> Answers:
        items = numbered(reply, "data", len(payloads))
        try:
            vectors = [_vector(item["embedding"]) for item in items]
        except InvalidReply:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidReply(f"not an embedding: {error!r}") from error
        self._check_width(vectors)
        return Answers(list(map(Answer, vectors)), *usage(reply))

    def _check_width(self, vectors: Sequence[array[float]]) -> None:
        """One model gives vectors of one width: what differs from most of those that this attempt has seen is no answer.

        Not from the first one: if that was the odd one, every good row would be blamed for it. `nightshift.run.seal` proves it
        of the whole run.
        """
        self._widths.update(map(len, vectors))
        most, count = self._widths.most_common(1)[0]
        if count > self._widths[self._width]:
            self._width = most
        if other := {len(vector) for vector in vectors} - {self._width}:
            raise InvalidReply(f"an embedding of {min(other)} numbers, though one model made all, and most have {self._width}")


def _vector(encoded: str) -> array[float]:
    raw = base64.b64decode(encoded, validate=True)
    if not raw or len(raw) % 4:
        raise InvalidReply(f"an embedding of {len(raw)} bytes is not a list of float32")
    vector = array("f", raw)
    if sys.byteorder == "big":
        vector.byteswap()
    if not math.isfinite(sum(vector)):
        raise InvalidReply("the embedding has a value that is not a finite number")
    return vector


def make(job: Job) -> Embedding:
    assert isinstance(job.request, Request)
    return Embedding(job, job.request)
