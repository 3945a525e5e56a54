"""The driver's counts for Prometheus, on their own port.

A scrape reads the counts from `Stats` in the server's thread, so they cost the request loop nothing. A driver without
metrics still works, so nothing here raises.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from nightshift import __version__
from nightshift.driver.pages import Pages
from nightshift.driver.stats import Durations, Retry, Stats
from nightshift.tasks.base import Reason

log = logging.getLogger("nightshift.driver")

EVERYWHERE: Final = "0.0.0.0"
READY_PATH: Final = "/nightshift/readyz"


class BuildInfo(Collector):
    """Which release of which of our programs a process is. component: driver, stream or batcher."""

    def __init__(self, component: str) -> None:
        self._labels = {"component": component, "version": __version__}

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("nightshift_build", "The release of the program.", self._labels)


class StatsCollector(Collector):
    """One worker's `Stats` as metrics. docs/operate/metrics.md lists them."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats
        yield _OWN.counters(
            "rows",
            "Rows that this worker finished, by outcome.",
            "outcome",
            {"answered": stats.rows_answered, "dead_letter": stats.rows_dead, "from_partial": stats.rows_from_partials},
        )
        yield _OWN.gauge("rows_in_flight", "Rows inside requests that the engine has not answered.", stats.rows_in_flight)
        yield _OWN.gauge("requests_in_flight", "Requests that the engine has not answered.", stats.requests_in_flight)
        yield _OWN.counter("requests", "Requests sent to the engine, including repeats.", stats.requests_sent)
        yield _OWN.histogram(
            "request_duration_seconds", "From sending a request until it was known what became of it.", stats.requests
        )
        yield _OWN.gauge("window_rows", "Rows that may be in flight now.", stats.window)
        yield _OWN.counters("retries", "Requests sent again, by reason.", "reason", stats.retries, Retry)
        yield _OWN.counters("dead_letters", "Rows given up, by reason.", "reason", stats.dead, Reason)
        yield _OWN.counters(
            "tokens", "Tokens that the engine reported.", "direction", {"in": stats.prompt_tokens, "out": stats.output_tokens}
        )
        yield _OWN.counters(
            "chunk_commits",
            "Finished chunks: committed by this worker, or lost to another that was first.",
            "result",
            {"committed": stats.chunks_committed, "lost": stats.chunks_lost},
        )
        yield _OWN.counter("rows_lost", "Rows computed for a chunk that another worker committed first.", stats.rows_lost)
        yield _OWN.counters(
            "bytes",
            "Bytes from and to object storage: input read, chunks committed.",
            "direction",
            {"read": stats.bytes_read, "committed": stats.bytes_committed},
        )
        yield _OWN.counter("engine_wait_seconds", "Time without an engine.", stats.engine_wait_s)
        yield _OWN.counter(
            "engine_failing_seconds", "Time in which the engine was there, but answered no request.", stats.engine_failing_s
        )
        yield _OWN.counter("canaries", "Requests sent only to find out whether the engine answers.", stats.canaries)
        yield _OWN.counter("engine_losses", "Times the engine was lost.", stats.engine_losses)
        yield _OWN.gauge("chunks_open", "Chunks begun but not yet committed.", stats.chunks_open)


def serve_metrics(
    port: int, *collectors: Collector, address: str = EVERYWHERE, missing: Callable[[], Sequence[str]] | None = None
) -> Pages | None:
    """Serves ``/metrics`` from a thread that ends with the process. port 0 takes a free one; the log names it.

    missing(): what keeps the process from its work now, in words, asked from that thread; ``/nightshift/readyz`` fails while
    there is any. If the port is taken or not valid, or the address is not this machine's, logs a warning and returns None.
    """
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)

    def metrics(headers: Mapping[str, str]) -> tuple[int, str, bytes]:
        encoder, form = choose_encoder(headers.get("accept", ""))
        return 200, form, encoder(registry)

    def ready(_: Mapping[str, str]) -> tuple[int, str, bytes]:
        lacking = missing() if missing else ()
        return (
            (503 if lacking else 200),
            "text/plain",
            f"{'waiting for ' if lacking else ''}{', '.join(lacking) or 'ready'}\n".encode(),
        )

    try:
        pages = Pages(address, port, {"/metrics": metrics, "/": metrics, **({READY_PATH: ready} if missing else {})})
    except (OSError, OverflowError) as error:
        said = {"address": address, "port": port, "error": f"{type(error).__name__}: {error}"}
        log.warning("metrics not served", extra={"fields": said})
        return None
    log.info("metrics", extra={"fields": {"address": address, "port": pages.port}})
    return pages


class Families:
    """Metrics whose names begin with a prefix."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def counter(self, name: str, text: str, value: float) -> Metric:
        return CounterMetricFamily(self._prefix + name, text, value=value)

    def gauge(self, name: str, text: str, value: float) -> Metric:
        return GaugeMetricFamily(self._prefix + name, text, value=value)

    def counters(self, name: str, text: str, label: str, values: Mapping[str, float], known: Iterable[str] = ()) -> Metric:
        """known: values of the label that have a series of 0 before anything was counted: `rate()` misses a first event
        otherwise."""
        family = CounterMetricFamily(self._prefix + name, text, labels=[label])
        # A copy in one step: the request loop adds reasons in its own thread.
        for key, value in {**dict.fromkeys(map(str, known), 0.0), **dict(values)}.items():
            family.add_metric([key], value)
        return family

    def histogram(self, name: str, text: str, durations: Durations) -> Metric:
        family = HistogramMetricFamily(self._prefix + name, text)
        family.add_metric([], durations.buckets(), durations.total_s)
        return family


_OWN: Final = Families("nightshift_driver_")
