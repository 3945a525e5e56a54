"""Rows to answers, by the driver's own path: the kind renders, `nightshift.driver.request_loop` sends, retries and judges."""

from __future__ import annotations

import asyncio
import json
import random
import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from nightshift.driver.backoff import Backoff
from nightshift.driver.bootstrap import clients_of, first_window, version_for
from nightshift.driver.engine import EngineClient, Load, Replied, SendResult
from nightshift.driver.feeder import names_of, rows_of
from nightshift.driver.health import EngineBudget
from nightshift.driver.open_chunk import OpenChunk
from nightshift.driver.request_loop import Life, RequestLoop, RequestLoopCallbacks, RequestLoopLimits
from nightshift.driver.scheduler import Group, Scheduler
from nightshift.driver.served import WrongEngine
from nightshift.driver.stats import Stats
from nightshift.tasks import Verdict, judge
from nightshift.tasks.base import TaskKind, WrongModel, load_kind, usage
from nightshift.trial.outcomes import Computed, EngineGone, Outcome, UnfitEngine

if TYPE_CHECKING:
    import pyarrow as pa

    from nightshift.spec import JobSpec

BUDGET: Final = EngineBudget(absent_s=60.0, failing_s=60.0, few=10_000, rows_ask=True)
"""A person waits: an engine that is away or answers nobody is given up sooner than by a night, and there are few rows."""


async def compute(spec: JobSpec, table: pa.Table, *urls: str, root: str | None = None) -> Outcome:
    """Sends the rows to the engines at `urls`, one or more. root: where they must say that their model is from; None: anywhere.

    Raises EngineGone, UnfitEngine, StoreUnavailable (of an image).
    """
    try:
        return await _computed(spec, table, urls, root)
    except (WrongEngine, WrongModel) as error:
        raise UnfitEngine(str(error)) from error


async def _computed(spec: JobSpec, table: pa.Table, urls: Sequence[str], root: str | None) -> Outcome:
    async with clients_of(spec, urls, _Watched) as engines:
        try:
            version = await version_for(engines, spec, root=root)
        except OSError as error:
            raise EngineGone(f"{' or '.join(urls)} does not answer: {error}") from error
        seen, stats = _Seen(load_kind(spec)), Stats()
        before = [await engine.load() for engine in engines]
        began = time.monotonic()
        results = (await _sent(spec, table, engines, seen, stats)).in_order() if len(table) else []
        rows = tuple(
            Computed(
                **seen.of(result.ordinal),
                answer=plain(result.prediction),
                reasoning=result.reasoning,
                tries=result.attempts,
                reason=result.reason,
                message=result.message,
            )
            for result in results
        )
        took = time.monotonic() - began
        after = [await engine.load() for engine in engines]
        return Outcome(
            rows,
            stats.prompt_tokens,
            stats.output_tokens,
            took,
            version,
            dead=sum(row.reason is not None for row in rows),
            # An engine that was started again counts from 0.
            preemptions=sum(max(0.0, b.preemptions - a.preemptions) for a, b in zip(before, after, strict=True) if a and b),
            kv_cache=max(engine.kv_cache for engine in engines),
            losses=stats.engine_losses,
        )


async def _sent(spec: JobSpec, table: pa.Table, engines: Sequence[EngineClient], seen: _Seen, stats: Stats) -> OpenChunk:
    """The rows as one chunk, whose results are kept in memory."""
    life, scheduler, finished = Life(), Scheduler(seen.kind), list[OpenChunk]()

    def moved() -> None:
        if (chunk := scheduler.pop_finished()) is not None:
            finished.append(chunk)
            life.end()

    def given_up() -> None:
        life.end(EngineGone("the engine went away, or answered no request for a minute"))

    async def send() -> None:
        loop.run()
        await asyncio.Event().wait()

    window, requests = first_window(spec.seats(), seen.kind, engines=len(engines))
    loop = RequestLoop(
        seen.kind,
        list(engines),
        scheduler,
        RequestLoopLimits(window_start=window, requests_most=requests, engine=BUDGET),
        Backoff(random.Random(), asyncio.Event()),
        stats,
        RequestLoopCallbacks(moved=moved, given_up=given_up, spawn=life.spawn, traces=seen),
    )
    ordinals = range(len(table))
    names = names_of(table.select(list(spec.source.key)), ordinals) if spec.request.seeded else None
    scheduler.open_chunk(0, ordinals, rows_of(table, seen.kind.columns), {}, names)
    await life.lead(send(), *loop.watches(), ended=False, last=loop.send_no_more)
    return finished[0]


class _Watched(EngineClient):
    """kv_cache: the most that was used of it, 0 to 1, as often as the request loop looks."""

    kv_cache = 0.0

    async def load(self) -> Load | None:
        found = await super().load()
        if found is not None:
            self.kv_cache = max(self.kv_cache, found.kv_cache)
        return found


@dataclass
class _Seen:
    """What the engine was asked and said, by row: `nightshift.driver.sender.RequestObserver`."""

    kind: TaskKind
    prompts: dict[int, str] = field(default_factory=dict)
    said: dict[int, dict[str, Any]] = field(default_factory=dict)

    def sent(self, group: Group, path: str) -> Mapping[str, str]:
        for row in group.rows:
            self.prompts[row.ordinal] = self._prompt(row.payload)
        return {}

    def replied(self, group: Group, outcome: SendResult) -> None:
        if not isinstance(outcome, Replied) or len(group.rows) != 1:
            return
        tokens, written = usage(outcome.body)
        judged = judge(outcome.body, message=getattr(self.kind, "message", False))
        early = judged.verdict is Verdict.CUT and judged.ending != "length"
        self.said[group.rows[0].ordinal] = {
            "finish_reason": "cut" if early else judged.ending,
            "prompt_tokens": tokens,
            "output_tokens": written,
        }

    def settled(self, group: Group) -> None:
        """Nothing more is learned of it."""

    def of(self, ordinal: int) -> dict[str, Any]:
        return {"prompt": self.prompts.get(ordinal), **self.said.get(ordinal, {})}

    def _prompt(self, payload: Any) -> str:
        match getattr(payload, "content", payload):
            case str(text):
                return text
            case [*messages] if all(isinstance(each, dict) for each in messages):
                return prompt_text(messages)
            case (list(messages), str(text)):  # Of an image, which is not shown.
                return prompt_text([*messages, {"role": "user", "content": text}])
            case _:
                body = json.loads(self.kind.request([payload], 0)[1])
                return "\n".join(f"{name}: {_alone(value)}" for name, value in body.items() if name != "model")


def prompt_text(messages: Sequence[Mapping[str, str]]) -> str:
    """What a model is sent, as a person reads it: messages with their roles; a single one without."""
    if len(messages) == 1:
        return messages[0]["content"]
    return "\n".join(f"{each['role']}: {each['content']}" for each in messages)


def _alone(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def plain(value: Any) -> Any:
    """A prediction as JSON has it."""
    if isinstance(value, array):
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value
