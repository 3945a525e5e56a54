"""What a subscriber counts, and the metrics that a scraper reads of it."""

from __future__ import annotations

from dataclasses import fields

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from nightshift.driver.stats import Durations
from nightshift.stream.metrics import StreamCollector, TargetCollector
from nightshift.stream.stats import LATENCY_S, StreamStats
from nightshift.tasks.base import Reason
from tests.stream_manifests import a_stream

pytestmark = pytest.mark.unit

PREFIX = "nightshift_stream_"


def filled() -> StreamStats:
    """Every count another, so that none can stand for another."""
    stats = StreamStats()
    for number, item in enumerate(fields(StreamStats), start=1):
        if item.name not in ("dead_reasons", "latency"):
            setattr(stats, item.name, number)
    stats.dead_reasons.update({reason: 101 + number for number, reason in enumerate(map(str, Reason))})
    return stats


def scraped(stats: StreamStats) -> dict[tuple[str, str], float]:
    """Value by sample name and its one label's value."""
    registry = CollectorRegistry()
    registry.register(StreamCollector(stats))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        (sample.name.removeprefix(PREFIX), next(iter(sample.labels.values()), "")): sample.value
        for family in families
        for sample in family.samples
    }


def test_every_count_has_a_metric() -> None:
    stats = filled()
    found = {key: value for key, value in scraped(stats).items() if not key[0].startswith("latency_seconds")}

    assert found == {
        ("messages_held", ""): stats.held,
        ("held_bytes", ""): stats.held_bytes,
        ("messages_waiting", ""): stats.waiting,
        ("topic_deleted", ""): stats.topic_deleted,
        ("deliveries_total", ""): stats.delivered,
        ("deliveries_repeated_total", ""): stats.repeated,
        ("deliveries_over_total", ""): stats.over,
        ("deliveries_late_total", ""): stats.late,
        ("messages_unread_total", ""): stats.unread,
        ("dead_letters_unannounced_total", ""): stats.unannounced,
        ("messages_total", "answered"): stats.answered,
        ("messages_total", "dead_letter"): stats.dead,
        **{("dead_letters_total", str(reason)): 101 + number for number, reason in enumerate(Reason)},
        ("acknowledged_total", ""): stats.acknowledged,
        ("given_back_total", ""): stats.given_back,
        ("leases_extended_total", ""): stats.extended,
    }
    plain = [item.name for item in fields(StreamStats) if item.name not in ("dead_reasons", "latency")]
    assert sorted(value for value in found.values() if value < 100) == sorted(getattr(stats, name) for name in plain)


def test_every_metric_says_what_it_is_and_has_the_type_of_its_name() -> None:
    registry = CollectorRegistry()
    registry.register(StreamCollector(filled()))
    families = list(text_string_to_metric_families(generate_latest(registry).decode()))

    assert [family.name for family in families if not family.documentation or not family.name.startswith(PREFIX)] == []
    gauges = {family.name.removeprefix(PREFIX) for family in families if family.type == "gauge"}
    assert gauges == {"messages_held", "held_bytes", "messages_waiting", "topic_deleted"}
    assert [family.name for family in families if family.type == "histogram"] == [f"{PREFIX}latency_seconds"]


def test_a_scrape_shows_what_is_counted_later_too() -> None:
    stats = StreamStats()
    registry = CollectorRegistry()
    registry.register(StreamCollector(stats))
    stats.answered += 5

    assert registry.get_sample_value(f"{PREFIX}messages_total", {"outcome": "answered"}) == 5


def test_latencies_are_counted_up_to_each_bound() -> None:
    stats = StreamStats()
    for seconds in (0.05, 0.1, 0.11, 59.0, 60.0, 3600.0, 3601.0, 90_000.0):
        stats.latency.add(seconds)
    found = scraped(stats)

    buckets = {bound: value for (name, bound), value in found.items() if name == "latency_seconds_bucket"}
    assert (buckets["0.1"], buckets["0.25"], buckets["30.0"]) == (2, 3, 3)
    assert (buckets["60.0"], buckets["1800.0"], buckets["3600.0"], buckets["+Inf"]) == (5, 5, 6, 8)
    assert len(buckets) == len(LATENCY_S) + 1
    assert found["latency_seconds_count", ""] == 8
    assert found["latency_seconds_sum", ""] == pytest.approx(0.26 + 119 + 7201 + 90_000)


def test_a_message_from_the_future_took_no_time() -> None:
    latencies = Durations(LATENCY_S)
    latencies.add(-5.0)

    assert (latencies.counts[0], sum(latencies.counts), latencies.total_s) == (1, 1, 0.0)


def test_a_log_line_has_the_counts_but_the_bytes_and_the_histogram() -> None:
    stats = filled()
    snapshot = stats.snapshot()

    assert snapshot.pop("dead_reasons") == stats.dead_reasons
    names = {item.name for item in fields(StreamStats)} - {"held_bytes", "dead_reasons", "latency"}
    assert snapshot == {name: getattr(stats, name) for name in names}


@pytest.mark.parametrize(
    ("source", "subscription"),
    [
        ({"subscription": "projects/acme/subscriptions/texts", "format": "json"}, "texts"),
        ({"prefix": "gs://bucket/texts", "format": "json"}, ""),
    ],
)
def test_the_target_is_labelled_as_cloud_monitoring_labels_the_subscription(source: dict[str, str], subscription: str) -> None:
    registry = CollectorRegistry()
    registry.register(TargetCollector(a_stream(source=source, latency={"target": "2m"})))

    assert registry.get_sample_value(f"{PREFIX}latency_target_seconds", {"subscription_id": subscription}) == 120
