"""Embeddings: ``POST /v1/embeddings`` with a list of texts, one vector a row.

The vectors come base64-encoded (little-endian float32, OpenAI's ``encoding_format``): a quarter of the bytes and of the
parsing that decimal numbers would take.
"""

from __future__ import annotations

import base64
import math
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nightshift.tasks.base import Answer, InvalidReply, compile_template, render_text

if TYPE_CHECKING:
    import pyarrow as pa

    from nightshift.spec import JobSpec


class Embedding:
    """`nightshift.tasks.base.TaskKind` for embedding models."""

    endpoint = "/v1/embeddings"
    server_args = ("--runner", "pooling")

    def __init__(self, spec: JobSpec) -> None:
        self._template, self.columns = compile_template(spec.request.input)
        self.rows_per_request = spec.request.rows_per_request
        self._model = spec.model.name
        # -1: vLLM cuts at the model's own length. Absent: it refuses an overlong input with 400.
        self._options = {"truncate_prompt_tokens": -1} if spec.request.overlong == "truncate" else {}

    @property
    def prediction_type(self) -> pa.DataType:
        import pyarrow as pa

        return pa.list_(pa.float32())

    def render(self, row: Mapping[str, Any]) -> str:
        return render_text(self._template, self.columns, row)

    def body(self, payloads: Sequence[Any]) -> dict[str, Any]:
        return {"model": self._model, "input": list(payloads), "encoding_format": "base64", **self._options}

    def answers(self, reply: Mapping[str, Any], count: int) -> list[Answer]:
        data = reply.get("data")
        if not isinstance(data, list) or len(data) != count:
            raise InvalidReply(f"asked for {count} embeddings, got {len(data) if isinstance(data, list) else 'none'}")
        try:
            ordered = sorted(data, key=lambda item: int(item["index"]))
            if [item["index"] for item in ordered] != list(range(count)):
                raise InvalidReply("the embeddings are not numbered 0, 1, 2, ...")
            return [Answer(_vector(item["embedding"])) for item in ordered]
        except InvalidReply:
            raise
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InvalidReply(f"not an embeddings reply: {error!r}") from error


def _vector(encoded: str) -> array[float]:
    raw = base64.b64decode(encoded, validate=True)
    if not raw or len(raw) % 4:
        raise InvalidReply(f"an embedding of {len(raw)} bytes is not a list of float32")
    vector = array("f", raw)
    if sys.byteorder == "big":
        vector.byteswap()
    if not math.isfinite(sum(vector)):
        raise InvalidReply("the embedding holds a value that is not a finite number")
    return vector


def make(spec: JobSpec) -> Embedding:
    return Embedding(spec)
