"""KServe's V1 prediction and the Open Inference Protocol (V2), in JSON. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from nightshift.batcher.endpoint import (
    Asked,
    Endpoint,
    ErrorBody,
    ListEndpoint,
    WrongReply,
    asked_of,
    check_plain,
    joined,
    kserve_error,
    parsed,
)
from nightshift.fields.text import n

ALONE: Final = ("binary_data", "binary_data_size", "binary_data_output", "sequence_id", "sequence_start", "sequence_end")
"""Parameters of V2 with which a request goes alone: the binary extension, and requests that build on earlier ones."""
AXES_MOST: Final = 64
"""Of a tensor that is merged: what NumPy can have."""


@dataclass(frozen=True)
class Predict(ListEndpoint):
    """V1: ``instances`` become ``predictions``, one each."""

    name: str = "predict"
    results: str = "predictions"
    error: ErrorBody = kserve_error
    field: str = "instances"
    numbered: bool = False

    def inputs(self, request: dict[str, Any]) -> tuple[str, str, list[Any]] | None:
        value = request.pop(self.field, None)
        return (self.field, "", value) if isinstance(value, list) and value else None


@dataclass(frozen=True)
class Infer(Endpoint):
    """V2: tensors, joined along their first axis. Names, datatypes, other axes and parameters have to agree."""

    name: str = "infer"
    results: str = "outputs"
    error: ErrorBody = kserve_error

    def read(self, body: bytes) -> Asked | None:
        rest = parsed(body)
        inputs = None if rest is None else rest.pop("inputs", None)
        if rest is None or not inputs or not _mergeable(rest, inputs):
            return None
        own, count = rest.pop("id", None), inputs[0]["shape"][0]
        if (own is not None and not isinstance(own, str)) or any(each["shape"][0] != count for each in inputs):
            return None
        data = [each.pop("data") for each in inputs]
        for each, values in zip(inputs, data, strict=True):
            # Flat or nested: both are allowed, but not in one tensor.
            each["nested"] = isinstance(values[0], list)
            each["shape"] = each["shape"][1:]
        return asked_of([rest, inputs], data, count, own)

    def merge(self, asked: Sequence[Asked]) -> bytes:
        rest, inputs = orjson.loads(asked[0].shared)
        count = sum(each.count for each in asked)
        for place, each in enumerate(inputs):
            del each["nested"]
            each["shape"] = [count, *each["shape"]]
            each["data"] = joined([one.items[place] for one in asked])
        return orjson.dumps({**rest, "inputs": inputs})

    def results_of(self, value: Any, count: int) -> list[Any]:
        if not _are_objects(value):
            raise WrongReply("it has no list of objects as 'outputs'")
        for each in value:
            problem = _problem(each)
            if not problem and each["shape"][0] != count:
                problem = f"has the shape {each['shape']}, and {n(count, 'row')} went out"
            if problem:
                raise WrongReply(f"the output {each.get('name')!r} {problem}")
            check_plain(_form(each)[0])
        return list(value)

    def part(self, results: list[Any], place: slice) -> list[Any]:
        parts = []
        for each in results:
            width = len(each["data"]) // each["shape"][0]
            data = each["data"][place.start * width : place.stop * width]
            parts.append({**each, "shape": [place.stop - place.start, *each["shape"][1:]], "data": data})
        return parts

    def together(self, parts: Sequence[list[Any]]) -> list[Any]:
        first, *others = parts
        for other in others:
            if [_form(each) for each in other] != [_form(each) for each in first]:
                raise WrongReply("its outputs have another form for other rows")
            for each, more in zip(first, other, strict=True):
                each["data"] += more["data"]
                each["shape"][0] += more["shape"][0]
        return first


def axes_of(asked: Asked) -> dict[str, list[int]]:
    """The inputs of a V2 request by their names, each with the axes behind its first."""
    _, inputs = orjson.loads(asked.shared)
    return {str(each.get("name")): each["shape"] for each in inputs}


def _form(tensor: Mapping[str, Any]) -> tuple[dict[str, Any], list[int], bool]:
    """What has to be equal in tensors that become one: all but the data, the other axes, and whether the data are nested."""
    rest = {name: value for name, value in tensor.items() if name not in ("shape", "data")}
    return rest, tensor["shape"][1:], isinstance(tensor["data"][0], list)


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)


def _mergeable(rest: Mapping[str, Any], inputs: Any) -> bool:
    """Whether the inputs are tensors with a first axis, and no parameter demands that the request goes alone."""
    outputs = rest.get("outputs", [])
    if not _are_objects(inputs) or not _are_objects(outputs) or any(map(_problem, inputs)):
        return False
    parameters = [each.get("parameters", {}) for each in (rest, *inputs, *outputs)]
    return all(isinstance(each, dict) and each.keys().isdisjoint(ALONE) for each in parameters)


def _problem(tensor: Mapping[str, Any]) -> str:
    """Why it cannot be divided by rows; empty if it can. Data that do not fill it would shift the next caller's."""
    shape = tensor.get("shape")
    if (
        not isinstance(shape, list)
        or not 0 < len(shape) <= AXES_MOST
        or any(type(axis) is not int or axis < 1 for axis in shape)
    ):
        return f"has the shape {shape}"
    return "" if _fills(tensor.get("data"), shape) else f"has data that do not fill its shape {shape}"


def _fills(data: Any, shape: list[int]) -> bool:
    """Flat or nested."""
    if not isinstance(data, list):
        return False
    if len(data) == math.prod(shape) and not any(isinstance(each, list) for each in data):
        return True
    return len(shape) > 1 and len(data) == shape[0] and all(_nested(each, shape[1:]) for each in data)


def _nested(data: Any, shape: list[int]) -> bool:
    if not isinstance(data, list) or len(data) != shape[0]:
        return False
    return (
        all(_nested(each, shape[1:]) for each in data) if len(shape) > 1 else not any(isinstance(each, list) for each in data)
    )
