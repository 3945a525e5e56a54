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

from nightshift.fields import section
from nightshift.tasks._request import INPUT, ListRequest
from nightshift.tasks.base import Answer, Answers, InvalidReply, Pooling, Spoiled, WrongModel, each_alone, numbered, usage

if TYPE_CHECKING:
    import pyarrow as pa

    from nightshift.tasks.base import Job


VECTOR_MOST: Final = 4096
"""Numbers in a vector, for planning, if the job does not state it: few models have more."""
VECTOR_BYTES_LEAST: Final = 512
"""Of a row with a short vector: what Python needs for the row is more than the numbers."""


class Request(ListRequest):
    """What the model is asked for a row of an embedding job."""

    TEMPLATES: ClassVar = ("input",)
    ONE_WIDTH: ClassVar = True
    SIZED_BY: ClassVar = "dimensions"

    input: section.Text = Field(description=INPUT, examples=["{{ summary }} {{ description }}"])
    dimensions: int | None = Field(
        default=None,
        ge=1,
        le=16_384,
        description="How many numbers a vector of this model has. Chunks are planned with it, and another number ends the run.",
        examples=[384],
    )

    @classmethod
    def answer_bytes(cls, values: Mapping[str, Any]) -> int:
        numbers = values.get("dimensions")
        return max(VECTOR_BYTES_LEAST, 4 * (numbers if isinstance(numbers, int) and numbers > 0 else VECTOR_MOST))


class Kind(Pooling):
    """`nightshift.tasks.base.TaskKind` for embedding models."""

    def __init__(self, job: Job, request: Request) -> None:
        super().__init__(job, request, encoding_format="base64")
        self._widths: Counter[int] = Counter()
        self._dimensions = request.dimensions
        self._width = request.dimensions or 0

    @property
    def prediction_type(self) -> pa.DataType:
        import pyarrow as pa

        return pa.list_(pa.float32())

    def request(self, payloads: Sequence[Any], retry: int) -> tuple[str, bytes]:
        return "/v1/embeddings", orjson.dumps({**self._options, "input": list(payloads)})

    def answers(self, reply: Any, payloads: Sequence[Any]) -> Answers:
        rows = each_alone(numbered(reply, "data", len(payloads)), _vector)
        self._learn_width([len(row.prediction) for row in rows if isinstance(row, Answer)])
        return Answers(each_alone(rows, self._of_width), *usage(reply))

    def _learn_width(self, widths: Sequence[int]) -> None:
        """One model gives vectors of one width: the one that the job states, else that of most which this attempt has seen.

        Not of the first one: if that was the odd one, every good row would be blamed for it. `nightshift.run.seal` proves it
        of the whole run.
        """
        self._widths.update(widths)
        if self._dimensions is not None and not self._widths[self._dimensions]:
            width, stated = widths[0], self._dimensions
            raise WrongModel(
                f"the model's vectors have {width:,} numbers, but request.dimensions says {stated:,}. Write {width} there. If "
                "a Matryoshka model is to make shorter vectors, tell the engine so with "
                f"engine.args: {{pooler-config: '{{\"dimensions\": {stated}}}'}}"
            )
        (most, count), *others = self._widths.most_common(2)
        if self._dimensions is None and count > self._widths[self._width]:
            self._width = most
        if self._dimensions is None and len(set(widths)) > 1 and others and others[0][1] == count:
            raise InvalidReply(f"embeddings of {most} and of {others[0][0]} numbers, equally many: one model made all")

    def _of_width(self, row: Answer | Spoiled) -> array[float]:
        if isinstance(row, Spoiled):
            raise InvalidReply(row.message)
        vector: array[float] = row.prediction
        if len(vector) != self._width:
            raise InvalidReply(f"an embedding of {len(vector)} numbers, though one model made all, and most have {self._width}")
        return vector


def _vector(item: Mapping[str, Any]) -> array[float]:
    try:
        raw = base64.b64decode(item["embedding"], validate=True)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidReply(f"not an embedding: {error!r}") from error
    if not raw or len(raw) % 4:
        raise InvalidReply(f"an embedding of {len(raw)} bytes is not a list of float32")
    vector = array("f", raw)
    if sys.byteorder == "big":
        vector.byteswap()
    if not math.isfinite(sum(vector)):
        raise InvalidReply("the embedding has a value that is not a finite number")
    return vector
