"""KServe's V1 prediction and the Open Inference Protocol (V2), in JSON. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from nightshift.fields.text import n
from nightshift.stream.batcher.endpoint import (
    Asked,
    WrongReply,
    bare,
    canonical,
    cut_list,
    joined,
    kserve_error,
    parsed,
    parsed_reply,
    pieces,
    same_for_all,
    slices,
)

ALONE: Final = ("binary_data", "binary_data_size", "binary_data_output", "sequence_id", "sequence_start", "sequence_end")
"""Parameters of V2 with which a request goes alone: the binary extension, and requests that build on earlier ones."""


AXES_MOST: Final = 64
"""Of a tensor that is merged: what NumPy can have."""


@dataclass(frozen=True)
class Predict:
    """V1: ``instances`` become ``predictions``, one each."""

    name: str = "predict"

    error = staticmethod(kserve_error)

    def read(self, body: bytes) -> Asked | None:
        rest = parsed(body)
        instances = None if rest is None else rest.pop("instances", None)
        if not isinstance(instances, list) or not instances:
            return None
        shared = canonical(rest)
        # What could be read can be nested more deeply than what can be written.
        if shared is None or canonical(instances) is None:
            return None
        return Asked(shared, (bare(instances),), len(instances))

    def merge(self, asked: Sequence[Asked]) -> bytes:
        return orjson.dumps({**orjson.loads(asked[0].shared), "instances": joined([each.items[0] for each in asked])})

    def split(self, reply: bytes, asked: Sequence[Asked]) -> list[bytes]:
        predictions, rest = _predictions(reply, sum(each.count for each in asked))
        return [orjson.dumps({**rest, "predictions": predictions[place]}) for place in slices(asked)]

    cut = staticmethod(cut_list)

    def join(self, replies: Sequence[bytes], asked: Sequence[Asked]) -> bytes:
        found = [_predictions(reply, piece.count) for reply, piece in zip(replies, asked, strict=True)]
        return orjson.dumps({**found[0][1], "predictions": [each for predictions, _ in found for each in predictions]})


@dataclass(frozen=True)
class Infer:
    """V2: tensors, joined along their first axis. Names, datatypes, other axes and parameters have to agree."""

    name: str = "infer"

    error = staticmethod(kserve_error)

    def read(self, body: bytes) -> Asked | None:
        rest = parsed(body)
        inputs = None if rest is None else rest.pop("inputs", None)
        if rest is None or not isinstance(inputs, list) or not inputs or not _mergeable(rest, inputs):
            return None
        own = rest.pop("id", None)
        count = inputs[0]["shape"][0]
        if (own is not None and not isinstance(own, str)) or any(each["shape"][0] != count for each in inputs):
            return None
        data = [each.pop("data") for each in inputs]
        for each, values in zip(inputs, data, strict=True):
            if not _fits(values, each["shape"]):
                return None
            # Flat or nested: both are allowed, but not in one tensor.
            each["nested"] = isinstance(values[0], list)
            each["shape"] = each["shape"][1:]
        shared = canonical([rest, inputs])
        return None if shared is None else Asked(shared, tuple(map(bare, data)), count, own)

    def merge(self, asked: Sequence[Asked]) -> bytes:
        rest, inputs = orjson.loads(asked[0].shared)
        count = sum(each.count for each in asked)
        for place, each in enumerate(inputs):
            del each["nested"]
            each["shape"] = [count, *each["shape"]]
            each["data"] = joined([one.items[place] for one in asked])
        return orjson.dumps({**rest, "inputs": inputs})

    def split(self, reply: bytes, asked: Sequence[Asked]) -> list[bytes]:
        outputs, whole = _outputs(reply, sum(each.count for each in asked))
        name = whole.pop("id", None)
        answers = []
        for number, (caller, place) in enumerate(zip(asked, slices(asked), strict=True)):
            own = {**whole, "outputs": [_part(each, place) for each in outputs]}
            if caller.own is not None:
                own["id"] = caller.own
            elif isinstance(name, str):
                own["id"] = f"{name}-{number}"
            answers.append(orjson.dumps(own))
        return answers

    def cut(self, asked: Asked, most: int) -> list[Asked]:
        _, inputs = orjson.loads(asked.shared)
        widths = [1 if each["nested"] else math.prod(each["shape"]) for each in inputs]
        columns = [pieces(items, most, width) for items, width in zip(asked.items, widths, strict=True)]
        return [
            Asked(asked.shared, items, min(most, asked.count - number * most), asked.own)
            for number, items in enumerate(zip(*columns, strict=True))
        ]

    def join(self, replies: Sequence[bytes], asked: Sequence[Asked]) -> bytes:
        found = [_outputs(reply, piece.count) for reply, piece in zip(replies, asked, strict=True)]
        first, whole = found[0]
        for number, output in enumerate(first):
            for others, _ in found[1:]:
                other = others[number] if len(others) == len(first) else {}
                if _form(other) != _form(output):
                    raise WrongReply(f"the output {output.get('name')!r} has another form for other rows")
                output["data"] += other["data"]
                output["shape"][0] += other["shape"][0]
        own = {} if asked[0].own is None else {"id": asked[0].own}
        return orjson.dumps({**whole, **own, "outputs": first})


def _predictions(reply: bytes, count: int) -> tuple[list[Any], dict[str, Any]]:
    """`count` predictions, and what else a V1 reply says. Raises WrongReply."""
    whole = parsed_reply(reply)
    predictions = whole.pop("predictions", None)
    if not isinstance(predictions, list) or len(predictions) != count:
        found = n(len(predictions), "prediction") if isinstance(predictions, list) else "no list of predictions"
        raise WrongReply(f"it has {found} for {count} instances")
    return predictions, same_for_all(whole)


def _outputs(reply: bytes, count: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Tensors of `count` rows, and what else a V2 reply says. Raises WrongReply."""
    whole = parsed_reply(reply)
    outputs = whole.pop("outputs", None)
    if not isinstance(outputs, list) or not all(isinstance(each, dict) for each in outputs):
        raise WrongReply("it has no list of objects as 'outputs'")
    for each in outputs:
        shape = each.get("shape")
        if not _is_shape(shape) or shape[0] != count:
            raise WrongReply(f"the output {each.get('name')!r} has the shape {shape}, and {n(count, 'row')} went out")
        if not _fits(each.get("data"), shape):
            raise WrongReply(f"the output {each.get('name')!r} has data that do not fill its shape {shape}")
        same_for_all({name: value for name, value in each.items() if name not in ("shape", "data")})
    return outputs, same_for_all(whole)


def _form(output: Mapping[str, Any]) -> Any:
    """What has to be equal in tensors that become one."""
    rest = {name: value for name, value in output.items() if name not in ("shape", "data")}
    return rest, output.get("shape", [])[1:], [isinstance(each, list) for each in output.get("data", [])[:1]]


def _mergeable(rest: Mapping[str, Any], inputs: list[Any]) -> bool:
    """Whether the inputs are tensors with a first axis, and no parameter demands that the request goes alone."""
    outputs = rest.get("outputs", [])
    if not isinstance(outputs, list) or not all(isinstance(each, dict) for each in [*inputs, *outputs]):
        return False
    if not all(_is_shape(each.get("shape")) and "data" in each for each in inputs):
        return False
    parameters = [each.get("parameters", {}) for each in (rest, *inputs, *outputs)]
    return all(isinstance(each, dict) and not any(name in each for name in ALONE) for each in parameters)


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, list) and 0 < len(shape) <= AXES_MOST and all(type(axis) is int and axis > 0 for axis in shape)


def _fits(data: Any, shape: list[int]) -> bool:
    """Whether the data, flat or nested, are exactly those of a tensor of that shape: others would shift the next caller's."""
    if not isinstance(data, list) or not data:
        return False
    if not any(isinstance(each, list) for each in data):
        return len(data) == math.prod(shape)
    return len(data) == shape[0] and len(shape) > 1 and all(_nested(each, shape[1:]) for each in data)


def _nested(data: Any, shape: list[int]) -> bool:
    if not isinstance(data, list) or len(data) != shape[0]:
        return False
    if len(shape) == 1:
        return not any(isinstance(each, list) for each in data)
    return all(_nested(each, shape[1:]) for each in data)


def _part(output: Mapping[str, Any], place: slice) -> dict[str, Any]:
    """Some rows of an output tensor."""
    rows = place.stop - place.start
    data, shape = output["data"], output["shape"]
    each = 1 if isinstance(data[0], list) else math.prod(shape[1:])
    return {**output, "shape": [rows, *shape[1:]], "data": data[place.start * each : place.stop * each]}
