"""What one worker does in a second, by the roofline model: a step takes as long as its arithmetic or its memory traffic,
whichever is longer. Several engines of a worker share its accelerator, so they take turns: the rates are those of one that has
its part of the memory alone.

Sources. Roofline: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model" (CACM 52/4, 2009). A token
costs two operations for each weight that it is multiplied with, and 4 x context x width for attention; a decode step reads all
weights and the keys and values of every text once: Pope et al., "Efficiently Scaling Transformer Inference" (arXiv 2211.05102),
sections 2 and 3.1.

    prefill of a text of n tokens (s):  (2 active n + 2 n^2 width [4 for an encoder]) / (FLOP/s x COMPUTE)
    a decode step for b texts (s):      max((weights read + b x context x cached) / (bytes/s x MEMORY),
                                            b x (2 (active + head) + 4 context width) / (FLOP/s x COMPUTE)) + STEP_S
    a row of a generating task (s):     prefill + output tokens x step / b
    rows of a pooling task (s):         b rows a step: max(b x prefill, weights read / (bytes/s x MEMORY)) + STEP_S

b is how many texts are computed at once: ``max_num_seqs``, or as many as the memory holds keys and values for. A common
beginning of the texts, which vLLM's prefix cache computes once, is not known here and counts in full.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from nightshift.planner.model import Model
from nightshift.profiles import CPU_KV_CACHE_GIB, WorkerShape
from nightshift.profiles.hardware import CPU_PEAK, Peak
from nightshift.spec.engine_defaults import SHARES, UTILIZATION

COMPUTE: Final = 0.5
"""The share of the peak FLOP/s that is reached: Pope et al. report 40 to 76 % for large batches (their "MFU"); half of it,
since attention, sampling and small matrices run between the large ones."""
MEMORY: Final = 0.7
"""The share of the peak bandwidth that is reached: 77 % was measured of an A100 with Llama 3.1 8B and vLLM
(https://johnmusgrave.com/p/vllm-throughput-latency-sweep-on); 50 to 60 % on several GPUs (Databricks, "LLM Inference
Performance Engineering: Best Practices", model bandwidth utilization)."""
STEP_S: Final = 0.003
"""What a step costs the CPU: scheduling, sampling, starting kernels. A guess between vLLM before and after its release 0.6,
whose post (https://blog.vllm.ai/2024/09/05/perf-update.html) says that scheduling took 29 % of the time of Llama 3 8B on an
H100."""
ROW_S: Final = 0.0005
"""What a row costs vLLM's API server, a process beside the engine: 0.35 ms for short rows, measured
(docs/develop/benchmarks.md, P1)."""
DRIVER_ROW_S: Final = 0.000125
"""What a row costs the driver, one process, measured there too: with more API servers than that allows, it is the bound."""
CPUS_LEFT: Final = 2
"""CPUs of the server's container that API servers leave: for the engine's core, and for what starts and watches them."""
PARALLEL: Final = 0.85
"""The share that is left when accelerators share layers and exchange what they computed; a guess for links as NVLink or ICI."""
PARALLEL_PCIE: Final = 0.6
"""The same for accelerators without such links; a guess too."""
ACTIVATIONS: Final = 0.05
"""The share of the memory that activations, graphs and the allocator take; a guess."""
CPU_CORES: Final = 1.0
"""Of a worker without an accelerator: what its container requests."""


class CannotStart(ValueError):
    """The engine would not start with this model on this worker; the message says why."""


@dataclass(frozen=True)
class Tokens:
    """Mean tokens of a row. source: where the two numbers are from, in words.

    texts: in how many texts the model reads a row, each with the same share of the input: a query with each of its documents.
    None: unknown; then as few as are no longer than the model allows. assumed: no input was sampled.
    """

    input: float
    output: float
    source: str
    texts: float | None = 1.0
    assumed: bool = False


@dataclass(frozen=True)
class Estimate:
    """Rates of one worker. seats: texts computed at once. input_tokens, output_tokens: for each second. bound: what limits
    it. api_servers: how many it should have. The rates are with one: what more of them bring, no GPU has measured yet."""

    rows_per_second: float
    seats: int
    input_tokens: float
    output_tokens: float
    bound: str
    api_servers: int = 1


def estimate(
    model: Model, shape: WorkerShape, tokens: Tokens, *, seqs: int, length: int | None, flags: Mapping[str, Any] = {}
) -> Estimate:
    """seqs: ``max_num_seqs``. length: ``max_model_len``; None for the model's own. flags: ``engine.args``, with dashes. Raises
    CannotStart."""
    flops, bandwidth, free = _power(model, shape, flags)
    length = length or model.length_max
    room = float(length) if length else tokens.input + tokens.output
    texts = tokens.input / room if tokens.texts is None else tokens.texts
    texts = max(1.0, texts)
    entering, leaving = min(tokens.input / texts, room), min(tokens.output, room)
    seats = _seats(model, shape, free, seqs, min(entering + leaving, room), room)
    prefill = entering * (2 * model.active + (4 if model.encoder else 2) * entering * model.width) / flops
    if leaving <= 0:
        compute, memory = seats * prefill, model.read_bytes(seats * entering) / bandwidth
        engine, bound = (max(compute, memory) + STEP_S) / seats, "memory bandwidth" if memory > compute else "compute"
        bound = "steps" if max(compute, memory) < STEP_S else bound
    else:
        context = entering + leaving / 2
        cached = (model.cached or 0.0) * _copies(model, shape)
        memory = (model.read_bytes(seats) + seats * context * cached * model.cache_bytes) / bandwidth
        compute = seats * (2 * (model.active + model.head) + 4 * context * model.width) / flops
        decode = leaving * (max(memory, compute) + STEP_S) / seats
        engine = prefill + decode
        bound = "prefill" if prefill > decode else "memory bandwidth" if memory > compute else "compute"
    # Beside an accelerator the API server has a CPU of its own; without one they share it.
    text = max(engine, ROW_S) if shape.machine else engine + ROW_S
    bound = "API server" if shape.machine and engine < ROW_S else bound
    return Estimate(1 / (text * texts), seats, entering / text, leaving / text, bound, api_servers_for(engine, shape))


def api_servers_for(engine_s: float, shape: WorkerShape) -> int:
    """So many that they are no longer the bound of an engine that computes a row in `engine_s` seconds, as far as the machine's
    CPUs and the driver allow. Of several engines, which share both, each has its part."""
    return max(1, math.ceil(min(math.ceil(ROW_S / engine_s), api_servers_most(shape)) / shape.engines))


def api_servers_most(shape: WorkerShape) -> int:
    """As many as the machine's CPUs allow, and as the driver can keep busy."""
    if shape.machine is None or shape.hosts > 1 or shape.is_tpu:
        return 1
    return max(1, min(int(shape.requests["cpu"]) - CPUS_LEFT, int(ROW_S / DRIVER_ROW_S)))


def cached_tokens(model: Model, shape: WorkerShape, flags: Mapping[str, Any] = {}) -> float:
    """How many tokens' keys and values fit one worker's memory. Raises CannotStart, also for a model that caches none."""
    if not model.cached:
        raise CannotStart("the model caches no keys and values")
    return _power(model, shape, flags)[2] / (model.cached * model.cache_bytes * _copies(model, shape))


def _power(model: Model, shape: WorkerShape, flags: Mapping[str, Any]) -> tuple[float, float, float]:
    """(FLOP/s, bytes/s, bytes for keys and values) that are reached. Raises CannotStart."""
    if model.heads and model.heads % shape.tensor_parallel:
        raise CannotStart(
            f"The model's {model.heads} attention heads cannot be divided among {shape.tensor_parallel} accelerators "
            "(tensor_parallel), so vLLM refuses to start"
        )
    hardware = shape.profile.hardware
    peak: Peak = hardware.peak if hardware else CPU_PEAK
    count = shape.accelerators_in_all if hardware else CPU_CORES
    share = 1.0 if count <= 1 else PARALLEL if peak.linked else PARALLEL_PCIE
    rate = peak.fp32 if model.number_bytes == 4 else peak.bf16
    if model.weight_bytes == 1 and peak.fp8:
        rate = peak.fp8
    return (
        rate * 1e12 * count * COMPUTE * share,
        peak.bandwidth * 1e9 * count * MEMORY * share,
        _free(model, shape, flags),
    )


def _free(model: Model, shape: WorkerShape, flags: Mapping[str, Any]) -> float:
    """Of one engine: several have equal parts of the memory, and each the whole model."""
    weights, hardware = model.weights_bytes, shape.profile.hardware
    if hardware is None:
        kv_cache = float((CPU_KV_CACHE_GIB << 30) // shape.engines)
        most = float(shape.weights_gib_max << 30) - kv_cache
        if weights > most:
            raise CannotStart(_too_large(weights, shape, most))
        return kv_cache
    memory = hardware.memory * 1e9 * shape.accelerators_in_all
    most = memory * (_utilization(flags, shape) - ACTIVATIONS)
    if weights >= most:
        raise CannotStart(_too_large(weights, shape, most))
    return most - weights


def _utilization(flags: Mapping[str, Any], shape: WorkerShape) -> float:
    name, found = next(((flag, flags[flag]) for flag in SHARES if flag in flags), ("", UTILIZATION / shape.engines))
    try:
        share = float(found)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise CannotStart(f"engine.args has {name}: {found!r}, and vLLM takes a number above 0 and up to 1")
    return share


def _copies(model: Model, shape: WorkerShape) -> float:
    """How often the accelerators that share a layer hold its keys and values: more than once if there are fewer groups of heads
    than accelerators."""
    return max(1.0, shape.tensor_parallel / model.groups)


def _too_large(weights: float, shape: WorkerShape, most: float) -> str:
    each = f" for each of {shape.engines} engines (compute.engines)" if shape.engines > 1 else ""
    room = f"{shape.profile.name} has room for {max(0.0, most) / 1e9:,.1f} GB{each}"
    return f"The model does not fit: its weights are {weights / 1e9:,.1f} GB, and {room}"


def _seats(model: Model, shape: WorkerShape, free: float, seqs: int, held: float, length: float) -> int:
    """How many texts fit. held: tokens of one. Raises CannotStart if not even one of the greatest length does."""
    if not model.cached:
        return seqs
    each = model.cached * model.cache_bytes * _copies(model, shape)
    if free < each * length:
        raise CannotStart(
            f"The model does not fit: after its weights {free / 1e9:,.1f} GB are left, and a text of {length:,.0f} tokens "
            f"(max_model_len) needs {each * length / 1e9:,.1f} GB for keys and values. If no text is as long, write "
            f"engine.max_model_len: {max(1, int(free / each))} or less"
        )
    return max(1, min(seqs, int(free / (each * held))))
