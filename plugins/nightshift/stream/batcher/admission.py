"""How many callers and how many of their bytes the batcher has in hand at once, and when to come again. Pure."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

RATE_WINDOW_S: Final = 10.0
RETRY_AFTER_MOST_S: Final = 60
COPIES: Final = 3
"""Of a request's bytes: its body, its items until they are sent, and the merged request in the connection's buffer."""
SLOW_S: Final = 2.0
"""A request that has been arriving for longer gives way when its memory is needed."""


class Rate:
    """How many callers were answered lately."""

    def __init__(self) -> None:
        self._answered: deque[tuple[float, int]] = deque()
        self._sum = 0

    def add(self, callers: int, now: float) -> None:
        """now: seconds of any steady clock."""
        self._forget(now)
        self._answered.append((now, callers))
        self._sum += callers

    def per_s(self, now: float) -> float:
        """Over the last seconds, `RATE_WINDOW_S` at most."""
        self._forget(now)
        return self._sum / max(1.0, now - self._answered[0][0]) if self._answered else 0.0

    def _forget(self, now: float) -> None:
        while self._answered and self._answered[0][0] <= now - RATE_WINDOW_S:
            self._sum -= self._answered.popleft()[1]


@dataclass(eq=False, slots=True)
class Place:
    """What one request takes. since: when it began to arrive. size: its bytes so far. whole: it has arrived, and is a caller's.
    give_way: ends its arrival early; it is called after `turned_away` is set."""

    since: float
    size: int = 0
    whole: bool = False
    turned_away: bool = False
    give_way: Callable[[], None] = lambda: None


class Admission:
    """Bounds what is in hand: `callers_most` from their whole request until their answer is written, and `bytes_most`.

    Bytes are charged when they have arrived, not when they are announced, and a request counts as a caller when it is whole: if
    it is sent slowly, or never, it keeps no other out. If memory is full, requests that arrive slowly give way, oldest first.
    """

    def __init__(self, *, callers_most: int, bytes_most: int) -> None:
        self._callers_most = callers_most
        self._bytes_most = bytes_most
        # In the order in which they began.
        self._arriving: OrderedDict[Place, None] = OrderedDict()
        self.callers = 0
        self.bytes = 0
        self.rate = Rate()

    def __repr__(self) -> str:
        arriving = f"arriving={len(self._arriving)}"
        return f"<Admission {arriving} callers={self.callers}/{self._callers_most} bytes={self.bytes}/{self._bytes_most}>"

    @property
    def in_hand(self) -> int:
        """Requests that arrive, and callers."""
        return len(self._arriving) + self.callers

    @property
    def full(self) -> bool:
        """Whether no more callers are taken in."""
        return self.callers >= self._callers_most

    def begin(self, now: float) -> Place:
        """A request begins to arrive. now: seconds of any steady clock, never less than before."""
        place = Place(now)
        self._arriving[place] = None
        return place

    def grow(self, place: Place, size: int, now: float) -> bool:
        """Takes in that many more bytes of a request; False if there is no room for them."""
        while not place.turned_away and self.bytes + COPIES * size > self._bytes_most:
            oldest = next(iter(self._arriving))
            if oldest is place or now - oldest.since < SLOW_S:
                return False
            self._give_back(oldest)
            oldest.turned_away = True
            oldest.give_way()
        if place.turned_away:
            return False
        self.bytes += COPIES * size
        place.size += size
        return True

    def enter(self, place: Place) -> bool:
        """The request is whole; False if no more callers are taken in."""
        if self.full:
            return False
        del self._arriving[place]
        place.whole = True
        self.callers += 1
        return True

    def leave(self, place: Place, now: float) -> None:
        """It has its answer, or has gone."""
        if place.whole:
            self.callers -= 1
            self.rate.add(1, now)
        self._give_back(place)

    def _give_back(self, place: Place) -> None:
        self._arriving.pop(place, None)
        self.bytes -= COPIES * place.size
        place.size = 0

    def retry_after_s(self, now: float) -> int:
        """Whole seconds in which what is in hand should be answered, at the rate of late; 1 while nothing is known of it."""
        rate = self.rate.per_s(now)
        return min(max(1, math.ceil(self.callers / rate)), RETRY_AFTER_MOST_S) if rate else 1
