"""How vLLM is started: on one host, several times on one host, on the GPUs of several, or on a TPU slice of several.

Several hosts share one pod template, so each learns its part from JOB_COMPLETION_INDEX, which the Job sets: host 0 is the
head and has the API; the others work for it. On GPUs vLLM does this itself; on TPUs it needs Ray.
"""

from __future__ import annotations

import inspect
from typing import Any, Final

from nightshift.jobset.labels import JOB_INDEX_LABEL
from nightshift.jobset.manifest import disk, escaping, ports, supervisor, traces
from nightshift.jobset.manifest.constants import LIVENESS_FAILURES, LIVENESS_SECONDS, REPLICATED_JOB
from nightshift.jobset.manifest.render_request import ServerRequest
from nightshift.jobset.manifest.weights import is_mounted, model_args
from nightshift.profiles import CPU_KV_CACHE_GIB, WorkerShape
from nightshift.run.pins import Pins
from nightshift.settings import Settings
from nightshift.spec import JobSpec, StreamSpec
from nightshift.spec.engine_defaults import KV_CACHE, SHARES, Defaults, version_of
from nightshift.tasks.base import load_kind

MASTER_PORT: Final = 29501
RAY_PORT: Final = 6379

SERVE: Final = ["python3", "-m", "vllm.entrypoints.cli.main", "serve"]
"""``vllm serve`` by its module: the program ``vllm`` names its interpreter by the path of the machine that installed it."""

_GPU_HOST: Final = """\
if [ "$JOB_COMPLETION_INDEX" != 0 ]; then set -- "$@" --headless; fi
exec python3 -m vllm.entrypoints.cli.main serve "$@"
"""

# The trap is needed because a container's first process ignores signals that it does not handle. It runs while the shell
# waits for a background process.
_TPU_HOST: Final = """\
trap 'exit 143' TERM
behind() { "$@" & wait $!; }
chips="--resources={\\"TPU\\": $CHIPS}"
if [ "$JOB_COMPLETION_INDEX" != 0 ]; then
  while :; do
    behind ray start --address="$HEAD:$RAY_PORT" "$chips" --block
    behind sleep 5
  done
fi
behind ray start --head --port="$RAY_PORT" "$chips"
behind python3 -c "
import ray, time
ray.init(address='auto')
while sum(node['Alive'] for node in ray.nodes()) < $HOSTS:
    time.sleep(2)
"
exec python3 -m vllm.entrypoints.cli.main serve "$@"
"""


def server_args(
    spec: JobSpec | StreamSpec,
    worker: WorkerShape | None = None,
    defaults: Defaults | None = None,
    *,
    mounted: bool = False,
    commit: str | None = None,
) -> list[str]:
    """The arguments of `SERVE` on one host: the model, what the task kind needs, the engine's settings, its defaults, then the
    user's own flags.

    As a kubelet reads them: ``$(ENGINE_PORT)`` is the port, and ``$$`` a dollar sign. If a worker has several engines, the port
    is missing, because each has its own.

    worker: by default the job's own. defaults: by default those for it, and for an engine of this release's version. mounted:
    whether weights in a bucket are mounted. commit: of a model on the Hub, if the run pins one.
    """
    worker = worker or spec.compute.worker()
    model, flags = model_args(spec, mounted=mounted, commit=commit)
    return [escaping.literal(model), *flags, *_common(spec, worker, defaults or spec.defaults(worker))]


def launch(request: ServerRequest) -> dict[str, Any]:
    """``command`` and ``args`` of the server's container."""
    started = _start(request)
    if request.worker.engines > 1:
        started = _several(request, started)
    started["args"] += traces.server_args(request.settings)
    if request.settings.local_folder:
        # The engine has no password. Here a pod's network is the machine's; in a cluster the kubelet and the metrics collector
        # call the pod's address, and a NetworkPolicy keeps others out.
        started["args"] += [escaping.flag("host", "127.0.0.1")]
    return started


def _start(request: ServerRequest) -> dict[str, Any]:
    worker = request.worker
    args = server_args(request.spec, worker, defaults_of(request), mounted=is_mounted(request), commit=request.pins.commit)
    if worker.hosts == 1:
        return {"command": SERVE, "args": args}
    if worker.is_tpu:
        several, program = [escaping.flag("distributed-executor-backend", "ray")], _TPU_HOST
    else:
        several, program = [escaping.flag("nnodes", worker.hosts), "--node-rank=$(JOB_COMPLETION_INDEX)"], _GPU_HOST
        several += ["--master-addr=$(HEAD)", escaping.flag("master-port", MASTER_PORT)]
    return {"command": ["sh", "-c", program, "host"], "args": [*args[:1], *several, *args[1:]]}


def _several(request: ServerRequest, one: dict[str, Any]) -> dict[str, Any]:
    """What starts one engine, several times."""
    limits = map(str, (request.patience_seconds_each, LIVENESS_SECONDS * LIVENESS_FAILURES))
    args = [",".join(ports.references(request.worker.engines)), *limits, *one["command"], *one["args"]]
    return {"command": ["python3", "-c", escaping.literal(inspect.getsource(supervisor))], "args": args}


def defaults_of(request: ServerRequest) -> Defaults:
    """With what this engine starts where the author says nothing."""
    return request.spec.defaults(request.worker, version_of(image(request)), request.hints)


def image(request: ServerRequest) -> str:
    """The run's pin: a later setting is for later runs."""
    name = image_setting(request.worker, request.settings)
    return pinned_image(request.pins, name) or str(getattr(request.settings, name))


def pinned_image(pins: Pins, name: str) -> str | None:
    """name: of `image_setting`. A run that was opened before there was one for CPUs keeps the image that it had."""
    found: str | None = getattr(pins, name)
    return found or (pins.server_image if name == "cpu_server_image" else None)


def image_setting(worker: WorkerShape, settings: Settings) -> str:
    """Which image the worker's engine runs: the name of a setting, and of a pin of the run."""
    if worker.is_tpu:
        return "tpu_server_image"
    return "cpu_server_image" if worker.machine is None and not settings.local_folder else "server_image"


def environment(request: ServerRequest) -> list[dict[str, Any]]:
    worker = request.worker
    env: list[dict[str, Any]] = [
        *ports.environment(worker.engines),
        {"name": "VLLM_NO_USAGE_STATS", "value": "1"},
        *disk.environment(request),
        *traces.server_env(request.settings),
    ]
    if worker.machine is None:
        env += [*_threads(), *_kv_cache(request.spec, worker)]
    if worker.hosts == 1:
        return env
    env += [
        {"name": "SLICE", "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{JOB_INDEX_LABEL}']"}}},
        {"name": "HEAD", "value": f"{request.name}-{REPLICATED_JOB}-$(SLICE)-0.{request.name}"},
        {"name": "VLLM_HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]
    if worker.is_tpu:
        ray = {"TPU_MULTIHOST_BACKEND": "ray", "JAX_PLATFORMS": "", "RAY_PORT": str(RAY_PORT)}
        ray |= {"CHIPS": str(worker.accelerators), "HOSTS": str(worker.hosts)}
        env += [{"name": name, "value": value} for name, value in ray.items()]
    return env


def _threads() -> list[dict[str, Any]]:
    """One thread for each CPU that the container requests, rounded up, if the engine computes on the CPU.

    By default vLLM's CPU build takes the node's cores and binds a thread to each, and the next pod there takes the same cores.
    With an accelerator, vLLM serves with one thread unless a variable changes that.
    """
    request = {"resourceFieldRef": {"resource": "requests.cpu", "divisor": "1"}}
    return [{"name": "VLLM_CPU_OMP_THREADS_BIND", "value": "nobind"}, {"name": "OMP_NUM_THREADS", "valueFrom": request}]


def _kv_cache(spec: JobSpec | StreamSpec, worker: WorkerShape) -> list[dict[str, Any]]:
    """The size of the KV cache of an engine that computes on the CPU, unless the job's own flags decide it.

    By default vLLM's CPU build claims most of the node's memory, whatever the container's limit is, and does not start if other
    pods use some of it (vLLM 0.32, module vllm.v1.worker.cpu_worker).
    """
    if worker.engines > 1 or {KV_CACHE, *SHARES} & set(spec.engine.flags):
        return []  # The parts of several are no whole GiB, which are all that the variable takes.
    return [{"name": "VLLM_CPU_KVCACHE_SPACE", "value": str(CPU_KV_CACHE_GIB)}]


def _common(spec: JobSpec | StreamSpec, worker: WorkerShape, defaults: Defaults) -> list[str]:
    args = [escaping.flag("served-model-name", spec.model.name)]
    if worker.engines == 1:
        args.append("--port=$(ENGINE_PORT)")
    args += [*load_kind(spec).server_args, escaping.flag("max-num-seqs", defaults.seats)]
    if spec.engine.max_model_len is not None:
        args.append(escaping.flag("max-model-len", spec.engine.max_model_len))
    args.append(escaping.flag("dtype", spec.engine.dtype))
    if worker.tensor_parallel > 1:
        args.append(escaping.flag("tensor-parallel-size", worker.tensor_parallel))
    if worker.pipeline_parallel > 1:
        args.append(escaping.flag("pipeline-parallel-size", worker.pipeline_parallel))
    return [*args, *escaping.flags(defaults.flags), *escaping.flags(spec.engine.args)]
