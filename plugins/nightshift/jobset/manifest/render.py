"""The JobSet and its Jobs, for both shapes of a worker.

One host per worker: one Indexed Job with an index for each worker. Indexes fail and are retried independently, and
what Kubernetes marks as a disruption is not counted.

Several hosts per worker, a slice: a Job for each slice, with an index for each host. All hosts of a slice are pods of
one Job, because exclusive placement gives a node pool to a Job and GKE fills a multi-host slice from one Job's pods. Host 0
has the working driver and vLLM's head; it alone decides when the Job has succeeded. A failed host fails its Job immediately,
and JobSet restarts every slice: committed work is kept, and a slice cannot continue with only some of its hosts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from nightshift import exits
from nightshift.jobset.identity import spec_hash
from nightshift.jobset.labels import (
    ENGINE_DEFAULTS_ANNOTATION,
    EXCLUSIVE_TOPOLOGY_ANNOTATION,
    JOB_LABEL,
    JOBSET_API_VERSION,
    NODE_POOL_LABEL,
    PORT_ENV_ANNOTATION,
    PROFILE_LABEL,
    QUEUE_LABEL,
    QUEUE_PRIORITY_LABEL,
    ROLE_LABEL,
    RUN_LABEL,
    RUN_URL_ANNOTATION,
    SAFE_TO_EVICT_ANNOTATION,
    SPEC_HASH_ANNOTATION,
)
from nightshift.jobset.manifest import disk, ports
from nightshift.jobset.manifest.constants import (
    DRIVER,
    DRIVER_PROGRAM,
    KEEP_FINISHED_SECONDS,
    REPLICATED_JOB,
    RETRIES,
    Role,
)
from nightshift.jobset.manifest.patch import Patch
from nightshift.jobset.manifest.pod import pod
from nightshift.jobset.manifest.render_request import RenderRequest
from nightshift.jobset.manifest.server import defaults_of
from nightshift.jobset.manifest.weights import pod_annotations
from nightshift.run.names import RunRef
from nightshift.run.pins import UNPINNED, Pins
from nightshift.run.plan import Plan
from nightshift.settings import Settings
from nightshift.spec import JobSpec
from nightshift.spec.engine_defaults import NO_HINTS, Hints

_DISRUPTED: Final = [{"type": "DisruptionTarget", "status": "True"}]
_HOPELESS: Final = {"containerName": DRIVER, "operator": "In", "values": [exits.CONFIG]}


def render(
    spec: JobSpec,
    run: RunRef,
    plan: Plan,
    settings: Settings,
    *,
    name: str,
    profile: str | None = None,
    role: Role = "owner",
    workers: int | None = None,
    pins: Pins = UNPINNED,
    observed: Mapping[str, str] | None = None,
    program: str = DRIVER_PROGRAM,
    hints: Hints = NO_HINTS,
) -> dict[str, Any]:
    """The manifest of JobSet `name` for `run`.

    profile: replaces the job's own, as for a fallback. role: ``helper`` for an additional JobSet on the same run. workers: by
    default as many as planned. pins: of the run; without them, model and images are those of job and deployment. observed,
    program, hints: see `RenderRequest`. Raises ValueError for a plan without rows, because there is nothing to run; for a
    profile that does not fit the job's ``compute:``; as SettingsError, for a profile whose reservation has no name; and, as
    PatchError, for an override file that cannot be read or merged.
    """
    if not plan.rows:
        raise ValueError(f"run {run.prefix} has no rows, so it needs no JobSet")
    request = RenderRequest(
        name=name,
        spec=spec,
        settings=settings,
        worker=(worker := spec.compute.worker(profile)),
        pins=pins,
        run=run,
        workers=workers or plan.workers,
        rows=plan.rows,
        role=role,
        observed=observed or {},
        program=program,
        hints=hints,
    )
    labels = _labels(request)
    kueue = {QUEUE_LABEL: spec.queue, QUEUE_PRIORITY_LABEL: spec.priority}
    template = _template(request, labels)
    body = _one_host(request, template) if worker.hosts == 1 else _several_hosts(request, template)
    exclusive = {EXCLUSIVE_TOPOLOGY_ANNOTATION: NODE_POOL_LABEL} if worker.hosts > 1 else {}
    annotations = {RUN_URL_ANNOTATION: run.url(settings.bucket), SPEC_HASH_ANNOTATION: spec_hash({"spec": body}), **exclusive}
    if words := defaults_of(request).words:
        annotations[ENGINE_DEFAULTS_ANNOTATION] = words
    return {
        "apiVersion": JOBSET_API_VERSION,
        "kind": "JobSet",
        "metadata": {
            "name": name,
            "namespace": settings.namespace,
            "labels": {**labels, **{label: value for label, value in kueue.items() if value}},
            "annotations": annotations,
        },
        "spec": body,
    }


def _template(request: RenderRequest, labels: dict[str, str]) -> dict[str, Any]:
    annotations = {
        PORT_ENV_ANNOTATION: ports.chosen(request.worker.engines),
        # A worker that is moved loads its weights again. Spot, and a failing node, take it nevertheless.
        SAFE_TO_EVICT_ANNOTATION: "false",
        **pod_annotations(request),
        **disk.fuse_annotations(request),
    }
    template = {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod(request, labels)}
    patch = request.settings.pod_patch
    return Patch(patch).apply(template) if patch else template


def _labels(request: RenderRequest) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "nightshift",
        JOB_LABEL: request.run.job,
        RUN_LABEL: request.run.run_id,
        PROFILE_LABEL: request.worker.profile.name,
        ROLE_LABEL: request.role,
    }


def _one_host(request: RenderRequest, template: dict[str, Any]) -> dict[str, Any]:
    """An index for each worker."""
    job = {
        "completionMode": "Indexed",
        "completions": request.workers,
        "parallelism": request.workers,
        "backoffLimitPerIndex": RETRIES,
        # The remaining workers do the work of a few that failed; if more than half fail, the fault is the run's own.
        "maxFailedIndexes": request.workers // 2,
        "activeDeadlineSeconds": request.spec.deadline_seconds,
        "podFailurePolicy": {
            "rules": [
                # First match wins: a drained pod also has an exit code, so the disruption rule comes first.
                {"action": "Ignore", "onPodConditions": _DISRUPTED},
                {"action": "FailIndex", "onExitCodes": _HOPELESS},
            ]
        },
        "template": template,
    }
    return {
        "ttlSecondsAfterFinished": KEEP_FINISHED_SECONDS,
        # Nothing calls these pods by name, so they need no headless Service.
        "network": {"enableDNSHostnames": False},
        "replicatedJobs": [_replicated(request, replicas=1, job=job)],
    }


def _several_hosts(request: RenderRequest, template: dict[str, Any]) -> dict[str, Any]:
    """A Job for each worker. JobSet's coordinator is one pod of the set; here every slice has its own head, found by DNS."""
    job = {
        "completionMode": "Indexed",
        "completions": request.worker.hosts,
        "parallelism": request.worker.hosts,
        "backoffLimit": 0,
        # The other hosts never exit by themselves.
        "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
        "activeDeadlineSeconds": request.spec.deadline_seconds,
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onPodConditions": _DISRUPTED},
                {"action": "FailJob", "onExitCodes": _HOPELESS},
            ]
        },
        "template": template,
    }
    return {
        "ttlSecondsAfterFinished": KEEP_FINISHED_SECONDS,
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "failurePolicy": {
            "maxRestarts": RETRIES,
            # A new pod cannot get the accelerators or the name of an old one that still runs.
            "restartStrategy": "BlockingRecreate",
            # Only the text of the Job controller's message shows which of the two rules above applied.
            "rules": [
                {
                    "name": "hopeless",
                    "action": "FailJobSet",
                    "onJobFailureReasons": ["PodFailurePolicy"],
                    "onJobFailureMessagePatterns": [f"failed with exit code {exits.CONFIG} "],
                },
                {"name": "deadline", "action": "FailJobSet", "onJobFailureReasons": ["DeadlineExceeded"]},
                {
                    "name": "disruption",
                    "action": "RestartJobSetAndIgnoreMaxRestarts",
                    "onJobFailureReasons": ["PodFailurePolicy"],
                },
            ],
        },
        "replicatedJobs": [_replicated(request, replicas=request.workers, job=job)],
    }


def _replicated(request: RenderRequest, *, replicas: int, job: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": REPLICATED_JOB,
        "replicas": replicas,
        "template": {"metadata": {"labels": _labels(request)}, "spec": job},
    }
