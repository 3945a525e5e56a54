"""What the programs beside an engine have in common: the wait for the engine, and how much they send it first."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from nightshift.driver import descriptors
from nightshift.driver.drain import DrainOnSignal
from nightshift.driver.engine import EngineClient
from nightshift.driver.served import Served, Serving, check_fit, read_served
from nightshift.spec.model import Work
from nightshift.tasks.base import Fetching, TaskKind

log = logging.getLogger("nightshift.driver")

Client = TypeVar("Client", bound=EngineClient)


@contextlib.asynccontextmanager
async def clients_of(spec: Work, urls: Sequence[str], kind: type[Client]) -> AsyncIterator[list[Client]]:
    """One for each engine, in the order of their URLs. Raises WrongEngine for a URL that cannot be used."""
    async with contextlib.AsyncExitStack() as stack:
        made = [kind(url, spec.model.name, request_timeout_s=spec.request.timeout_seconds) for url in urls]
        for client in made:
            await stack.enter_async_context(client)
        yield made


async def meet(engines: Sequence[EngineClient], drain: DrainOnSignal, wait_s: float) -> list[EngineClient]:
    """Waits for the engines; those that came up in time, none if the pod must end first. The others are left out for good.

    wait_s: for all of them, in seconds.
    """
    up: dict[int, EngineClient] = {}

    async def wait(number: int) -> None:
        if await engines[number].wait_healthy(wait_s):
            up[number] = engines[number]

    async def wait_for_all() -> bool:
        await asyncio.gather(*map(wait, range(len(engines))))
        return True

    if not await drain.outrun(wait_for_all()):
        return []
    missing = sorted(set(range(len(engines))) - set(up))
    if missing:
        fields = {"waited_s": wait_s} | ({"engines": missing, "of": len(engines)} if len(engines) > 1 else {})
        (log.warning if up else log.error)("engine did not become healthy", extra={"fields": fields})
    return [up[number] for number in sorted(up)]


async def version_of(engines: Sequence[EngineClient], model: str, *, name_alone: bool = False, **asked: Any) -> str:
    """Asks each engine what it serves; returns the version of all. From now on each is asked again on every new connection.

    model: its name. name_alone: whether all else may differ and change. asked: of `nightshift.driver.served.check_fit`.
    Raises WrongEngine, also if they differ; OSError.
    """
    same: Callable[[Served], Any] = (lambda served: served.name) if name_alone else (lambda served: served)
    serving = Serving(partial(read_served, name=model), fit=partial(check_fit, **asked), same=same, engines=len(engines))
    versions = [await engine.meet(serving) for engine in engines]
    return versions[0]


async def version_for(engines: Sequence[EngineClient], spec: Work, **asked: Any) -> str:
    """`version_of` for what a job or a stream asks for. asked: what else."""
    tokens = getattr(spec.request, "max_tokens", 0)
    length = spec.engine.max_model_len
    return await version_of(engines, spec.model.name, max_model_len=length, answer_tokens=tokens, **asked)


def first_window(seats: int, kind: TaskKind, *, engines: int = 1) -> tuple[int, int]:
    """Rows in flight to begin with, at each engine, and the most requests, at all. seats: rows that an engine computes at once.

    Twice the seats, so that as many rows wait as fill its next batch. A first guess: the window then follows the engine's own
    numbers. Of requests no more than there are descriptors for.
    """
    rows = 2 * seats
    requests = math.ceil(rows / kind.rows_per_request)
    return rows, descriptors.requests_most(descriptors.raise_limit(), engines * requests, fetching=isinstance(kind, Fetching))
