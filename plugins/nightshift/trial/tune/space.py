"""Which points a job may be started at, and the job as it is at one of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from nightshift.planner.roofline import api_servers_most
from nightshift.spec.engine_defaults import API_SERVERS, SERVED_SMALL, SHARES, TOKENS, number, vllm_tokens
from nightshift.spec.vllm_flags import dashed
from nightshift.trial.tune.points import Point, Space

if TYPE_CHECKING:
    from nightshift.spec import JobSpec
    from nightshift.spec.engine import Engine

TOKENS_LEAST: Final = 512
TOKENS_MOST: Final = 65_536
SEQS_LEAST: Final = 8
SEQS_MOST: Final = 4_096
STEPS: Final = 3
"""Doublings and halvings around the default."""
PARALLEL: Final = (1, 2, 4, 8)
SERVERS: Final = (1, 2, 4)
ENGINES: Final = (1, 2, 4)
COMPUTE: Final = ("engines", "tensor_parallel")
"""What a point changes in the section ``compute``."""
_POOLING: Final = "--runner=pooling"


def space_of(spec: JobSpec, server_args: tuple[str, ...] = (), seats: int | None = None, servers: int = 1) -> Space:
    """server_args: of the job's task kind. seats: rows at once that the memory holds, by the roofline; None if unknown.
    servers: API servers that a night's engine gets for its rows; one if they are not short.

    Tokens a step and rows at once by powers of two around what the job has now; several API servers where it has them now;
    several engines there, too, and where the job states them; parallelism as the profile allows.
    """
    default = _default(spec, server_args, servers)
    most = min(SEQS_MOST, default.max_num_seqs << STEPS)
    if seats is not None:
        # Twice as many as fit on average: rows differ. The soak finds out.
        most = max(default.max_num_seqs, min(most, 2 * _power(seats)))
    # A pooling model without chunked prefill does not start with fewer tokens a step than its longest row.
    floor = max(TOKENS_LEAST, spec.engine.max_model_len or 0) if _POOLING in server_args else TOKENS_LEAST
    own = default.tensor_parallel
    axes = {
        "max_num_batched_tokens": _powers(default.max_num_batched_tokens, floor, TOKENS_MOST),
        "max_num_seqs": _powers(default.max_num_seqs, SEQS_LEAST, most),
        "api_servers": _servers(spec, default.api_servers),
        "engines": _engines(spec, default),
        "tensor_parallel": tuple(each for each in PARALLEL if each == own or _fits(spec, tensor_parallel=each)),
    }
    return Space(default, {axis: values if values else (getattr(default, axis),) for axis, values in axes.items()})


def at(spec: JobSpec, point: Point, default: Point) -> JobSpec:
    """The job as a trial of the point starts it. What a night's engine gets by default for its rows, its file does not say, so
    here API servers are stated."""
    job = patched(spec, point, default)
    if point.api_servers == _stated_servers(job):
        return job
    return job.model_copy(update={"engine": _with(job.engine, {API_SERVERS: point.api_servers})})


def patched(spec: JobSpec, point: Point, default: Point) -> JobSpec:
    """The job as its file has it with the changes of a point; its own where that is the default."""
    if point == default:
        return spec
    changes = changes_of(spec, point, default)
    engine = _with(spec.engine, changes.get("args", {})).model_copy(update={"max_num_seqs": point.max_num_seqs})
    compute = spec.compute.model_copy(update={name: changes[name] for name in COMPUTE if name in changes})
    return spec.model_copy(update={"engine": engine, "compute": compute})


def changes_of(spec: JobSpec, point: Point, default: Point) -> dict[str, Any]:
    """What a job file has to say besides what it says now: ``max_num_seqs`` and ``args`` of its engine, and those of `COMPUTE`.

    Tokens a step are always stated, except for the default: left out, vLLM makes them of the other settings.
    """
    found: dict[str, Any] = {}
    if point.max_num_seqs != default.max_num_seqs:
        found["max_num_seqs"] = point.max_num_seqs
    if point != default and point.max_num_batched_tokens != number(spec.engine.flags.get(TOKENS)):
        found["args"] = {TOKENS: point.max_num_batched_tokens}
    if point.api_servers != default.api_servers:
        found["args"] = {**found.get("args", {}), API_SERVERS: point.api_servers}
    return found | {name: getattr(point, name) for name in COMPUTE if getattr(point, name) != getattr(default, name)}


def accelerators(spec: JobSpec) -> int:
    """Of one worker, over all its hosts; 1 for a worker without."""
    worker = spec.compute.worker()
    return max(1, worker.hosts * worker.accelerators)


def _default(spec: JobSpec, server_args: tuple[str, ...], servers: int) -> Point:
    worker, own = spec.compute.worker(), spec.defaults()
    seqs, tokens = own.seats, number(spec.engine.flags.get(TOKENS)) or own.flags.get(TOKENS)
    if tokens is None:
        tokens = vllm_tokens(worker, offline=False) or SERVED_SMALL
        if length := spec.engine.max_model_len:
            # No more than all rows at once have; a pooling model without chunked prefill gets a whole row at least.
            tokens = max(tokens, length) if _POOLING in server_args else min(tokens, seqs * length)
    if API_SERVERS in spec.engine.flags:
        servers = _stated_servers(spec)
    tokens = max(tokens, seqs)
    return Point(tokens, seqs, api_servers=servers, engines=worker.engines, tensor_parallel=worker.tensor_parallel)


def _stated_servers(spec: JobSpec) -> int:
    return max(1, number(spec.engine.flags.get(API_SERVERS)) or 1)


def _servers(spec: JobSpec, default: int) -> tuple[int, ...]:
    """One alone where it is not the bound: each takes memory and CPUs."""
    worker = spec.compute.worker()
    most = max(default, api_servers_most(worker) // worker.engines)
    return tuple(sorted({default} | {each for each in SERVERS if default > 1 and each <= most}))


def _engines(spec: JobSpec, default: Point) -> tuple[int, ...]:
    """One alone unless rows are short or the job states several: then the accelerator may not be the bound."""
    stated = (spec.engine.flags.get(name) for name in SHARES)
    share = max((each for each in stated if isinstance(each, int | float)), default=0.0)
    wanted = ENGINES if max(default.engines, default.api_servers) > 1 else ()
    fit = {each for each in wanted if each * share <= 1 and _fits(spec, engines=each)}
    return tuple(sorted({default.engines} | fit))


def _with(engine: Engine, flags: Mapping[str, Any]) -> Engine:
    """With these flags, however the author writes their names."""
    kept = {name: value for name, value in engine.args.items() if dashed(name) not in flags}
    return engine.model_copy(update={"args": {**kept, **flags}})


def _powers(default: int, least: int, most: int) -> tuple[int, ...]:
    """The default, and powers of two around it."""
    own = _power(default)
    around = [own << step for step in range(STEPS + 1)] + [own >> step for step in range(1, STEPS + 1)]
    found = {value for value in around if least <= value <= most}
    # Beside a default that is no power of two, its neighbour would be tried for nothing.
    near = {value for value in found if value != default and default * 0.75 < value < default * 1.5}
    return tuple(sorted({default} | (found - near)))


def _power(value: int) -> int:
    """The smallest power of two that is no less."""
    return 1 << max(0, value - 1).bit_length()


def _fits(spec: JobSpec, **stated: int) -> bool:
    """Whether the profile allows what the job would state besides."""
    try:
        spec.compute.model_copy(update=stated).worker()
    except ValueError:
        return False
    return True
