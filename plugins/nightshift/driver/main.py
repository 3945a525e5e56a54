"""The driver's process: from its environment (`nightshift.driver.environment`) to its exit code."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

import uvloop
from obstore.exceptions import BaseError
from obstore.store import ObjectStore

from nightshift import exits
from nightshift.driver import compile_cache
from nightshift.driver.backoff import Backoff
from nightshift.driver.bootstrap import clients_of, first_window, meet, version_for
from nightshift.driver.codec import ChunkRefused, ParquetCodec
from nightshift.driver.drain import DrainOnSignal
from nightshift.driver.engine import EngineClient
from nightshift.driver.environment import ConfigError, DriverConfig
from nightshift.driver.heartbeats import Heartbeats, process_age_s
from nightshift.driver.json_log import log_to_stdout
from nightshift.driver.known_good_rows import answered_row
from nightshift.driver.metrics import BuildInfo, StatsCollector, serve_metrics
from nightshift.driver.run_metrics import RunCollector
from nightshift.driver.served import WrongEngine
from nightshift.driver.stats import Stats
from nightshift.driver.tracing import CannotTrace, traces_of
from nightshift.driver.worker import Worker, WorkerLimits
from nightshift.run.inputs import InputBroken, InputChanged, InputReader
from nightshift.run.ledger import ForeignObject, Ledger
from nightshift.run.models import weights
from nightshift.run.models.weights import NoWeights, WeightsChanged
from nightshift.run.names import RunRef, split_run_url
from nightshift.run.observed.heartbeats import Ended
from nightshift.run.opening import NoSuchRun, load_run, planned
from nightshift.run.pins import Pins, revision_of
from nightshift.run.plan import Plan
from nightshift.run.record import RunRecord
from nightshift.run.tolerance import ToleranceExceeded
from nightshift.spec import JobSpec
from nightshift.spec.columns import REASONING
from nightshift.store import ObjectStorage, StoreRefused, StoreUnavailable, open_store
from nightshift.tasks import Rendering
from nightshift.tasks.base import TaskKind, WrongModel, load_kind

if TYPE_CHECKING:
    from nightshift.driver.traces import RequestTraces

log = logging.getLogger("nightshift.driver")


_HOPELESS: Final = (
    ChunkRefused,
    ConfigError,
    ForeignObject,
    InputBroken,
    InputChanged,
    NoSuchRun,
    NoWeights,
    StoreRefused,
    ToleranceExceeded,
    WeightsChanged,
    WrongEngine,
    WrongModel,
)
"""What another attempt would meet again."""
_PASSING: Final = (StoreUnavailable, BaseError, OSError)
"""What it need not meet."""


async def work(config: DriverConfig) -> int:
    """Runs one worker to its end; returns its exit code. Raises the errors that `main` sorts."""
    drain = DrainOnSignal()
    try:
        base_url, run = split_run_url(config.run_url)
        store = open_store(base_url)
    except ValueError as error:
        raise ConfigError(f"NIGHTSHIFT_RUN_URL: {error}") from error
    stats = Stats()
    patience = Backoff(random.Random(), drain.asked)
    loaded = await patience.until_granted(lambda: asyncio.to_thread(_load, store, run))
    heartbeats = Heartbeats(ObjectStorage(store), run.work(loaded.plan.uid), config.birth(), stats)
    code = exits.RESUME
    async with heartbeats.kept(lambda error: _ended(error, code, drained=drain.asked.is_set())):
        traces = _traces(run)
        try:
            code = await heartbeats.unless_refused(_work(config, drain, store, loaded, stats, heartbeats, traces))
        finally:
            if traces is not None:
                await asyncio.to_thread(traces.flush)
    return code


def _ended(error: BaseException | None, code: int, *, drained: bool) -> Ended:
    """What the last heartbeat says. drained: by a signal. code: that of a worker that ended without an error."""
    if isinstance(error, _HOPELESS):
        return Ended.CANNOT_CONTINUE
    if error is None and code == exits.DONE:
        return Ended.DONE
    if drained:
        return Ended.DRAINED
    return Ended.GAVE_UP if error is None or isinstance(error, _PASSING) else Ended.FAILED


@dataclass(frozen=True)
class _Loaded:
    """What Airflow has written of a run. record: of its `spec.json`."""

    run: RunRef
    spec: JobSpec
    record: RunRecord
    plan: Plan


async def _work(
    config: DriverConfig,
    drain: DrainOnSignal,
    store: ObjectStore,
    loaded: _Loaded,
    stats: Stats,
    heartbeats: Heartbeats,
    traces: RequestTraces | None,
) -> int:
    run, record, plan, index = loaded.run, loaded.record, loaded.plan, config.index
    spec = _tuned(config, loaded.spec)
    pins = _pins_met(config, spec, record)
    if index is not None and index >= plan.workers:
        log.info("no rows of its own, so this worker helps", extra={"fields": {"index": index, "workers": plan.workers}})
        index = None
    kind = load_kind(spec.rendered_as(_rendering(record)))
    window, requests = first_window(spec.seats(), kind, engines=len(config.engine_urls))
    seen = _seen(config, loaded, index, heartbeats)
    if config.metrics_port is not None:
        serve_metrics(config.metrics_port, BuildInfo("driver"), StatsCollector(stats), seen, address=config.metrics_address)
    async with clients_of(spec, config.engine_urls, EngineClient) as clients:
        engines = await meet(clients, drain, config.engine_wait_s)
        if not engines:
            return exits.RESUME
        heartbeats.engine_answers()
        version = await version_for(engines, spec, root=config.model_root or spec.model.root)
        if pins.weights is not None:
            # Only now: the engine has loaded them.
            await asyncio.to_thread(weights.check, spec.model.uri, pins.weights)
        codec = _codec(config, loaded, version, kind)
        redo = record.redo
        worker = Worker(
            plan=plan,
            index=index,
            ledger=Ledger(ObjectStorage(store), run, plan),
            reader=InputReader(store, run, plan, (*spec.source.carried, *kind.columns), packed=True),
            kind=kind,
            engines=engines,
            codec=codec,
            completed=partial(answered_row, store, run, redo, kind, codec) if redo else None,
            carried=spec.source.carried,
            named_by=spec.source.key if spec.request.seeded else (),
            attempt=config.attempt,
            limits=WorkerLimits(
                window_start=window,
                requests_most=requests,
                buffer_bytes=config.buffer_mb << 20,
                flight_bytes=config.flight_mb << 20,
                dead_letters=config.dead_letters,
            ),
            rng=random.Random(),
            stats=stats,
            traces=traces,
        )
        seen.worker = worker
        drain.attach(worker.drain)
        async with compile_cache.kept(
            store, run.job, config.compiled, answered=lambda: stats.rows_answered > 0, drained=drain.asked
        ):
            return await worker.run()


def _tuned(config: DriverConfig, spec: JobSpec) -> JobSpec:
    try:
        return spec.with_tuning(config.tuning)
    except ValueError as error:
        raise ConfigError(f"NIGHTSHIFT_TUNING: {error}") from error


def _traces(run: RunRef) -> RequestTraces | None:
    try:
        return traces_of("nightshift-driver", {"nightshift.job": run.job, "nightshift.run": run.run_id})
    except CannotTrace as error:
        raise ConfigError(str(error)) from error


def _seen(config: DriverConfig, loaded: _Loaded, home: int | None, heartbeats: Heartbeats) -> RunCollector:
    facts = {"partition": loaded.run.partition, "task": loaded.spec.task, "model": loaded.spec.model.name}
    born = time.monotonic() - process_age_s()
    return RunCollector(
        loaded.plan, home, facts, config.night, born=born, start_up=heartbeats.start_up, allowed=config.dead_letters
    )


def _codec(config: DriverConfig, loaded: _Loaded, engine_version: str, kind: TaskKind) -> ParquetCodec:
    return ParquetCodec(
        run_id=loaded.run.run_id,
        plan_uid=loaded.plan.uid,
        attempt=config.attempt,
        node=config.node,
        model=loaded.spec.model.model_dump(mode="json"),
        engine_version=engine_version,
        prediction_type=kind.prediction_type,
        chunk_rows=loaded.plan.chunk_rows,
        optional=(REASONING,) if loaded.spec.request.keeps_reasoning else (),
    )


def _load(store: ObjectStore, run: RunRef) -> _Loaded:
    try:
        spec, record = load_run(store, run)
        _ = record.pins, _rendering(record)
        plan = planned(store, run, record)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{run.prefix}: spec.json or plan.json was not written by this version of nightshift: {error}"
        ) from error
    if plan is None:
        raise ConfigError(f"{run.plan_path} does not exist: extract has not finished")
    return _Loaded(run, spec, record, plan)


def _pins_met(config: DriverConfig, spec: JobSpec, record: RunRecord) -> Pins:
    """What the run pins. Raises ConfigError unless the engine's revision is known to be the run's.

    An engine does not say it. A worker with a home was submitted together with its engine; another needs the setting.
    """
    pins = record.pins
    wanted, found = revision_of(spec, pins), config.model_revision
    if wanted is None or found == wanted or (found is None and config.index is not None):
        return pins
    was = (
        f"is {found!r}, but the run's model is at {wanted!r}"
        if found
        else "is not set, and an engine does not say its revision"
    )
    raise ConfigError(f"NIGHTSHIFT_MODEL_REVISION {was}. Start the engine with --revision={wanted}, and set it to that")


def _rendering(record: RunRecord) -> Rendering:
    """Raises ValueError for one of a later release."""
    return Rendering(record.rendering or Rendering.PYTHON)


async def stand_by() -> int:
    """A host that serves another host's engine has no work of its own: it ends only by a signal, and never as done."""
    drain = DrainOnSignal()
    log.info("standing by")
    await drain.asked.wait()
    return exits.RESUME


def main() -> NoReturn:
    """Ends the process with one of the three codes of `nightshift.exits`, whatever happens."""
    log_to_stdout()
    started = time.monotonic()
    try:
        config = DriverConfig.from_environment()
        log.info("started", extra={"fields": {"run": config.run_url, "index": config.index, "attempt": config.attempt}})
        # Never closed: that would wait for threads, and one may be stuck in the store, while a drain has 15 s.
        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        code = runner.run(stand_by() if config.bystander else work(config))
    except _HOPELESS as error:
        log.error("cannot continue", extra={"fields": {"error": f"{type(error).__name__}: {error}"}})
        code = exits.CONFIG
    except _PASSING as error:
        log.error("stopping, to be resumed", extra={"fields": {"error": f"{type(error).__name__}: {error}"}})
        code = exits.RESUME
    except Exception:
        log.exception("unexpected error")
        code = exits.RESUME
    log.info("exit", extra={"fields": {"code": code, "seconds": round(time.monotonic() - started, 1)}})
    sys.stdout.flush()
    # Not sys.exit. obstore's threads release Python objects when their work is done, and if the interpreter is shutting down
    # then, it aborts (SIGABRT, in one of four tries on a busy machine). It would also wait for a thread that hangs.
    os._exit(code)
