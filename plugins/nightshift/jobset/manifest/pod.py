"""The pod of a worker's host: vLLM as a native sidecar, and the driver.

A native sidecar is an init container with ``restartPolicy: Always``. If a worker is one host, the
startupProbe delays the driver until the engine answers. The sidecar gets SIGTERM only after the driver has ended. Every field
satisfies the pod security standard "restricted", except that a TPU's server is root, which "baseline" admits.
"""

from __future__ import annotations

from typing import Any, Final

from nightshift.jobset.labels import JOB_INDEX_LABEL, RUN_LABEL
from nightshift.jobset.manifest import disk
from nightshift.jobset.manifest.constants import DRIVER, ENGINE_PORT, GRACE_SECONDS, METRICS_PORT, SERVER
from nightshift.jobset.manifest.order import Order
from nightshift.jobset.manifest.server import environment, image, launch
from nightshift.jobset.manifest.weights import is_mounted, model_args, mounts, volumes

PROBE_SECONDS: Final = 5
LIVENESS_SECONDS: Final = 30
LIVENESS_FAILURES: Final = 4
"""Two minutes of silence: less than the driver waits for an engine (`nightshift.driver.health`), more than a busy one needs."""

_RESTRICTED: Final = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
_DRIVER_USER: Final = 65532
_SERVER_USER: Final = 2000
"""The user ``vllm`` of vLLM's image, whose home and caches are its own; they belong to group 0."""

_TPU_SERVER: Final = {"allowPrivilegeEscalation": False, "runAsNonRoot": False, "runAsUser": 0, "runAsGroup": 0}
"""As in the manifests that Google and vLLM publish for v5e and v6e: root, without privileged mode or added capabilities, which
GKE has not needed since 1.28. The chips are devices of the host, and no manifest was found in which another user opens them."""


def pod(order: Order, labels: dict[str, str]) -> dict[str, Any]:
    """The pod's spec. labels: of the pod."""
    worker, settings = order.worker, order.settings
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "serviceAccountName": settings.service_account,
        # The Google service account comes from the metadata server; no pod calls the cluster's API.
        "automountServiceAccountToken": False,
        # Otherwise a Service named vllm would set VLLM_PORT, which vLLM reads.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "initContainers": [_server(order)],
        "containers": [_driver(order)],
        "volumes": [
            {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": worker.shared_memory}},
            {"name": "tmp", "emptyDir": {}},
            disk.volume(order),
            *volumes(order),
        ],
    }
    if settings.priority_class:
        spec["priorityClassName"] = settings.priority_class
    if worker.node_selector:
        spec["nodeSelector"] = worker.node_selector
    if worker.tolerations:
        spec["tolerations"] = worker.tolerations
    if worker.hosts == 1:
        # Spot capacity is taken away zone by zone: a run across zones loses only a part of its workers.
        spec["topologySpreadConstraints"] = [
            {
                "topologyKey": "topology.kubernetes.io/zone",
                "maxSkew": 1,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {RUN_LABEL: labels[RUN_LABEL]}},
            }
        ]
    return spec


def _server(order: Order) -> dict[str, Any]:
    worker = order.worker
    container: dict[str, Any] = {
        "name": SERVER,
        "image": image(order),
        **_pull_policy(order),
        "restartPolicy": "Always",
        **launch(order),
        "env": environment(order),
        "ports": [{"name": "engine", "containerPort": ENGINE_PORT}],
        "resources": {"requests": {**worker.requests, **disk.server_request(order)}, "limits": worker.limits},
        "securityContext": _TPU_SERVER if worker.is_tpu else {**_RESTRICTED, "runAsUser": _SERVER_USER, "runAsGroup": 0},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}, disk.mount(), *mounts(order)],
    }
    if worker.hosts > 1:
        # Only host 0 has an API to probe, and a single host cannot be restarted: the driver there watches the whole engine.
        return container
    health = {"path": "/health", "port": "engine"}
    container["startupProbe"] = {
        "httpGet": health,
        "periodSeconds": PROBE_SECONDS,
        "timeoutSeconds": PROBE_SECONDS,
        "failureThreshold": order.patience_seconds // PROBE_SECONDS,
    }
    container["livenessProbe"] = {
        "httpGet": health,
        "periodSeconds": LIVENESS_SECONDS,
        "timeoutSeconds": LIVENESS_SECONDS // 3,
        "failureThreshold": LIVENESS_FAILURES,
    }
    return container


def _driver(order: Order) -> dict[str, Any]:
    env: list[dict[str, Any]] = [
        {"name": "NIGHTSHIFT_RUN_URL", "value": order.run.url(order.settings.bucket)},
        {"name": "ENGINE_PORT", "value": str(ENGINE_PORT)},
        {"name": "ENGINE_URL", "value": "http://127.0.0.1:$(ENGINE_PORT)"},
        {"name": "NIGHTSHIFT_MODEL_ROOT", "value": model_args(order.spec, mounted=is_mounted(order))[0]},
        # From the current job, not the frozen one: a tolerance raised since then applies.
        {"name": "NIGHTSHIFT_DEAD_LETTERS", "value": str(order.spec.dead_letters.allowed(order.rows))},
        {"name": "NIGHTSHIFT_METRICS_PORT", "value": str(METRICS_PORT)},
        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ]
    if order.role == "helper":
        env.append({"name": "NIGHTSHIFT_ROLE", "value": "helper"})
    if order.worker.hosts > 1:
        # The Job's index is the host; the worker is the slice.
        slice_ = {"fieldRef": {"fieldPath": f"metadata.labels['{JOB_INDEX_LABEL}']"}}
        env.append({"name": "NIGHTSHIFT_SHARD", "valueFrom": slice_})
        env.append({"name": "NIGHTSHIFT_ENGINE_WAIT_S", "value": str(order.patience_seconds)})
    return {
        "name": DRIVER,
        "image": order.settings.driver_image,
        **_pull_policy(order),
        "command": ["python3", "-m", "nightshift.driver"],
        "env": env,
        "ports": [{"name": "metrics", "containerPort": METRICS_PORT}],
        "resources": {
            "requests": {"cpu": "500m", "memory": "512Mi", **disk.driver_request()},
            "limits": {"memory": "2Gi"},
        },
        "securityContext": {
            **_RESTRICTED,
            "readOnlyRootFilesystem": True,
            "runAsUser": _DRIVER_USER,
            "runAsGroup": _DRIVER_USER,
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }


def _pull_policy(order: Order) -> dict[str, str]:
    policy = order.settings.image_pull_policy
    return {"imagePullPolicy": policy} if policy else {}
