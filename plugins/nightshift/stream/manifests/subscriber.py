"""The subscribers: `nightshift stream`, with the stream's file and the sink's address."""

from __future__ import annotations

import hashlib
from typing import Any, Final

from nightshift.jobset.manifest.constants import ENGINE_PORT, METRICS_PORT
from nightshift.jobset.manifest.escaping import literal
from nightshift.jobset.manifest.pod_template import across_zones, client_of, identity, scratch
from nightshift.stream.manifests.objects import an_object, budget, deployment, from_collectors, monitoring, policy, tcp
from nightshift.stream.manifests.render_request import SERVER, SUBSCRIBER, StreamRequest

FOLDER: Final = "/etc/nightshift"
FILE: Final = "stream.yaml"
SINK_KEY: Final = "url"
_ALIVE: Final = {"httpGet": {"path": "/metrics", "port": "metrics"}, "timeoutSeconds": 10}
"""It says that the process runs and nothing more: a subscriber without an engine or a database is well, and waits."""
_READY: Final = {"httpGet": {"path": "/nightshift/readyz", "port": "metrics"}, "timeoutSeconds": 10}
"""It fails while Pub/Sub, the sink or the engine is away. Nothing is sent to a subscriber, so only a rollout waits for it."""


def objects(order: StreamRequest) -> list[dict[str, Any]]:
    name = order.name(SUBSCRIBER)
    return [
        an_object(order, "ServiceAccount", "v1", name, SUBSCRIBER, {"automountServiceAccountToken": False}),
        _file(order),
        _deployment(order),
        budget(order, SUBSCRIBER),
        monitoring(order, SUBSCRIBER, "metrics"),
        _policy(order),
    ]


def sink_secret(order: StreamRequest) -> str:
    """The name of the Secret whose key `SINK_KEY` is the sink's URL. People make it: a password is in it."""
    return order.name("sink")


def _file_name(order: StreamRequest) -> str:
    """It changes with the file: then the Deployment rolls, and a pod of the old generation that restarts reads its own file."""
    return f"{order.name('stream')}-{hashlib.sha256(order.text.encode()).hexdigest()[:10]}"


def _file(order: StreamRequest) -> dict[str, Any]:
    return an_object(order, "ConfigMap", "v1", _file_name(order), SUBSCRIBER, {"immutable": True, "data": {FILE: order.text}})


def _deployment(order: StreamRequest) -> dict[str, Any]:
    address = {"name": "NIGHTSHIFT_SINK_URL", "valueFrom": {"secretKeyRef": {"name": sink_secret(order), "key": SINK_KEY}}}
    container = client_of(
        order.settings,
        name=SUBSCRIBER,
        image=order.settings.stream_image,
        command=["nightshift", "stream", f"{FOLDER}/{FILE}", "--metrics-port", str(METRICS_PORT)],
        env=[
            {"name": "ENGINE_URL", "value": literal(order.engine_url)},
            {"name": "NIGHTSHIFT_PROJECT", "value": literal(order.settings.project)},
            # A pod does not start while a Secret that it names is missing.
            *([address] if order.spec.sink.PORT else []),
        ],
    )
    container["livenessProbe"] = {**_ALIVE, "periodSeconds": 30, "failureThreshold": 4}
    container["readinessProbe"] = {**_READY, "periodSeconds": 5}
    container["volumeMounts"].append({"name": "stream", "mountPath": FOLDER, "readOnly": True})
    pod = {
        **identity(order.name(SUBSCRIBER)),
        "containers": [container],
        "volumes": [scratch(), {"name": "stream", "configMap": {"name": _file_name(order)}}],
        "topologySpreadConstraints": across_zones(order.labels(SUBSCRIBER)),
    }
    return deployment(order, SUBSCRIBER, pod)


def _policy(order: StreamRequest) -> dict[str, Any]:
    """Pub/Sub and Cloud Storage are https, which k8s/base/network.yaml allows."""
    if order.variant.engine_url:
        engine: dict[str, Any] = {"ports": [tcp(order.engine_port)]}
    else:
        engine = {"to": [{"podSelector": {"matchLabels": order.labels(SERVER)}}], "ports": [tcp(ENGINE_PORT)]}
    # The Secret alone knows the database's address, and most are private.
    sink = [{"ports": [tcp(order.spec.sink.PORT)]}] if order.spec.sink.PORT else []
    return policy(order, SUBSCRIBER, ingress=[from_collectors(METRICS_PORT)], egress=[engine, *sink])
