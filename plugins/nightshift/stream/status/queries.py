"""Where the numbers about a stream come from: PromQL, asked of Google Cloud's own endpoint or of any Prometheus.

Cloud Monitoring answers PromQL about its own metrics and about those that managed Prometheus collects. It writes
``pubsub.googleapis.com/subscription/num_undelivered_messages`` as below (its documentation, "PromQL for Cloud Monitoring").
A metric belongs to one project: Pub/Sub's to the subscription's, those of pods to the cluster's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from nightshift.settings import GKE_CLUSTER, GKE_FORM

GOOGLE: Final = "https://monitoring.googleapis.com/v1/projects/{project}/location/global/prometheus"
BACKLOG: Final = "pubsub_googleapis_com:subscription_num_undelivered_messages"
"""Messages that are not acknowledged, those that a subscriber holds included."""
OLDEST: Final = "pubsub_googleapis_com:subscription_oldest_unacked_message_age"
"""Seconds."""
WAITING: Final = "vllm:num_requests_waiting"


@dataclass(frozen=True)
class Place:
    """A Prometheus that has some numbers. labels: what tells them from those of other projects in its metrics scope, which
    may have the same names. url: without ``/api/v1``.
    """

    url: str
    labels: Mapping[str, str] = field(default_factory=dict)


def of_project(project: str) -> Place:
    """Of the metrics of a Google Cloud project's services."""
    return Place(GOOGLE.format(project=project), {"project_id": project})


def of_cluster(runtime: str, namespace: str) -> Place:
    """Of the metrics of pods. runtime: NIGHTSHIFT_RUNTIME. Raises ValueError if it does not name a cluster with its project."""
    found = GKE_CLUSTER.fullmatch(runtime)
    if not found:
        raise ValueError(
            "NIGHTSHIFT_RUNTIME does not name the cluster, in whose project Cloud Monitoring has the metrics of pods. Set it "
            f"to {GKE_FORM}"
        )
    project, location, cluster = found["project_id"], found["location"], found["cluster_name"]
    labels = {"project_id": project, "location": location, "cluster": cluster, "namespace": namespace}
    return Place(GOOGLE.format(project=project), labels)


def select(metric: str, *labels: Mapping[str, str]) -> str:
    """The series of a metric with these labels."""
    pairs = ",".join(f'{name}="{value}"' for each in labels for name, value in each.items())
    return f"{metric}{{{pairs}}}"


def of_subscription(metric: str, place: Place, name: str) -> str:
    """A metric of Pub/Sub. name: of the subscription, without its project."""
    return select(metric, {"monitored_resource": "pubsub_subscription"}, place.labels, {"subscription_id": name})


def of_stream(metric: str, place: Place, job: str, **labels: str) -> str:
    """A metric of a stream's subscribers; `nightshift.stream.manifests` gives them the label."""
    return select(metric, place.labels, {"nightshift_job": job}, labels)
