"""What the batcher counts, for Prometheus. docs/parts/batcher.md lists it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from nightshift.batcher.routes import NAMES
from nightshift.driver.metrics import BuildInfo

_PREFIX: Final = "nightshift_batcher_"
_COUNTS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_WAITS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600)

# What the labels may say, so that each has a series of 0 from the start: `rate()` misses a first event otherwise.
PASSED: Final = ("other", "headers", "body")
REJECTED: Final = ("queue", "memory", "unread", "body", "head", "connections", "connection", "invalid")
ERRORS: Final = ("busy", "failed", "timeout", "connection", "descriptors", "reply", "internal")
GONE: Final = ("sending", "waiting", "sent")


class Metrics:
    """One batcher's counts, in a registry of its own. Used from the event loop's thread alone."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.batch_items = self._histogram("batch_items", "Items of each request to the upstream.", _COUNTS)
        self.batch_callers = self._histogram("batch_callers", "Callers merged into each request to the upstream.", _COUNTS)
        self.wait_seconds = self._histogram("wait_seconds", "From a caller's whole request until it was sent first.", _WAITS)
        self.upstream_seconds = self._histogram("upstream_seconds", "From a request to the upstream to its end.", _SECONDS)
        self.callers = self._counter("callers", "Callers answered, by endpoint and status.", endpoint=NAMES, status=("200",))
        self.passed = self._counter("passed_through", "Requests passed through, by what they were.", why=PASSED)
        self.rejected = self._counter("rejected", "Callers turned away before they waited, by reason.", reason=REJECTED)
        self.errors = self._counter(
            "upstream_errors", "Requests to the upstream whose reply was no answer, by kind.", kind=ERRORS
        )
        self.refused = self._counter("refused", "Merged requests that were refused and sent again in parts.", endpoint=NAMES)
        self.gone = self._counter("disconnected", "Callers that left before their answer, by when.", when=GONE)
        self.waiting = self._gauge("waiting", "Callers whose request has not been sent.")
        self.in_hand = self._gauge("in_hand", "Callers from the beginning of their request to the end of their answer.")
        self.held = self._gauge("held_bytes", "Bytes that are held for callers, with their copies.")
        self.in_flight = self._gauge("upstream_in_flight", "Requests that the upstream has not answered.")
        self.registry.register(BuildInfo("batcher"))
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)

    def page(self) -> bytes:
        """In the Prometheus text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, **labels: Sequence[str]) -> Counter:
        """labels: their values that have a series from the start."""
        counter = Counter(_PREFIX + name, text, list(labels), registry=self.registry)
        for values in product(*labels.values()):
            counter.labels(*values)
        return counter

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(_PREFIX + name, text, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(_PREFIX + name, text, buckets=buckets, registry=self.registry)
