"""What a subscriber counts besides its requests: plain numbers, written only by the loop."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any, Final

from nightshift.driver.stats import Durations

LATENCY_S: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
"""Upper bounds of the histogram of latencies."""


@dataclass(slots=True)
class StreamStats:
    """Counts since the process began, except the gauges held (messages), held_bytes and waiting (for others of their request),
    and topic_deleted: whether the subscription has no topic any more.

    delivered: deliveries, of which repeated: of a message that is held already; over: of one that had its outcome; late: of one
    whose lease was over when it came. unread: messages that cannot be read: the revision of their schema is not known.
    answered, dead: outcomes in the sink; unannounced: of the dead, those that their topic refuses. acknowledged, given_back:
    messages. extended: leases. dead_reasons: of `dead`. latency: from publishing to the sink.
    """

    held: int = 0
    held_bytes: int = 0
    waiting: int = 0
    topic_deleted: bool = False
    delivered: int = 0
    repeated: int = 0
    over: int = 0
    late: int = 0
    unread: int = 0
    answered: int = 0
    dead: int = 0
    unannounced: int = 0
    acknowledged: int = 0
    given_back: int = 0
    extended: int = 0
    dead_reasons: Counter[str] = field(default_factory=Counter)
    latency: Durations = field(default_factory=lambda: Durations(LATENCY_S))

    def snapshot(self) -> dict[str, Any]:
        """The counts, for a log line."""
        counted = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in ("held_bytes", "latency")}
        return {**counted, "dead_reasons": dict(self.dead_reasons)}
