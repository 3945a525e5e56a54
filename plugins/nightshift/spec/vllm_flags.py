"""Which settings of vLLM affect answers, and which only how fast they come. A run's digest covers the first.

The line: a setting affects answers if it is part of the function that is computed for a row (weights, precision, tokens,
template, limits, sampling, kernels), and only performance if it decides when, where or beside what that function is computed. A
flag that is not listed here affects answers: if it was harmless, that costs a computation; the other mistake mixes answers.

The line is not drawn at the last bit. vLLM is not batch-invariant by default: in which batch a row is computed changes the
order in which floating point numbers are added, so the last bits, and now and then a token. The batch also depends on what
else arrives at that moment, so two attempts differ in this way even with the same settings. docs/operate/formats.md has more.

Source: the docstrings of vLLM 0.32.0 in ``vllm.config`` and ``vllm.entrypoints.launchers.cli_args``, which
``vllm serve --help=all`` shows. Not listed on purpose, although they sound like performance:

- ``enable-prefix-caching``, ``enable-chunked-prefill``: where a pooling model does not support them, vLLM warns that setting
  them may "produce incorrect outputs" (``vllm.engine.arg_utils``).
- ``enforce-eager``, ``compilation-config``, ``optimization-level``, ``performance-mode``, and every ``...-backend``: other
  kernels compute, some of them with other precision.
- ``speculative-config``: lossless only up to numerics and to its rule of acceptance.
- ``load-format``: ``dummy`` makes random weights. ``limit-mm-per-prompt``: it refuses rows.

Each of these flags says what it takes. A flag outside the digest may be changed while a run is open, so it takes numbers,
switches and words of a list, and never a text of the author's own (`nightshift.spec.engine_checks`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

WHOLE_MOST: Final = 2**63 - 1
"""Of any number under ``engine.args``: vLLM hands them to programs that know no larger ones."""
_SIZE: Final = r"[0-9]{1,12}(\.[0-9]{1,6})?[kmgt]|[0-9]{1,12}[KMGT]"
"""As vLLM reads it (``human_readable_int``): small letters for powers of 1,000, capital ones for powers of 1,024."""
_CPUS: Final = r"[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?){0,63}"


@dataclass(frozen=True)
class Takes:
    """The values of a flag. form: in words, after "Write"; '' if a job cannot set it, and `remedy` says why.
    fits: whether a value is one of them."""

    form: str
    fits: Callable[[Any], bool]
    remedy: str = ""


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= WHOLE_MOST


def _text(pattern: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


def _one_of(*words: str) -> Takes:
    return Takes(f"one of {', '.join(words)}", lambda value: isinstance(value, str) and value in words)


def _several(each: Takes, form: str) -> Takes:
    return Takes(
        f"{form}, or a list of them",
        lambda value: all(map(each.fits, value)) and value != [] if isinstance(value, list) else each.fits(value),
    )


def _never(remedy: str) -> Takes:
    return Takes("", lambda value: False, remedy)


COUNT: Final = Takes("a whole number, 0 or more", _whole)
NUMBER: Final = Takes("a number, 0 or more", lambda value: _whole(value) or (isinstance(value, float) and 0 <= value < 1e18))
SIZE: Final = Takes("a whole number, or one with a unit, for example 8k", lambda value: _whole(value) or _text(_SIZE)(value))
SWITCH: Final = Takes("true or false", lambda value: isinstance(value, bool))
ON: Final = Takes("true, or leave it out", lambda value: value is True)
_OPERATORS: Final = "Leave it out: where records of the work go is the operator's to say, in the override file"
_VERSION: Final = r"[0-9]{1,4}(\.[0-9]{1,4}){1,2}"
_PATHS: Final = r"(/[a-z0-9_/]{1,40})(,/[a-z0-9_/]{1,40}){0,9}"


class Family(NamedTuple):
    """Flags of ``vllm serve`` that do not affect answers, for one reason, and what each takes."""

    reason: str
    flags: Mapping[str, Takes]


PERFORMANCE: Final = (
    Family(
        "Batching: which rows share an iteration of the scheduler, and in what order they come",
        {
            "max-num-batched-tokens": SIZE,
            "max-num-scheduled-tokens": COUNT,
            "max-num-active-seqs": COUNT,
            "long-prefill-token-threshold": COUNT,
            "long-prefill-token-threshold-adaptive": SWITCH,
            "scheduling-policy": _one_of("fcfs", "priority"),
            "scheduler-reserve-full-isl": SWITCH,
            "async-scheduling": SWITCH,
            "prefill-schedule-interval": COUNT,
            "disable-chunked-mm-input": SWITCH,
            "watermark": NUMBER,
            "stream-interval": COUNT,
        },
    ),
    Family(
        "The queue of the API server: what does not fit is refused with 503, and the driver sends it again",
        {"max-num-queued-reqs": COUNT, "max-num-queued-tokens": COUNT},
    ),
    Family(
        "Memory: how much room keys, values and caches have; with too little, rows wait or the engine does not start",
        {
            "gpu-memory-utilization": NUMBER,
            "device-memory-utilization": NUMBER,
            "kv-cache-memory-bytes": SIZE,
            "num-gpu-blocks-override": COUNT,
            "cpu-offload-gb": NUMBER,
            "prefix-caching-hash-algo": _one_of("sha256", "sha256_cbor", "xxhash", "xxhash_cbor"),
            "mm-processor-cache-gb": NUMBER,
            "mm-processor-cache-type": _one_of("lru", "shm"),
            "mm-shm-cache-max-object-size-mb": COUNT,
            "skip-mm-profiling": SWITCH,
            "enable-shm-tensor-arena": SWITCH,
        },
    ),
    Family(
        "CUDA graphs: for which batch sizes the same kernels are launched at once",
        {"cudagraph-capture-sizes": _several(COUNT, "a whole number"), "max-cudagraph-capture-size": COUNT},
    ),
    Family(
        "Processes and threads: how the work of one engine is divided in its pod, and how its parts talk",
        {
            "api-server-count": COUNT,
            "renderer-num-workers": COUNT,
            "max-parallel-loading-workers": COUNT,
            "disable-custom-all-reduce": SWITCH,
            "distributed-timeout-seconds": COUNT,
            "cpu-distributed-timeout-seconds": COUNT,
            "numa-bind": SWITCH,
            "numa-bind-nodes": _several(COUNT, "a whole number"),
            "numa-bind-cpus": _several(Takes("", _text(_CPUS)), 'numbers of CPUs in quotes, for example "0-7"'),
            "shutdown-timeout": COUNT,
        },
    ),
    Family(
        "Loading: how the same files of the same weights get into memory",
        {
            "download-dir": _never("Leave it out: nightshift chooses the volume, and asks for room on the node's disk"),
            "safetensors-load-strategy": _one_of("eager", "lazy", "prefetch", "torchao"),
            "safetensors-prefetch-num-threads": COUNT,
            "safetensors-prefetch-block-size": SIZE,
            "use-tqdm-on-load": SWITCH,
        },
    ),
    Family(
        "Logs, metrics and traces: what is told about the work",
        {
            "aggregate-engine-logging": ON,
            "collect-detailed-traces": _several(_one_of("all", "model", "worker"), "all, model or worker"),
            "cudagraph-metrics": SWITCH,
            "disable-access-log-for-endpoints": Takes(
                'paths of the API in quotes, for example "/health,/metrics"', _text(_PATHS)
            ),
            "disable-fastapi-docs": SWITCH,
            "disable-log-stats": ON,
            "disable-uvicorn-access-log": SWITCH,
            "enable-layerwise-nvtx-tracing": SWITCH,
            "enable-log-deltas": SWITCH,
            "enable-log-outputs": SWITCH,
            "enable-log-requests": SWITCH,
            "enable-logging-iteration-details": SWITCH,
            "enable-mfu-metrics": SWITCH,
            "enable-server-load-tracking": SWITCH,
            "jit-monitor-verbose": SWITCH,
            "kv-cache-metrics": SWITCH,
            "kv-cache-metrics-sample": NUMBER,
            "log-config-file": _never(_OPERATORS),
            "log-error-stack": SWITCH,
            "max-log-len": COUNT,
            "otlp-traces-endpoint": _never(_OPERATORS),
            "profiler-config": _never(_OPERATORS),
            "show-hidden-metrics-for-version": Takes('a version in quotes, for example "0.31"', _text(_VERSION)),
            "uvicorn-log-level": _one_of("critical", "debug", "error", "info", "trace", "warning"),
        },
    ),
)
"""All flags that do not affect answers, besides ``engine.max_num_seqs`` and the parallelism in ``compute``."""

_FLAGS: Final = {flag: takes for family in PERFORMANCE for flag, takes in family.flags.items()}


def dashed(flag: str) -> str:
    """A flag's name as vLLM reads it."""
    return flag.replace("_", "-")


def affects_answers(flag: str) -> bool:
    """Whether a flag may change answers. flag: its name with dashes or underscores, both of which vLLM reads."""
    return dashed(flag) not in _FLAGS


def takes(flag: str) -> Takes | None:
    """What a flag takes that does not affect answers; None for another."""
    return _FLAGS.get(dashed(flag))
