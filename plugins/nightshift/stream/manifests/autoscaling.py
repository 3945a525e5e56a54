"""How many subscribers and servers there are: HorizontalPodAutoscalers, or KEDA's ScaledObjects.

Subscribers, by Google's formula for batch inference in near real time ("Best practices for batch inference on GKE"):

    replicas = num_undelivered_messages / (target latency x messages a second that one subscriber gets answered)

An External metric with an AverageValue is divided by that value to get the replicas, so the value is target x throughput.
Servers, by the requests that wait in them: their CPUs say nothing.
"""

from __future__ import annotations

from typing import Any, Final

from nightshift.stream.manifests.objects import an_object
from nightshift.stream.manifests.render_request import SUBSCRIBER, StreamRequest, quantity, scaling_of
from nightshift.stream.status import queries

BACKLOG: Final = "pubsub.googleapis.com|subscription|num_undelivered_messages"
"""As Google's adapter (custom-metrics-stackdriver-adapter) names Cloud Monitoring's metric; so the next three."""
SUBSCRIPTION_LABEL: Final = "resource.labels.subscription_id"
PROJECT_LABEL: Final = "resource.labels.project_id"
"""Without it the adapter asks its own project, the cluster's, whatever project the subscription is in. Every version knows it;
newer ones also call it ``metrics_host_project_id`` (the adapter's "Fetching Metrics from a Different Google Cloud Project").
"""
WAITING: Final = "prometheus.googleapis.com|vllm:num_requests_waiting|gauge"

KEDA: Final = "keda.sh/v1alpha1"

_DOWN_SUBSCRIBERS_S: Final = 300
_DOWN_SERVERS_S: Final = 600
"""Longer: a server that was given up too early takes minutes to load again."""


def backlog_per_subscriber(request: StreamRequest) -> float:
    """Messages that one subscriber gets answered within the target."""
    return request.spec.latency.target_seconds * request.scaling.messages_per_second


def of_subscribers(request: StreamRequest) -> list[dict[str, Any]]:
    least, most = request.replicas_of_subscribers
    if request.variant.keda:
        triggers = [_backlog_trigger(request, backlog_per_subscriber(request))]
        # KEDA's own account asks Cloud Monitoring.
        body = {"spec": {"podIdentity": {"provider": "gcp"}}}
        authentication = an_object(request, "TriggerAuthentication", KEDA, SUBSCRIBER, body, request.spec.job)
        return [authentication, _scaled_object(request, SUBSCRIBER, (least, most), triggers, _DOWN_SUBSCRIBERS_S)]
    project, name = request.subscription
    target = {"type": "AverageValue", "averageValue": quantity(backlog_per_subscriber(request))}
    metric = {"name": BACKLOG, "selector": {"matchLabels": {PROJECT_LABEL: project, SUBSCRIPTION_LABEL: name}}}
    metrics = [{"type": "External", "external": {"metric": metric, "target": target}}]
    return [_autoscaler(request, SUBSCRIBER, (least, most), metrics, _DOWN_SUBSCRIBERS_S)]


def of_servers(request: StreamRequest, component: str) -> list[dict[str, Any]]:
    spec = request.servers[component]
    scaling = scaling_of(spec)
    replicas = scaling.servers.min, scaling.servers.max
    if request.variant.keda:
        per_server = backlog_per_subscriber(request) * scaling.subscribers_per_server
        # A server that is not there has no requests that wait: from zero, only the backlog brings it up.
        triggers = [_backlog_trigger(request, per_server)]
        pods = queries.of_cluster(request.settings.runtime, request.settings.namespace)
        query = f"sum({queries.select(queries.WAITING, pods.labels, {'job': request.name(component)})})"
        # If one is always there, it has the metric, and a query that finds none asks for the wrong thing.
        triggers.append(_trigger(request, pods, query, spec.waiting_requests, lost_is_zero=not scaling.servers.min))
        return [_scaled_object(request, component, replicas, triggers, _DOWN_SERVERS_S)]
    target = {"type": "AverageValue", "averageValue": quantity(spec.waiting_requests)}
    metrics = [{"type": "Pods", "pods": {"metric": {"name": WAITING}, "target": target}}]
    return [_autoscaler(request, component, replicas, metrics, _DOWN_SERVERS_S)]


def _autoscaler(
    request: StreamRequest, component: str, replicas: tuple[int, int], metrics: list[dict[str, Any]], down_s: int
) -> dict[str, Any]:
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": request.name(component)},
        "minReplicas": replicas[0],
        "maxReplicas": replicas[1],
        "metrics": metrics,
        "behavior": _behavior(down_s),
    }
    return an_object(request, "HorizontalPodAutoscaler", "autoscaling/v2", component, {"spec": spec})


def _behavior(down_s: int) -> dict[str, Any]:
    """Up at once, twice as many a minute; down when the last `down_s` seconds needed no more, half of them a minute."""
    return {
        "scaleUp": {"policies": [{"type": "Percent", "value": 100, "periodSeconds": 60}]},
        "scaleDown": {
            "stabilizationWindowSeconds": down_s,
            "policies": [{"type": "Percent", "value": 50, "periodSeconds": 60}],
        },
    }


def _scaled_object(
    request: StreamRequest, component: str, replicas: tuple[int, int], triggers: list[dict[str, Any]], down_s: int
) -> dict[str, Any]:
    spec = {
        "scaleTargetRef": {"name": request.name(component)},
        "minReplicaCount": replicas[0],
        "maxReplicaCount": replicas[1],
        "pollingInterval": 30,
        # From one to zero; the rest is the behavior's.
        "cooldownPeriod": down_s,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behavior(down_s)}},
        "triggers": triggers,
    }
    return an_object(request, "ScaledObject", KEDA, component, {"spec": spec})


def _backlog_trigger(request: StreamRequest, threshold: float) -> dict[str, Any]:
    project, name = request.subscription
    place = queries.of_project(project)
    query = f"sum({queries.of_subscription(queries.BACKLOG, place, name)})"
    return _trigger(request, place, query, threshold, lost_is_zero=False)


def _trigger(
    request: StreamRequest, place: queries.Place, query: str, threshold: float, *, lost_is_zero: bool
) -> dict[str, Any]:
    """lost_is_zero: whether no data means 0. For the backlog it does not: KEDA then changes nothing."""
    return {
        "type": "prometheus",
        "metricType": "AverageValue",
        "metadata": {
            "serverAddress": place.url,
            "query": query,
            "threshold": quantity(threshold),
            # Any message, waiting or held, keeps one running: a backlog without arrivals is not idle.
            "activationThreshold": "0",
            "ignoreNullValues": str(lost_is_zero).lower(),
        },
        "authenticationRef": {"name": request.spec.job},
    }
