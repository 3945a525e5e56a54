"""How many rows may be in flight: enough to keep the engine's batch full and a small queue before it. Pure.

With the engine's own numbers (``/metrics``) the window follows its queue: grow while less than a quarter of a batch waits,
shrink when more than a whole batch waits or the KV cache runs out; in between leave it. It grows to what is computed plus up to
a batch, so it fills ``max_num_seqs`` within a few looks, whatever its value. While more than a batch waits that others have
sent, it is closed: an engine that says it is full gets nothing new.
Without such numbers it is additive increase and multiplicative decrease on what the engine refuses (AIMD; Chiu and Jain, 1989).
"""

from __future__ import annotations

from typing import Final

from nightshift.driver.engine import Load

CACHE_FULL: Final = 0.98
SHRINK: Final = 0.9
QUEUE_LEAST: Final = 0.25
"""Share of the rows being computed that should at least wait: what the engine takes in at its next step."""
QUEUE_MOST: Final = 1.0
HALVE_EVERY_S: Final = 1.0
"""Refusals that arrive together are one event."""


class Window:
    """`limit` is the number of rows that may be in flight, from `step` to `most`; 0 while it is closed.

    step: rows in a request. start: the first limit. closed: others have filled the engine.
    """

    def __init__(self, *, start: int, step: int, most: int) -> None:
        self._step = step
        self._most = max(most, step)
        self._level = float(min(max(start, step), self._most))
        self._metrics = False
        self._preemptions = 0.0
        self._halved_at = float("-inf")
        self._answered = False
        self.closed = False

    @property
    def limit(self) -> int:
        return 0 if self.closed else int(self._level)

    @property
    def requests(self) -> int:
        """How many full requests that is, one at least."""
        return max(1, self.limit // self._step)

    def sample(self, load: Load, in_flight: int) -> None:
        """A sample of the engine; in_flight: rows that this worker has there now.

        Each correction starts from what is there, not from the limit: the same sample twice gives one limit, however slowly
        the engine's numbers change.
        """
        preempted, self._preemptions = load.preemptions > self._preemptions, load.preemptions
        first, self._metrics = not self._metrics, True
        self.closed = False
        if (preempted and not first) or load.kv_cache >= CACHE_FULL:
            # A full cache with nothing waiting does not mean too much: all rows in flight are being computed.
            if load.waiting or preempted:
                self._set(self._level * SHRINK)
            return
        least = max(self._step, QUEUE_LEAST * load.running)
        most = max(2 * self._step, QUEUE_MOST * load.running)
        wanted = (least + most) / 2
        seen = load.running + load.waiting
        self.closed = load.waiting > most and in_flight - load.waiting + wanted <= 0
        if load.waiting > most:
            self._set(min(self._level, in_flight - load.waiting + wanted))
        elif (
            load.waiting < least and in_flight + self._step > self._level and in_flight <= seen + self._step and self._answered
        ):
            # Only after answers, and when it has seen what was sent: the numbers of a stalled engine mean nothing.
            self._answered = False
            self._set(max(self._level, load.running + (wanted if load.waiting else most)))

    def unseen(self) -> None:
        """The engine's numbers cannot be read now: what it said before is no reason to send nothing."""
        self.closed = False

    def answered(self, rows: int) -> None:
        """Rows came back: without metrics, the window grows by one request per window's worth of them."""
        self._answered = True
        if not self._metrics:
            self._set(self._level + self._step * rows / self._level)

    def refused(self, now: float) -> None:
        """The engine had no room; now: seconds of any steady clock."""
        if now - self._halved_at >= HALVE_EVERY_S:
            self._halved_at = now
            self._set(self._level / 2)

    def _set(self, level: float) -> None:
        self._level = min(max(level, float(self._step)), float(self._most))
