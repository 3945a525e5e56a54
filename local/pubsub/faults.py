"""Faults that a test asks for: which call, which subscription or topic, how often, for how long. Pure; time is passed in.

=================  ==============================================================================================
``unavailable``    the call fails with UNAVAILABLE and does nothing
``lose_reply``     the call is carried out, then fails with UNAVAILABLE
``drop_acks``      acks (``Acknowledge``) are answered as if they had worked, and forgotten
``delay``          the call waits for ``delay_s`` seconds first
``duplicate``      a delivery is made twice at once, with two ack ids; not with exactly-once delivery
=================  ==============================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

KINDS: Final = ("unavailable", "lose_reply", "drop_acks", "delay", "duplicate")
ANY: Final = "*"


class BadFault(ValueError):
    """A fault that is invalid; the message says why."""


@dataclass
class Fault:
    """kind: see the module. method: a method of Pub/Sub's two services, or ``*``. resource: the name in the request, or ``*``.

    every: of the matching calls each n-th fails, the n-th first. times: after N faults it is over; None: never. until: end in
    seconds since 1970; None: never. seen, done: matching calls, and faults, so far.
    """

    kind: str
    method: str = ANY
    resource: str = ANY
    every: int = 1
    times: int | None = None
    until: float | None = None
    delay_s: float = 0.0
    seen: int = 0
    done: int = 0

    def strikes(self, kind: str, method: str, resource: str, now: float) -> bool:
        """Whether it strikes this call. Counts the call."""
        if kind != self.kind or self.method not in (ANY, method) or self.resource not in (ANY, resource):
            return False
        if self.over(now):
            return False
        self.seen += 1
        if self.seen % self.every:
            return False
        self.done += 1
        return True

    def over(self, now: float) -> bool:
        return (self.times is not None and self.done >= self.times) or (self.until is not None and now >= self.until)


class Faults:
    """All of now."""

    def __init__(self) -> None:
        self.active: list[Fault] = []

    def add(self, fields: dict[str, Any], now: float) -> Fault:
        """Adds a fault. fields: those of `Fault` up to delay_s, with for_s (seconds) in place of until. Raises BadFault."""
        unknown = fields.keys() - {"kind", "method", "resource", "every", "times", "for_s", "delay_s"}
        if unknown:
            raise BadFault(f"a fault has no field {sorted(unknown)[0]}")
        if fields.get("kind") not in KINDS:
            raise BadFault(f"there is no fault {fields.get('kind')!r}; there are {', '.join(KINDS)}")
        if fields.get("every", 1) < 1 or (fields.get("times") or 1) < 1 or fields.get("delay_s", 0) < 0:
            raise BadFault("every and times are at least 1, delay_s at least 0")
        if (fields["kind"] == "delay") != bool(fields.get("delay_s")):
            raise BadFault("delay needs delay_s, and no other fault has it")
        given = {name: value for name, value in fields.items() if name != "for_s"}
        fault = Fault(**given, until=now + fields["for_s"] if fields.get("for_s") is not None else None)
        self.active.append(fault)
        return fault

    def clear(self) -> None:
        self.active.clear()

    def strike(self, kind: str, method: str, resource: str, now: float) -> Fault | None:
        """The fault of this kind that strikes a call, if one does."""
        struck = [fault for fault in self.active if fault.strikes(kind, method, resource, now)]
        return struck[0] if struck else None
