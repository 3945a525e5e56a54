"""How much of its node's disk a pod asks for; docs/operate/compute.md has the rule.

The server writes what it fetches and compiles to one volume. Its limit is the model's size and some spare room, and the
container requests as much, so that the scheduler chooses a node with that room. A node whose disk is full evicts pods, which
is a disruption and would be repeated until the deadline. A pod that exceeds its own volume counts as failed, with a reason.
"""

from __future__ import annotations

import math
from typing import Any, Final

from nightshift.jobset.manifest.render_request import ServerRequest
from nightshift.jobset.manifest.weights import is_mounted

CACHE_PATH: Final = "/cache"
SPARE_GIB: Final = 8
"""Room in the cache beside the weights: tokenizer, kernels that the engine compiles."""
SCRATCH_GIB: Final = 2
"""What a container writes elsewhere: logs, /tmp."""
_VOLUME: Final = "cache"
_GIB: Final = 1 << 30


def weights_gib(request: ServerRequest) -> int:
    """The size of the model's files: the job's, as found when the run was opened, or the most that a worker can hold."""
    if request.spec.compute.weights_gib is not None:
        return request.spec.compute.weights_gib
    if request.pins.weights_bytes is not None:
        return max(1, math.ceil(request.pins.weights_bytes / _GIB))
    return request.worker.weights_gib_max


def cache_gib(request: ServerRequest) -> int:
    """Size of the server's cache. Weights in a bucket are not in it: they are streamed, or in the mount's own (`fuse_gib`)."""
    return SPARE_GIB + (weights_gib(request) if request.spec.model.uri.startswith("hf://") else 0)


def fuse_gib(request: ServerRequest) -> int:
    """Size of the cache of a mounted bucket; 0 without one."""
    return weights_gib(request) + SCRATCH_GIB if is_mounted(request) else 0


def server_request(request: ServerRequest) -> dict[str, str]:
    """With the cache of a mounted bucket: Kueue counts what the template requests, and the container that fills that cache is
    added to pods later."""
    return {"ephemeral-storage": f"{cache_gib(request) + fuse_gib(request) + SCRATCH_GIB}Gi"}


def driver_request() -> dict[str, str]:
    return {"ephemeral-storage": f"{SCRATCH_GIB}Gi"}


def node_disk_gb(pod_gib: int, pods: int = 1) -> int:
    """Size of a node's boot disk for pods that request `pod_gib` each, in GB, a multiple of 10.

    GKE leaves pods at least 90 % of the disk less 100 GiB; images are in that reserve (Google's "Plan node sizes").
    """
    return math.ceil((1.2 * pod_gib * pods + 120) / 10) * 10


def volume(request: ServerRequest) -> dict[str, Any]:
    return {"name": _VOLUME, "emptyDir": {"sizeLimit": f"{cache_gib(request)}Gi"}}


def mount() -> dict[str, Any]:
    return {"name": _VOLUME, "mountPath": CACHE_PATH}


def environment(request: ServerRequest) -> list[dict[str, Any]]:
    """Sends what the Hub's client and vLLM keep to the cache; not on the local runtime, where a mount has no effect."""
    if request.settings.local_folder:
        return []
    places = {"HF_HOME": f"{CACHE_PATH}/huggingface", "VLLM_CACHE_ROOT": f"{CACHE_PATH}/vllm"}
    # The Hub's client would otherwise keep a second copy of parts of the weights, for other models that share them.
    return [{"name": name, "value": value} for name, value in {**places, "HF_XET_CHUNK_CACHE_SIZE_BYTES": "0"}.items()]


def fuse_volumes(request: ServerRequest) -> list[dict[str, Any]]:
    """Where Cloud Storage FUSE keeps the mounted files, on the node's disk, under the name that GKE looks for."""
    return [{"name": "gke-gcsfuse-cache", "emptyDir": {"sizeLimit": f"{size}Gi"}}] if (size := fuse_gib(request)) else []


def fuse_annotations(request: ServerRequest) -> dict[str, str]:
    """Of the container that GKE adds for Cloud Storage FUSE. By default it may use a quarter of a CPU and 256 MiB, too little
    for parallel downloads of tens of GB. "0" is no limit, as in Google's accelerated-platforms (offline-batch-worker)."""
    if not is_mounted(request):
        return {}
    limits = {f"gke-gcsfuse/{resource}-limit": "0" for resource in ("cpu", "memory", "ephemeral-storage")}
    # The disk is in the server's request.
    requests = {"cpu": "500m", "memory": "1Gi", "ephemeral-storage": "0"}
    return {**limits, **{f"gke-gcsfuse/{resource}-request": value for resource, value in requests.items()}}
