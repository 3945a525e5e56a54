"""What a tune may choose between: points on a grid, and which of them a failure rules out. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

from nightshift.trial.outcomes import Cause


@dataclass(frozen=True, order=True)
class Point:
    """How an engine is started. None of it changes an answer (`nightshift.spec.vllm_flags`).

    max_num_batched_tokens: tokens a step. max_num_seqs: rows at once. api_servers: processes of one engine that take requests.
    engines: that share the worker's accelerator. tensor_parallel: accelerators that share each layer.
    """

    max_num_batched_tokens: int
    max_num_seqs: int
    api_servers: int = 1
    engines: int = 1
    tensor_parallel: int = 1


AXES: Final = tuple(each.name for each in fields(Point))
STAGES: Final = (("max_num_batched_tokens", "max_num_seqs"), ("api_servers", "engines"), ("tensor_parallel",))
"""The axes that are searched together, in order: the first two depend on each other most."""
_MEMORY: Final[Mapping[str, int]] = {"max_num_batched_tokens": 1, "max_num_seqs": 1, "engines": 1, "tensor_parallel": -1}
"""Whether more of it takes more of an accelerator's memory, or less."""


@dataclass(frozen=True)
class Space:
    """A grid. default: what the job starts now, one of its points. axes: the values of each axis, ascending; an axis that is
    missing stays as the default has it."""

    default: Point
    axes: Mapping[str, tuple[int, ...]]

    def __post_init__(self) -> None:
        for name, values in self.axes.items():
            if name not in AXES or list(values) != sorted(set(values)) or getattr(self.default, name) not in values:
                raise ValueError(f"{name}: {values} is not a grid around the default {self.default}")

    def values(self, axis: str) -> tuple[int, ...]:
        return self.axes.get(axis, (getattr(self.default, axis),))

    def index(self, point: Point) -> tuple[int, ...]:
        """Its place on each axis, counted from 0. Raises ValueError for a point outside."""
        return tuple(self.values(axis).index(getattr(point, axis)) for axis in AXES)

    def __contains__(self, point: Point) -> bool:
        return valid(point) and all(getattr(point, axis) in self.values(axis) for axis in AXES)

    def around(self, point: Point, axes: tuple[str, ...]) -> Iterator[Point]:
        """The points that differ from `point` in these axes alone, itself included."""
        for values in itertools.product(*map(self.values, axes)):
            if valid(found := replace(point, **dict(zip(axes, values, strict=True)))):
                yield found


_WAYS: Final = tuple(_MEMORY.get(axis, 0) for axis in AXES)


def valid(point: Point) -> bool:
    """vLLM does not start with fewer tokens a step than rows; and engines that share an accelerator have no other."""
    return point.max_num_batched_tokens >= point.max_num_seqs and (point.engines == 1 or point.tensor_parallel == 1)


def needs_no_more(point: Point, other: Point) -> bool:
    """Whether an accelerator needs no more memory for `point` than for `other`, whatever the engine is."""
    return all(way * (getattr(point, axis) - getattr(other, axis)) <= 0 for axis, way in _MEMORY.items())


def steps_over(place: Sequence[int], other: Sequence[int]) -> int:
    """How many steps of the grid a place (an index on each axis) needs more memory than another one."""
    return sum(max(0, way * (a - b)) for way, a, b in zip(_WAYS, place, other, strict=True))


def ruled_out(point: Point, failed: Point, cause: Cause, default: Point) -> bool:
    """Whether `point` fails too, because `failed` did.

    What needs at least as much memory as what ran out of it; otherwise what is at least as far from the default in each
    direction in which the failed point is.
    """
    if point == failed:
        return True
    if cause.of_memory:
        return needs_no_more(failed, point)
    moved = [(axis, getattr(failed, axis) - getattr(default, axis)) for axis in AXES]
    moved = [(axis, by) for axis, by in moved if by]
    return bool(moved) and all(
        (getattr(point, axis) - getattr(default, axis)) * (1 if by > 0 else -1) >= abs(by) for axis, by in moved
    )
