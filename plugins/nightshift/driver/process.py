"""The driver's process, configured by its environment as a pod's container is.

NIGHTSHIFT_RUN_URL    gs://BUCKET/JOB/PARTITION/RUN
JOB_COMPLETION_INDEX  which shard is home, set by Kubernetes
ENGINE_URL            base URL of the engine beside it
POD_NAME, NODE_NAME   for the provenance of what it commits; optional
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from types import FrameType
from typing import Final

import aiohttp
from obstore.exceptions import BaseError
from obstore.store import ObjectStore

from nightshift import exits
from nightshift.chunks import Provenance
from nightshift.driver.engine import Engine, WrongEngine
from nightshift.driver.loop import ENGINE_BUDGET_S, Worker
from nightshift.driver.reader import InputChanged, InputReader
from nightshift.driver.scheduler import OpenChunk
from nightshift.freeze import NoSuchRun, load_run
from nightshift.ledger import ForeignObject, Ledger, load_plan
from nightshift.plan import Plan
from nightshift.run import RunRef
from nightshift.spec import JobSpec
from nightshift.store import ObjectStorage, StoreUnavailable, open_store, split_run_url
from nightshift.tasks.base import load as load_kind

log = logging.getLogger("nightshift.driver")

DRAIN_LIMIT_S: Final = 13.5


class ConfigError(ValueError):
    """The environment does not name a run and an engine that fit together."""


@dataclass(frozen=True)
class Config:
    """What the process is told. attempt names this life of the worker in partials and provenance."""

    run_url: str
    index: int
    engine_url: str
    node: str
    attempt: str

    @classmethod
    def from_environment(cls) -> Config:
        """Raises ConfigError naming the variable that is missing or no number."""
        values = {}
        for name in ("NIGHTSHIFT_RUN_URL", "JOB_COMPLETION_INDEX", "ENGINE_URL"):
            if not os.environ.get(name):
                raise ConfigError(f"{name} is not set")
            values[name] = os.environ[name]
        if not values["JOB_COMPLETION_INDEX"].isdecimal():
            raise ConfigError(f"JOB_COMPLETION_INDEX is {values['JOB_COMPLETION_INDEX']!r}, not a number")
        pod = os.environ.get("POD_NAME", "driver")
        return cls(
            values["NIGHTSHIFT_RUN_URL"],
            int(values["JOB_COMPLETION_INDEX"]),
            values["ENGINE_URL"],
            os.environ.get("NODE_NAME", os.uname().nodename),
            f"{pod}-{uuid.uuid4().hex[:8]}",
        )


async def work(config: Config) -> int:
    """Runs one worker to its end; returns its exit code. Raises the errors that `main` sorts."""
    drain = _DrainOnSignal()
    store, run = _locate(config.run_url)
    spec, plan = await asyncio.to_thread(_load, store, run)
    if config.index >= plan.workers:
        raise ConfigError(f"JOB_COMPLETION_INDEX is {config.index}, but the plan has {plan.workers} workers")
    kind = load_kind(spec)
    # Twice what the engine computes at once: its batch stays full while the next requests wait at its door.
    window = max(2, math.ceil(2 * spec.engine.max_num_seqs / kind.rows_per_request))
    async with Engine(config.engine_url, spec.model.name, window) as engine:
        version = await _meet(engine, drain)
        if version is None:
            return exits.RESUME
        worker = Worker(
            plan=plan,
            index=config.index,
            ledger=Ledger(ObjectStorage(store), run, plan),
            reader=InputReader(store, run, plan, (*spec.source.key, *kind.columns)),
            kind=kind,
            engine=engine,
            window=window,
            key_columns=tuple(spec.source.key),
            attempt=config.attempt,
            provenance=_provenance(config, run, spec, version),
        )
        drain.attach(worker.drain)
        return await worker.run()


def _locate(run_url: str) -> tuple[ObjectStore, RunRef]:
    try:
        base_url, prefix = split_run_url(run_url)
        return open_store(base_url), RunRef.from_prefix(prefix)
    except ValueError as error:
        raise ConfigError(f"NIGHTSHIFT_RUN_URL: {error}") from error


def _load(store: ObjectStore, run: RunRef) -> tuple[JobSpec, Plan]:
    try:
        spec, _ = load_run(store, run)
        plan = load_plan(store, run)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{run.prefix}: spec.json or plan.json is not what this nightshift writes: {error}") from error
    if plan is None:
        raise ConfigError(f"{run.prefix}/plan.json does not exist: the extract has not ended")
    return spec, plan


class _DrainOnSignal:
    """SIGTERM and SIGINT set a flag and call the worker's `drain` once there is one. A second signal changes nothing."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self._then: Callable[[], None] | None = None
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            # Not the loop's own handlers: those end with the loop, and the process, its exit code decided, lives on a moment.
            signal.signal(number, self._signalled)

    def attach(self, then: Callable[[], None]) -> None:
        self._then = then
        if self.asked.is_set():
            then()

    def _signalled(self, _number: int, _frame: FrameType | None) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ask)

    def _ask(self) -> None:
        if not self.asked.is_set():
            # Whatever hangs, the store or a thread in it, the pod has 15 s: to leave says "resume me", to be killed does not.
            last_resort = threading.Timer(DRAIN_LIMIT_S, os._exit, (exits.RESUME,))
            last_resort.daemon = True
            last_resort.start()
        self.asked.set()
        if self._then:
            self._then()


async def _meet(engine: Engine, drain: _DrainOnSignal) -> str | None:
    """Waits for the engine; its version, or None when it did not come in time or the pod must end first."""
    waiting = asyncio.create_task(engine.wait_healthy(ENGINE_BUDGET_S))
    asked = asyncio.create_task(drain.asked.wait())
    await asyncio.wait({waiting, asked}, return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    if not waiting.done():
        waiting.cancel()
        return None
    if not waiting.result():
        log.error("engine did not come up", extra={"fields": {"waited_s": ENGINE_BUDGET_S}})
        return None
    return await engine.version()


def _provenance(config: Config, run: RunRef, spec: JobSpec, engine_version: str) -> Callable[[OpenChunk], Provenance]:
    started = datetime.now(UTC).isoformat(timespec="seconds")

    def stamp(chunk: OpenChunk) -> Provenance:
        dead = sum(result.reason is not None for result in chunk.results.values())
        return Provenance(
            run_id=run.run_id,
            chunk=chunk.number,
            attempt=config.attempt,
            node=config.node,
            model=spec.model.model_dump(mode="json"),
            engine_version=engine_version,
            started=started,
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
            predictions=len(chunk.results) - dead,
            dead_letters=dead,
            prompt_tokens=chunk.prompt_tokens,
        )

    return stamp


class _JsonLines(logging.Formatter):
    """One JSON object a line, as Cloud Logging reads it."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "severity": record.levelname,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def main() -> int:
    """Returns one of the three codes of `nightshift.exits`, whatever happens."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    started = time.monotonic()
    try:
        config = Config.from_environment()
        log.info("started", extra={"fields": {"run": config.run_url, "index": config.index, "attempt": config.attempt}})
        code = asyncio.run(work(config))
    except (ConfigError, ForeignObject, InputChanged, NoSuchRun, WrongEngine) as error:
        log.error("cannot work", extra={"fields": {"error": f"{type(error).__name__}: {error}"}})
        code = exits.CONFIG
    except (StoreUnavailable, BaseError, OSError, aiohttp.ClientError) as error:
        log.error("gave up for now", extra={"fields": {"error": f"{type(error).__name__}: {error}"}})
        code = exits.RESUME
    except Exception:
        log.exception("unexpected")
        code = exits.RESUME
    log.info("exit", extra={"fields": {"code": code, "seconds": round(time.monotonic() - started, 1)}})
    return code
