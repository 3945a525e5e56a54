"""Renders a run's JobSet: one Indexed Job whose pods are a driver with vLLM as its native sidecar.

Pure: a dict from spec, run, plan and settings, the same for every runtime. Kubernetes' rules it relies on:

- A native sidecar is an init container with ``restartPolicy: Always``; its startupProbe gates the driver, and it gets its
  SIGTERM only after the driver has ended.
- ``restartPolicy: Never`` and an index backoff limit let one index fail without the others; a pod lost to a disruption is
  replaced without being counted, and the driver's permanent exit code fails its index at once.
"""

from __future__ import annotations

from typing import Any, Final

from nightshift import exits
from nightshift.plan import Plan
from nightshift.profiles import profile_of
from nightshift.run import RunRef
from nightshift.settings import Settings
from nightshift.spec import JobSpec
from nightshift.tasks.base import load as load_kind

API_VERSION: Final = "jobset.x-k8s.io/v1alpha2"
REPLICATED_JOB: Final = "worker"
DRIVER: Final = "driver"
SERVER: Final = "server"

RUN_LABEL: Final = "nightshift.dev/run"
JOB_LABEL: Final = "nightshift.dev/job"
RUN_URL_ANNOTATION: Final = "nightshift.dev/run-url"
PORT_ENV_ANNOTATION: Final = "nightshift.dev/port-env"
"""Tells a runtime whose pods share one network which variable carries which port; a cluster does not read it."""

ENGINE_PORT: Final = 8000
METRICS_PORT: Final = 9400
PORTS: Final = "engine=ENGINE_PORT,metrics=NIGHTSHIFT_METRICS_PORT"
RETRIES_PER_INDEX: Final = 6
GRACE_SECONDS: Final = 30
PROBE_SECONDS: Final = 5
LOAD_SECONDS_MAX: Final = 1800
"""How long weights may load before the kubelet gives the server up."""
KEEP_FINISHED_SECONDS: Final = 24 * 3600

_RESTRICTED: Final = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def render(spec: JobSpec, run: RunRef, plan: Plan, settings: Settings, *, name: str) -> dict[str, Any]:
    """The manifest of JobSet `name` for `run`. Raises ValueError for a plan without rows: there is nothing to run."""
    if not plan.rows:
        raise ValueError(f"run {run.prefix} has no rows, so it needs no JobSet")
    labels = {"app.kubernetes.io/name": "nightshift", JOB_LABEL: run.job, RUN_LABEL: run.run_id}
    kueue = {"kueue.x-k8s.io/queue-name": spec.queue, "kueue.x-k8s.io/priority-class": spec.priority}
    return {
        "apiVersion": API_VERSION,
        "kind": "JobSet",
        "metadata": {
            "name": name,
            "namespace": settings.namespace,
            "labels": {**labels, **{label: value for label, value in kueue.items() if value}},
            "annotations": {RUN_URL_ANNOTATION: run.url(settings.bucket)},
        },
        "spec": {
            "ttlSecondsAfterFinished": KEEP_FINISHED_SECONDS,
            "replicatedJobs": [
                {
                    "name": REPLICATED_JOB,
                    "replicas": 1,
                    "template": {"metadata": {"labels": labels}, "spec": _job(spec, run, plan, settings, labels)},
                }
            ],
        },
    }


def _job(spec: JobSpec, run: RunRef, plan: Plan, settings: Settings, labels: dict[str, str]) -> dict[str, Any]:
    return {
        "completionMode": "Indexed",
        "completions": plan.workers,
        "parallelism": plan.workers,
        "backoffLimitPerIndex": RETRIES_PER_INDEX,
        "activeDeadlineSeconds": spec.deadline_seconds,
        "podFailurePolicy": {
            "rules": [
                # First match wins: a drained pod also has an exit code, so the disruption must be looked at first.
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {
                    "action": "FailIndex",
                    "onExitCodes": {"containerName": DRIVER, "operator": "In", "values": [exits.CONFIG]},
                },
            ]
        },
        "template": {
            "metadata": {"labels": labels, "annotations": {PORT_ENV_ANNOTATION: PORTS}},
            "spec": _pod(spec, run, plan, settings),
        },
    }


def _pod(spec: JobSpec, run: RunRef, plan: Plan, settings: Settings) -> dict[str, Any]:
    profile = profile_of(spec.compute.profile)
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "serviceAccountName": settings.service_account,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "initContainers": [_server(spec, settings)],
        "containers": [_driver(spec, run, plan, settings)],
        "volumes": [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}],
    }
    if profile.node_selector:
        pod["nodeSelector"] = dict(profile.node_selector)
    if profile.tolerations:
        pod["tolerations"] = [dict(toleration) for toleration in profile.tolerations]
    return pod


def _server(spec: JobSpec, settings: Settings) -> dict[str, Any]:
    profile = profile_of(spec.compute.profile)
    return {
        "name": SERVER,
        "image": settings.server_image,
        "restartPolicy": "Always",
        "command": ["python3", "-m", "vllm.entrypoints.openai.api_server"],
        "args": server_args(spec),
        "env": [{"name": "ENGINE_PORT", "value": str(ENGINE_PORT)}],
        "ports": [{"name": "engine", "containerPort": ENGINE_PORT}],
        "startupProbe": {
            "httpGet": {"path": "/health", "port": "engine"},
            "periodSeconds": PROBE_SECONDS,
            "timeoutSeconds": PROBE_SECONDS,
            "failureThreshold": LOAD_SECONDS_MAX // PROBE_SECONDS,
        },
        "resources": {"requests": dict(profile.requests), "limits": dict(profile.limits)},
        "securityContext": _RESTRICTED,
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],
    }


def _driver(spec: JobSpec, run: RunRef, plan: Plan, settings: Settings) -> dict[str, Any]:
    return {
        "name": DRIVER,
        "image": settings.driver_image,
        "command": ["python3", "-m", "nightshift.driver"],
        "env": [
            {"name": "NIGHTSHIFT_RUN_URL", "value": run.url(settings.bucket)},
            {"name": "ENGINE_PORT", "value": str(ENGINE_PORT)},
            {"name": "ENGINE_URL", "value": "http://127.0.0.1:$(ENGINE_PORT)"},
            # From the job as it is now, not as it was frozen: a tolerance that was raised since counts.
            {"name": "NIGHTSHIFT_DEAD_LETTERS", "value": str(spec.dead_letters.allowed(plan.rows))},
            {"name": "NIGHTSHIFT_METRICS_PORT", "value": str(METRICS_PORT)},
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ],
        "ports": [{"name": "metrics", "containerPort": METRICS_PORT}],
        "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}},
        "securityContext": {**_RESTRICTED, "runAsNonRoot": True},
    }


def server_args(spec: JobSpec) -> list[str]:
    """vLLM's arguments for this job: what the task kind needs, the model, the engine's settings, then the user's own flags."""
    args = [*_model_args(spec), "--served-model-name", spec.model.name, "--port", "$(ENGINE_PORT)"]
    args += [*load_kind(spec).server_args, "--max-num-seqs", str(spec.engine.max_num_seqs)]
    if spec.engine.max_model_len is not None:
        args += ["--max-model-len", str(spec.engine.max_model_len)]
    args += ["--dtype", spec.engine.dtype]
    for flag, value in spec.engine.args.items():
        if value is True:
            args.append(f"--{flag}")
        elif value is False:
            args.append(f"--no-{flag}")
        else:
            args += [f"--{flag}", str(value)]
    return args


def _model_args(spec: JobSpec) -> list[str]:
    scheme, _, rest = spec.model.uri.partition("://")
    if scheme == "hf":
        return ["--model", rest, "--revision", spec.model.revision]
    # Weights in a bucket are streamed; their revision is part of the path.
    return ["--model", spec.model.uri, "--load-format", "runai_streamer"]
