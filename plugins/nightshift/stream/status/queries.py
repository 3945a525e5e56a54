"""Where the numbers about a stream come from: PromQL, asked of Google Cloud's own endpoint or of any Prometheus.

Cloud Monitoring answers PromQL about its own metrics and about those that managed Prometheus collects. It writes
``pubsub.googleapis.com/subscription/num_undelivered_messages`` as below (its documentation, "PromQL for Cloud Monitoring").
"""

from __future__ import annotations

from typing import Final

GOOGLE: Final = "https://monitoring.googleapis.com/v1/projects/{project}/location/global/prometheus"
BACKLOG: Final = "pubsub_googleapis_com:subscription_num_undelivered_messages"
"""Messages that are not acknowledged, those that a subscriber holds included."""
OLDEST: Final = "pubsub_googleapis_com:subscription_oldest_unacked_message_age"
"""Seconds."""
WAITING: Final = "vllm:num_requests_waiting"


def of_subscription(metric: str, name: str) -> str:
    """A metric of Pub/Sub. name: of the subscription, without its project."""
    return f'{metric}{{monitored_resource="pubsub_subscription",subscription_id="{name}"}}'


def of_stream(metric: str, job: str, **labels: str) -> str:
    """A metric of a stream's subscribers; `nightshift.stream.manifests` gives them the label."""
    pairs = ",".join(f'{name}="{value}"' for name, value in {"nightshift_job": job, **labels}.items())
    return f"{metric}{{{pairs}}}"
