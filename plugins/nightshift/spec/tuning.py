"""Which settings of vLLM affect answers, and which only how fast they come. A run's digest covers the first.

The line: a setting affects answers if it is part of the function that is computed for a row (weights, precision, tokens,
template, limits, sampling, kernels), and only performance if it decides when, where or beside what that function is computed. A
flag that is not listed here affects answers: if it was harmless, that costs a computation; the other mistake mixes answers.

The line is not drawn at the last bit. vLLM is not batch-invariant by default: in which batch a row is computed changes the
order in which floating point numbers are added, so the last bits, and now and then a token. The batch also depends on what
else arrives at that moment, so two attempts differ in this way even with the same settings. docs/formats.md says more.

Source: the docstrings of vLLM 0.32.0 in ``vllm.config`` and ``vllm.entrypoints.launchers.cli_args``, which
``vllm serve --help=all`` shows. Not listed on purpose, although they sound like performance:

- ``enable-prefix-caching``, ``enable-chunked-prefill``: where a pooling model does not support them, vLLM warns that setting
  them may "produce incorrect outputs" (``vllm.engine.arg_utils``).
- ``enforce-eager``, ``compilation-config``, ``optimization-level``, ``performance-mode``, and every ``...-backend``: other
  kernels compute, some of them with other precision.
- ``speculative-config``: lossless only up to numerics and to its rule of acceptance.
- ``load-format``: ``dummy`` makes random weights. ``limit-mm-per-prompt``: it refuses rows.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Family(NamedTuple):
    """Flags of ``vllm serve`` that do not affect answers, for one reason."""

    reason: str
    flags: tuple[str, ...]


PERFORMANCE: Final = (
    Family(
        "Batching: which rows share an iteration of the scheduler, and in what order they come",
        (
            "max-num-batched-tokens",
            "max-num-scheduled-tokens",
            "max-num-active-seqs",
            "long-prefill-token-threshold",
            "long-prefill-token-threshold-adaptive",
            "scheduling-policy",
            "scheduler-reserve-full-isl",
            "async-scheduling",
            "prefill-schedule-interval",
            "disable-chunked-mm-input",
            "watermark",
            "stream-interval",
        ),
    ),
    Family(
        "The queue of the API server: what does not fit is refused with 503, and the driver sends it again",
        ("max-num-queued-reqs", "max-num-queued-tokens"),
    ),
    Family(
        "Memory: how much room keys, values and caches have; with too little, rows wait or the engine does not start",
        (
            "gpu-memory-utilization",
            "device-memory-utilization",
            "kv-cache-memory-bytes",
            "num-gpu-blocks-override",
            "cpu-offload-gb",
            "prefix-caching-hash-algo",
            "mm-processor-cache-gb",
            "mm-processor-cache-type",
            "mm-shm-cache-max-object-size-mb",
            "skip-mm-profiling",
            "enable-shm-tensor-arena",
        ),
    ),
    Family(
        "CUDA graphs: for which batch sizes the same kernels are launched at once",
        ("cudagraph-capture-sizes", "max-cudagraph-capture-size"),
    ),
    Family(
        "Processes and threads: how the work of one engine is divided in its pod, and how its parts talk",
        (
            "api-server-count",
            "renderer-num-workers",
            "max-parallel-loading-workers",
            "disable-custom-all-reduce",
            "distributed-timeout-seconds",
            "cpu-distributed-timeout-seconds",
            "numa-bind",
            "numa-bind-nodes",
            "numa-bind-cpus",
            "shutdown-timeout",
        ),
    ),
    Family(
        "Loading: how the same files of the same weights get into memory",
        (
            "download-dir",
            "safetensors-load-strategy",
            "safetensors-prefetch-num-threads",
            "safetensors-prefetch-block-size",
            "use-tqdm-on-load",
        ),
    ),
    Family(
        "Logs, metrics and traces: what is told about the work",
        (
            "aggregate-engine-logging",
            "collect-detailed-traces",
            "cudagraph-metrics",
            "disable-access-log-for-endpoints",
            "disable-fastapi-docs",
            "disable-log-stats",
            "disable-uvicorn-access-log",
            "enable-layerwise-nvtx-tracing",
            "enable-log-deltas",
            "enable-log-outputs",
            "enable-log-requests",
            "enable-logging-iteration-details",
            "enable-mfu-metrics",
            "enable-server-load-tracking",
            "jit-monitor-verbose",
            "kv-cache-metrics",
            "kv-cache-metrics-sample",
            "log-config-file",
            "log-error-stack",
            "max-log-len",
            "otlp-traces-endpoint",
            "profiler-config",
            "show-hidden-metrics-for-version",
            "uvicorn-log-level",
        ),
    ),
)
"""All flags that do not affect answers, besides ``engine.max_num_seqs`` and the parallelism in ``compute``."""

_FLAGS: Final = frozenset(flag for family in PERFORMANCE for flag in family.flags)


def affects_answers(flag: str) -> bool:
    """Whether a flag may change answers. flag: its name with dashes or underscores, both of which vLLM reads."""
    return flag.replace("_", "-") not in _FLAGS
