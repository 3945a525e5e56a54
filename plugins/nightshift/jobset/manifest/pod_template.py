"""What the pods of a run's JobSet and of a stream's Deployments have in common: containers, identity, placement.

Every field satisfies the pod security standard "restricted", except that a TPU's server is root, which "baseline" admits.
"""

from __future__ import annotations

from typing import Any, Final

from nightshift.jobset.manifest import disk, ports, reservation, traces
from nightshift.jobset.manifest.constants import (
    GRACE_SECONDS,
    LIVENESS_FAILURES,
    LIVENESS_SECONDS,
    METRICS_PORT,
    PROBE_SECONDS,
    SERVER,
)
from nightshift.jobset.manifest.render_request import ServerRequest
from nightshift.jobset.manifest.server import environment, image, launch
from nightshift.jobset.manifest.weights import mounts, volumes
from nightshift.profiles import WorkerShape
from nightshift.settings import Settings

_RESTRICTED: Final = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
_CLIENT_USER: Final = 65532
SERVER_IDENTITY: Final = {"runAsUser": 2000, "runAsGroup": 0}
"""The user ``vllm`` of vLLM's image, whose home and caches are its own; they belong to group 0."""

_TPU_SERVER: Final = {"allowPrivilegeEscalation": False, "runAsNonRoot": False, "runAsUser": 0, "runAsGroup": 0}
"""As in the manifests that Google and vLLM publish for v5e and v6e: root, without privileged mode or added capabilities, which
GKE has not needed since 1.28. The chips are devices of the host, and no manifest was found in which another user opens them."""


def container_of(request: ServerRequest, *, sidecar: bool) -> dict[str, Any]:
    """The server's container. sidecar: beside a driver, which it outlives."""
    worker = request.worker
    container: dict[str, Any] = {
        "name": SERVER,
        "image": image(request),
        **pull_policy(request.settings),
        **({"restartPolicy": "Always"} if sidecar else {}),
        **launch(request),
        "env": environment(request),
        "ports": ports.of_containers(worker.engines),
        "resources": {"requests": {**worker.requests, **disk.server_request(request)}, "limits": worker.limits},
        "securityContext": _TPU_SERVER if worker.is_tpu else {**_RESTRICTED, **SERVER_IDENTITY},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}, disk.mount(), *mounts(request)],
    }
    if worker.hosts > 1:
        # Only host 0 has an API to probe, and a single host cannot be restarted: the driver there watches the whole engine.
        return container
    container["startupProbe"] = {
        # They start one after another, so the last one answers last.
        "httpGet": {"path": "/health", "port": ports.name(worker.engines - 1)},
        "periodSeconds": PROBE_SECONDS,
        "timeoutSeconds": PROBE_SECONDS,
        "failureThreshold": request.patience_seconds // PROBE_SECONDS,
    }
    if worker.engines > 1:
        # A kubelet would end all engines for one that hangs. `nightshift.jobset.manifest.supervisor` ends that one alone.
        return container
    container["livenessProbe"] = {
        "httpGet": {"path": "/health", "port": ports.name(0)},
        "periodSeconds": LIVENESS_SECONDS,
        "timeoutSeconds": LIVENESS_SECONDS // 3,
        "failureThreshold": LIVENESS_FAILURES,
    }
    return container


def client_of(settings: Settings, *, name: str, image: str, command: list[str], env: list[dict[str, Any]]) -> dict[str, Any]:
    """The container of a nightshift program that calls an engine."""
    return {
        "name": name,
        "image": image,
        **pull_policy(settings),
        "command": command,
        "env": [*env, *traces.client_env(settings)],
        "ports": [{"name": "metrics", "containerPort": METRICS_PORT}],
        "resources": {
            "requests": {"cpu": "500m", "memory": "512Mi", **disk.driver_request()},
            "limits": {"memory": "2Gi"},
        },
        "securityContext": {
            **_RESTRICTED,
            "readOnlyRootFilesystem": True,
            "runAsUser": _CLIENT_USER,
            "runAsGroup": _CLIENT_USER,
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }


def identity(account: str) -> dict[str, Any]:
    """The part of a pod's spec about its identity and its end."""
    return {
        "serviceAccountName": account,
        # The Google service account comes from the metadata server; no pod calls the cluster's API.
        "automountServiceAccountToken": False,
        # Otherwise a Service named vllm would set VLLM_PORT, which vLLM reads.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    }


def scratch() -> dict[str, Any]:
    """The volume that `client_of` mounts."""
    return {"name": "tmp", "emptyDir": {}}


def volumes_of(request: ServerRequest) -> list[dict[str, Any]]:
    """What `container_of` mounts."""
    return [
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": request.worker.shared_memory}},
        disk.volume(request),
        *volumes(request),
        *disk.fuse_volumes(request),
    ]


def placement(worker: WorkerShape, settings: Settings) -> dict[str, Any]:
    """The part of a pod's spec about the nodes on which it may run. Raises SettingsError for a reservation without a name."""
    selector = {**worker.node_selector, **reservation.selector(worker, settings)}
    found: dict[str, Any] = {"nodeSelector": selector, "tolerations": worker.tolerations}
    return {name: value for name, value in found.items() if value}


def across_zones(labels: dict[str, str]) -> list[dict[str, Any]]:
    """Spot capacity is taken away zone by zone: of pods across zones, only a part is lost. labels: what they have in common."""
    return [
        {
            "topologyKey": "topology.kubernetes.io/zone",
            "maxSkew": 1,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": labels},
        }
    ]


def pull_policy(settings: Settings) -> dict[str, str]:
    return {"imagePullPolicy": settings.image_pull_policy} if settings.image_pull_policy else {}
