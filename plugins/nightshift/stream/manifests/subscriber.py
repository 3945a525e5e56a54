"""The subscribers: `nightshift stream`, with the stream's file and the sink's address."""

from __future__ import annotations

import hashlib
from typing import Any, Final

from nightshift.jobset.manifest.constants import ENGINE_PORT, METRICS_PORT
from nightshift.jobset.manifest.escaping import literal
from nightshift.jobset.manifest.pod_template import across_zones, client_of, identity, scratch
from nightshift.stream.google_login import SCOPES as LOGIN_SCOPES
from nightshift.stream.manifests.objects import an_object, budget, deployment, from_collectors, monitoring, policy, tcp
from nightshift.stream.manifests.render_request import PORTS, SERVER, SUBSCRIBER, StreamRequest

FOLDER: Final = "/etc/nightshift"
FILE: Final = "stream.yaml"
SINK_KEY: Final = "url"
_SCOPES: Final = (
    "https://www.googleapis.com/auth/cloud-platform",
    "https://www.googleapis.com/auth/userinfo.email",
    "openid",
)
_ALIVE: Final = {"httpGet": {"path": "/metrics", "port": "metrics"}, "timeoutSeconds": 10}
"""It says that the process runs and nothing more: a subscriber without an engine or a database is well, and waits."""
_READY: Final = {"httpGet": {"path": "/nightshift/readyz", "port": "metrics"}, "timeoutSeconds": 10}
"""It fails while Pub/Sub, the sink or the engine is away. Nothing is sent to a subscriber, so only a rollout waits for it."""


def objects(request: StreamRequest) -> list[dict[str, Any]]:
    return [
        _account(request),
        _file(request),
        _deployment(request),
        budget(request, SUBSCRIBER),
        monitoring(request, SUBSCRIBER, "metrics"),
        _policy(request),
    ]


def _account(request: StreamRequest) -> dict[str, Any]:
    """AlloyDB and Cloud SQL know Google's service accounts only, so a subscriber that logs in as one acts as it altogether."""
    account = an_object(request, "ServiceAccount", "v1", SUBSCRIBER, {"automountServiceAccountToken": False})
    if (database := request.database) and database.service_account:
        scopes = (*_SCOPES, *LOGIN_SCOPES)
        account["metadata"]["annotations"] = {
            "iam.gke.io/gcp-service-account": database.service_account,
            # GKE's metadata server has no tokens for logins otherwise.
            "iam.gke.io/scopes-override": ",".join(scopes),
        }
    return account


def sink_secret(request: StreamRequest) -> str:
    """The name of the Secret whose key `SINK_KEY` is the sink's URL. People make it: a password is in it."""
    return request.name("sink")


def _file_name(request: StreamRequest) -> str:
    """It changes with the file: then the Deployment rolls, and a pod of the old generation that restarts reads its own file."""
    return f"{request.name('stream')}-{hashlib.sha256(request.text.encode()).hexdigest()[:10]}"


def _file(request: StreamRequest) -> dict[str, Any]:
    body = {"immutable": True, "data": {FILE: request.text}}
    return an_object(request, "ConfigMap", "v1", SUBSCRIBER, body, _file_name(request))


def _deployment(request: StreamRequest) -> dict[str, Any]:
    container = client_of(
        request.settings,
        name=SUBSCRIBER,
        image=request.settings.stream_image,
        command=["nightshift", "stream", f"{FOLDER}/{FILE}", "--metrics-port", str(METRICS_PORT)],
        env=[
            {"name": "ENGINE_URL", "value": literal(request.engine_url)},
            {"name": "NIGHTSHIFT_PROJECT", "value": literal(request.settings.project)},
            *_sink_url(request),
        ],
    )
    container["livenessProbe"] = {**_ALIVE, "periodSeconds": 30, "failureThreshold": 4}
    container["readinessProbe"] = {**_READY, "periodSeconds": 5}
    container["volumeMounts"].append({"name": "stream", "mountPath": FOLDER, "readOnly": True})
    pod = {
        **identity(request.name(SUBSCRIBER)),
        "containers": [container],
        "volumes": [scratch(), {"name": "stream", "configMap": {"name": _file_name(request)}}],
        "topologySpreadConstraints": across_zones(request.labels(SUBSCRIBER)),
    }
    return deployment(request, SUBSCRIBER, pod)


def _sink_url(request: StreamRequest) -> list[dict[str, Any]]:
    """A pod does not start while a Secret that it names is missing, so it names none if there is nothing secret."""
    database = request.database
    if database is None:
        return []
    if database.url:
        return [{"name": "NIGHTSHIFT_SINK_URL", "value": literal(database.url)}]
    return [{"name": "NIGHTSHIFT_SINK_URL", "valueFrom": {"secretKeyRef": {"name": sink_secret(request), "key": SINK_KEY}}}]


def _policy(request: StreamRequest) -> dict[str, Any]:
    """Pub/Sub and Cloud Storage are https, which k8s/base/network.yaml allows."""
    if request.variant.engine_url:
        engine: dict[str, Any] = {"ports": [tcp(request.route.port or PORTS[request.route.scheme])]}
    else:
        engine = {"to": [{"podSelector": {"matchLabels": request.labels(SERVER)}}], "ports": [tcp(ENGINE_PORT)]}
    sink = [request.database.egress] if request.database else []
    return policy(request, SUBSCRIBER, ingress=[from_collectors(METRICS_PORT)], egress=[engine, *sink])
