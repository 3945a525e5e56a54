"""Classification: ``POST /classify`` with a list of texts, one label per row.

The reply names only the best class, so the prediction holds its label and score, and the scores of all classes in the order
of the model's ``id2label``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import orjson
from pydantic import Field

from nightshift.fields import section
from nightshift.tasks._request import INPUT, ListRequest
from nightshift.tasks.base import Answers, InvalidReply, Pooling, each_alone, finite, numbered, usage

if TYPE_CHECKING:
    import pyarrow as pa


class Request(ListRequest):
    """What the model is asked for a row of a classify job."""

    TEMPLATES: ClassVar = ("input",)

    input: section.Text = Field(description=INPUT, examples=["{{ title }} {{ body }}"])


class Kind(Pooling):
    """`nightshift.tasks.base.TaskKind` for sequence classification models."""

    @property
    def prediction_type(self) -> pa.DataType:
        import pyarrow as pa

        return pa.struct([("label", pa.string()), ("score", pa.float32()), ("scores", pa.list_(pa.float32()))])

    def request(self, payloads: Sequence[Any], retry: int) -> tuple[str, bytes]:
        return "/classify", orjson.dumps({**self._options, "input": list(payloads)})

    def answers(self, reply: Any, payloads: Sequence[Any]) -> Answers:
        return Answers(each_alone(numbered(reply, "data", len(payloads)), _prediction), *usage(reply))


def _prediction(item: Mapping[str, Any]) -> dict[str, Any]:
    label, probabilities = item.get("label"), item.get("probs")
    if not isinstance(probabilities, list) or not probabilities:
        raise InvalidReply(f"not a classification: {str(item)[:200]}")
    scores = [finite(value) for value in probabilities]
    best = max(range(len(scores)), key=scores.__getitem__)
    if label is None:  # The model does not name its classes.
        label = f"LABEL_{best}"
    if not isinstance(label, str):
        raise InvalidReply(f"the label {label!r} is not a text")
    return {"label": label, "score": scores[best], "scores": scores}
