"""What a worker counts: plain numbers, written only by the loop, read by the log line and the metrics server."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from itertools import accumulate
from typing import Any, Final

REQUEST_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Upper bounds of the histogram of requests: an embedding takes milliseconds, a long answer in a full engine minutes."""


class Retry(StrEnum):
    """Why a request is sent again."""

    BUSY = "busy"
    """The engine had no room."""
    GONE = "gone"
    """The connection broke, or the engine went away."""
    FAILED = "failed"
    """An error of the engine's."""
    REFUSED = "refused"
    """It was refused as every other may be."""
    TIMEOUT = "timeout"
    INVALID_OUTPUT = "invalid_output"
    ABORTED = "aborted"
    """The engine stopped computing it."""
    DESCRIPTORS = "descriptors"
    """None was left for a connection."""


class Durations:
    """Seconds that something took, as a histogram with these upper bounds. counts: the last one is beyond all bounds."""

    __slots__ = ("bounds", "counts", "total_s")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        """Adds one; two machines' clocks may make it negative, which counts as 0."""
        seconds = max(seconds, 0.0)
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total_s += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """As Prometheus has them: up to each bound, those below included."""
        return list(zip([*map(str, self.bounds), "+Inf"], accumulate(self.counts), strict=True))


@dataclass(slots=True)
class Times:
    """When the work began and got on, by the loop's clock in seconds; None until it did."""

    first_request: float | None = None
    last_answer: float | None = None

    def sent(self, now: float) -> None:
        if self.first_request is None:
            self.first_request = now

    def answered(self, now: float) -> None:
        self.last_answer = now

    @property
    def work_s(self) -> float:
        """Seconds from the first request to the last answer; 0 if nothing was answered."""
        return self.last_answer - self.first_request if self.last_answer is not None and self.first_request is not None else 0.0


@dataclass(slots=True)
class Stats:
    """Counts since the attempt began, except the gauges rows_in_flight, requests_in_flight, chunks_open and window (rows).

    rows_answered: rows with a prediction; rows_dead: dead letters; rows_from_partials: taken over from earlier attempts.
    rows_lost: computed here for a chunk that another committed first. engine_wait_s: time without an engine;
    engine_failing_s: time in which it was there and answered no request. canaries: requests sent to find out whether it does.
    retries: requests sent again, by `Retry`. dead: dead letters by reason, of those made here as rows_dead is.
    requests: how long each of requests_sent took that is no longer in flight.
    """

    rows_answered: int = 0
    rows_dead: int = 0
    rows_from_partials: int = 0
    rows_in_flight: int = 0
    requests_in_flight: int = 0
    requests_sent: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    chunks_open: int = 0
    chunks_committed: int = 0
    chunks_lost: int = 0
    rows_lost: int = 0
    window: int = 0
    engine_wait_s: float = 0.0
    engine_losses: int = 0
    engine_failing_s: float = 0.0
    canaries: int = 0
    bytes_read: int = 0
    bytes_committed: int = 0
    retries: Counter[str] = field(default_factory=Counter)
    dead: Counter[str] = field(default_factory=Counter)
    times: Times = field(default_factory=Times)
    requests: Durations = field(default_factory=lambda: Durations(REQUEST_S))

    def snapshot(self) -> dict[str, Any]:
        """All of it but the times, for a log line."""
        values = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in ("times", "requests")}
        return {**values, "retries": dict(self.retries), "dead": dict(self.dead)}
