"""What is known of the server: whether it can work, and which of its models answer merged requests."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable, Mapping
from typing import Any, Final

import orjson

from nightshift.batcher.dispatch import Caller
from nightshift.driver.http import HttpClient, NoDescriptors

Axes = Mapping[str, list[int]]
"""The inputs of a V2 model or request by name, each with its axes behind the first; -1 is any length."""
HEALTH_PATHS: Final = ("/health", "/v2/health/ready")
"""vLLM's and most others', and that of the Open Inference Protocol."""
HEALTH_S: Final = 5.0
"""For an answer to a question."""
REMEMBERED_S: Final = 600.0
"""Of a model. Then it is tried again: a reply may have been a page of a proxy, and a model may be another one."""
REMEMBERED_MOST: Final = 1024
BELIEVED_S: Final = 1.0
"""What it says of its health, so that it is asked no more often. So is an answer that says nothing."""


class Separate:
    """Requests go alone whose model has answered a merged one with something else than one result for each item.

    Of a model and its parameters, since a parameter may decide what the answer looks like. now: loop time.
    """

    def __init__(self) -> None:
        self._until: OrderedDict[int, float] = OrderedDict()

    def add(self, caller: Caller, now: float) -> None:
        name = self._name(caller)
        self._until[name] = now + REMEMBERED_S
        self._until.move_to_end(name)
        if len(self._until) > REMEMBERED_MOST:
            self._until.popitem(last=False)

    def holds(self, caller: Caller, now: float) -> bool:
        """Whether such a request goes alone."""
        # A name takes as long as the request is large.
        return bool(self._until) and self._until.get(self._name(caller), now) > now

    @staticmethod
    def _name(caller: Caller) -> int:
        """Short, whatever callers send. Who has the name of another goes alone, too."""
        return hash((caller.endpoint.name, caller.target, caller.asked.shared))


class Questions:
    """To the server at `client`. Each is asked once for all who want to know, and its answer believed for a while. key: a
    header for those who have none of that name."""

    def __init__(self, client: HttpClient, key: Mapping[str, str]) -> None:
        self._client = client
        self._key = key
        # An answer, and until when it is believed.
        self._asked: OrderedDict[Hashable, asyncio.Task[tuple[Any, float]]] = OrderedDict()

    async def problem(self) -> str:
        """Why no work can be done now; empty if it can."""
        found: str = await self._answer("", self._health)
        return found

    async def may_merge(self, model: str, headers: Mapping[str, str], axes: Axes) -> bool:
        """Whether several requests to a V2 model may become one: its metadata say that every tensor's first axis is free, and
        these are its inputs.

        model: the path of its metadata. headers: those of the caller, who may not be allowed to know what others are. axes: of
        the request's inputs.
        """
        given = {**self._key, **headers}
        known: Axes | None = await self._answer((model, tuple(sorted(given.items()))), lambda: self._axes(model, given))
        return known is not None and fit(axes, known)

    async def _answer(self, name: Hashable, ask: Callable[[], Coroutine[Any, Any, tuple[Any, float]]]) -> Any:
        loop = asyncio.get_running_loop()
        task = self._asked.get(name)
        if task is None or (task.done() and task.result()[1] <= loop.time()):
            task = self._asked[name] = loop.create_task(ask())
            self._asked.move_to_end(name)
            if len(self._asked) > REMEMBERED_MOST:
                self._asked.popitem(last=False)
        # Who leaves must not end it for the others.
        return (await asyncio.shield(task))[0]

    async def _health(self) -> tuple[str, float]:
        until = asyncio.get_running_loop().time() + BELIEVED_S
        for path in HEALTH_PATHS:
            try:
                status = (await self._client.request("GET", path, headers=self._key, timeout_s=HEALTH_S)).status
            except NoDescriptors:
                break  # That says nothing of the server.
            except (OSError, TimeoutError) as error:
                return f"the server does not answer {path}: {error}", until
            if status not in (404, 405):
                # A gateway that wants a key says 401 to this, and serves callers who have one.
                bad = status >= 500 or status == 429 or (path != HEALTH_PATHS[0] and status == 400)
                return f"the server answers {path} with {status}" if bad else "", until
        return "", until  # It answers, and has no such path.

    async def _axes(self, model: str, headers: Mapping[str, str]) -> tuple[Axes | None, float]:
        now = asyncio.get_running_loop().time()
        try:
            reply = await self._client.request("GET", model, headers=headers, timeout_s=HEALTH_S)
        except (OSError, TimeoutError):
            return None, now + BELIEVED_S
        known = reply.status < 429
        return free_axes(reply.body) if reply.status == 200 else None, now + (REMEMBERED_S if known else BELIEVED_S)


def free_axes(metadata: bytes) -> Axes | None:
    """The inputs of a model each of whose tensors has a first axis of any length; None for other models, and for one with an
    input that is a mere vector: that may be one item."""
    try:
        model: Any = orjson.loads(metadata)
        inputs = {each["name"]: list(each["shape"]) for each in model["inputs"]}
        outputs = [list(each["shape"]) for each in model["outputs"]]
    except (ValueError, TypeError, KeyError):
        return None
    if not inputs or not outputs or any(each[:1] != [-1] for each in (*inputs.values(), *outputs)):
        return None
    behind = {name: shape[1:] for name, shape in inputs.items()}
    return behind if all(behind.values()) else None


def fit(axes: Axes, known: Axes) -> bool:
    """Whether a request's inputs are those of a model, whose axes of -1 have any length."""
    return axes.keys() == known.keys() and all(
        len(known[name]) == len(found) and all(wanted in (-1, axis) for wanted, axis in zip(known[name], found, strict=True))
        for name, found in axes.items()
    )
