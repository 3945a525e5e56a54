"""A subscriber's counts for Prometheus, beside those of its requests (`nightshift.driver.metrics`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nightshift.driver.metrics import Families
from nightshift.spec import StreamSpec
from nightshift.spec.stream import Messages
from nightshift.stream.stats import StreamStats
from nightshift.tasks.base import Reason

_OWN: Final = Families("nightshift_stream_")


class StreamCollector(Collector):
    """One subscriber's `StreamStats` as metrics."""

    def __init__(self, stats: StreamStats) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats
        yield _OWN.gauge(
            "messages_held", "Messages that are held: delivered, and neither acknowledged nor returned.", stats.held
        )
        yield _OWN.gauge("held_bytes", "Bytes that they take in memory, with their answers.", stats.held_bytes)
        yield _OWN.gauge("messages_waiting", "Messages that wait for others of their request.", stats.waiting)
        yield _OWN.gauge("topic_deleted", "1 if the subscription's topic is deleted: no message comes.", stats.topic_deleted)
        yield _OWN.counter("deliveries", "Deliveries, repeated ones included.", stats.delivered)
        yield _OWN.counter("deliveries_repeated", "Deliveries of a message that was held already.", stats.repeated)
        yield _OWN.counter("deliveries_over", "Deliveries of a message that had its outcome already.", stats.over)
        yield _OWN.counter("deliveries_late", "Deliveries of a message whose lease was over when it came.", stats.late)
        yield _OWN.counter("messages_unread", "Messages whose schema's revision is not known.", stats.unread)
        outcomes = {"answered": stats.answered, "dead_letter": stats.dead}
        yield _OWN.counters("messages", "Messages with an outcome in the sink.", "outcome", outcomes)
        yield _OWN.counters("dead_letters", "Messages given up, by reason.", "reason", stats.dead_reasons, Reason)
        yield _OWN.counter("dead_letters_unannounced", "Dead letters that their topic refuses.", stats.unannounced)
        yield _OWN.counter("acknowledged", "Messages acknowledged.", stats.acknowledged)
        yield _OWN.counter("given_back", "Messages returned without an outcome.", stats.given_back)
        yield _OWN.counter("leases_extended", "Leases extended.", stats.extended)
        yield _OWN.histogram("latency_seconds", "From publishing to the answer in the sink.", stats.latency)


class TargetCollector(Collector):
    """What the stream has promised: alerts compare the age of its messages with it."""

    def __init__(self, spec: StreamSpec) -> None:
        self._target_s = spec.latency.target_seconds
        self._subscription = spec.source.short_name if isinstance(spec.source, Messages) else ""

    def collect(self) -> Iterator[Metric]:
        name, text = "nightshift_stream_latency_target_seconds", "latency.target: a message's answer is late after it."
        target = GaugeMetricFamily(name, text, labels=["subscription_id"])
        target.add_metric([self._subscription], self._target_s)
        yield target
