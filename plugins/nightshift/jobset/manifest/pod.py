"""The pod of a worker's host: vLLM as a native sidecar, and the driver.

A native sidecar is an init container with ``restartPolicy: Always``. If a worker is one host, the
startupProbe delays the driver until the engine answers. The sidecar gets SIGTERM only after the driver has ended.
"""

from __future__ import annotations

from typing import Any

from nightshift.jobset.labels import JOB_INDEX_LABEL, RUN_LABEL
from nightshift.jobset.manifest import compile_cache, ports
from nightshift.jobset.manifest.constants import DRIVER, METRICS_PORT
from nightshift.jobset.manifest.escaping import literal
from nightshift.jobset.manifest.pod_template import (
    across_zones,
    client_of,
    container_of,
    identity,
    placement,
    scratch,
    volumes_of,
)
from nightshift.jobset.manifest.render_request import RenderRequest
from nightshift.jobset.manifest.weights import is_mounted, model_args
from nightshift.run.names import canonical_json
from nightshift.run.pins import revision_of


def pod(request: RenderRequest, labels: dict[str, str]) -> dict[str, Any]:
    """The pod's spec. labels: of the pod."""
    worker, settings = request.worker, request.settings
    shared_memory, *others = volumes_of(request)
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        **identity(settings.account_of(request.run.job)),
        "initContainers": [*compile_cache.fetching(request), container_of(request, sidecar=True)],
        "containers": [_driver(request)],
        "volumes": [shared_memory, scratch(), *others],
    }
    if settings.priority_class:
        spec["priorityClassName"] = settings.priority_class
    spec |= placement(worker, settings)
    if worker.hosts == 1:
        spec["topologySpreadConstraints"] = across_zones({RUN_LABEL: labels[RUN_LABEL]})
    return spec


def _driver(request: RenderRequest) -> dict[str, Any]:
    worker = request.worker
    env: list[dict[str, Any]] = [
        {"name": "NIGHTSHIFT_RUN_URL", "value": literal(request.run.url(request.settings.bucket))},
        *ports.environment(worker.engines),
        {"name": "ENGINE_URL", "value": ",".join(f"http://127.0.0.1:{each}" for each in ports.references(worker.engines))},
        {"name": "NIGHTSHIFT_MODEL_ROOT", "value": literal(model_args(request.spec, mounted=is_mounted(request))[0])},
        *(
            {"name": "NIGHTSHIFT_MODEL_REVISION", "value": literal(each)}
            for each in (revision_of(request.spec, request.pins),)
            if each
        ),
        # From the current job, not the frozen one: a tolerance raised since then applies, and a tuned max_num_seqs.
        {"name": "NIGHTSHIFT_DEAD_LETTERS", "value": str(request.spec.dead_letters.allowed(request.rows))},
        {"name": "NIGHTSHIFT_TUNING", "value": literal(canonical_json(request.spec.tuning(request.worker)).decode())},
        {"name": "NIGHTSHIFT_METRICS_PORT", "value": str(METRICS_PORT)},
        {"name": "NIGHTSHIFT_PROFILE", "value": request.worker.profile.name},
        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ]
    if request.role == "helper":
        env.append({"name": "NIGHTSHIFT_ROLE", "value": "helper"})
    if request.worker.hosts > 1:
        # The Job's index is the host; the worker is the slice.
        slice_ = {"fieldRef": {"fieldPath": f"metadata.labels['{JOB_INDEX_LABEL}']"}}
        env.append({"name": "NIGHTSHIFT_SHARD", "valueFrom": slice_})
        env.append({"name": "NIGHTSHIFT_ENGINE_WAIT_S", "value": str(request.patience_seconds)})
    env += [{"name": name, "value": literal(value)} for name, value in request.observed.items()]
    settings, command = request.settings, ["python3", "-m", request.program]
    env += compile_cache.variables(request)
    driver = client_of(settings, name=DRIVER, image=settings.driver_image, command=command, env=env)
    return compile_cache.reading(request, driver)
