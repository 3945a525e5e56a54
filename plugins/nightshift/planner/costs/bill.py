"""What a run cost, by compute profile: its paid machine time (`nightshift.planner.costs.split`) times prices, beside what was
estimated before; BigQuery and storage. Pure.

Money is whole millionths of the currency. A profile's cost is rounded once; its parts are apportioned to that sum, so they
add up to it exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from nightshift.planner.costs.prices import Prices
from nightshift.planner.costs.split import PARTS, Parts, apportion
from nightshift.planner.sizing import OPERATIONS_PER_CHUNK

if TYPE_CHECKING:
    from nightshift.planner.plan import Decision

MILLION: Final = 1_000_000
HOUR_MS: Final = 3_600_000
TIB: Final = 1 << 40
PAGE: Final = 1000
"""Objects of one listing."""


@dataclass(frozen=True)
class Machine:
    """Of one worker: `price_name` and `machines` of `nightshift.profiles.worker.WorkerShape`."""

    name: str
    count: float

    def whole(self, workers: int) -> Fraction:
        """For one of this many workers, so that together they pay for the whole machines that they fill at once."""
        return Fraction(ceil(workers * Fraction(self.count)), workers) if workers else Fraction(self.count)


@dataclass(frozen=True)
class Rung:
    """One compute profile of a run. parts: None if nothing ran on it. estimate: as the plan had it; None for a fallback.

    price: of one machine for an hour; None without one. workers, planned: at once, as measured and as estimated.
    """

    profile: str
    machine: Machine
    price: float | None
    attempts: int = 0
    parts: Parts | None = None
    estimate: Parts | None = None
    workers: int = 0
    planned: int = 0

    def cost(self, parts: Parts | None) -> dict[str, int] | None:
        """Millionths, of `parts` or `estimate`: `paid`, then its parts, which add up to it. None without a price, or parts."""
        if parts is None or self.price is None:
            return None
        count = self.machine.whole(self.planned if parts is self.estimate else self.workers)
        paid = round(Fraction(parts.paid) * count * Fraction(self.price) * MILLION / HOUR_MS)
        shares = apportion(paid, [getattr(parts, name) for name in PARTS])
        return {"paid": paid, **dict(zip(PARTS, shares, strict=True))}

    def to_json(self) -> dict[str, Any]:
        def side(parts: Parts | None) -> dict[str, Any] | None:
            cost = self.cost(parts)
            shown = {name: each / MILLION for name, each in cost.items()} if cost else None
            return None if parts is None else {"seconds": parts.to_json(), "cost": shown}

        return {
            "profile": self.profile,
            "machine": self.machine.name,
            "machines_per_worker": float(self.machine.whole(self.workers)),
            "attempts": self.attempts,
            "actual": side(self.parts),
            "estimated": side(self.estimate),
        }


@dataclass(frozen=True)
class Bill:
    """rows, tokens: that the run delivers. bigquery_bytes: billed; None if nobody asked. not_seen: attempts without heartbeat,
    whose machine time is not in here."""

    prices: Prices
    rungs: tuple[Rung, ...]
    rows: int
    tokens: int
    class_a: int
    class_b: int
    bigquery_bytes: int | None
    not_seen: int

    @property
    def unpriced(self) -> tuple[str, ...]:
        """Machines that were paid for, or will be, and have no price."""
        return tuple(dict.fromkeys(rung.machine.name for rung in self.rungs if rung.parts and rung.price is None))

    @property
    def machines(self) -> int | None:
        """Millionths; None if a machine has no price."""
        costs = [rung.cost(rung.parts) for rung in self.rungs if rung.parts]
        return None if self.unpriced else sum(cost["paid"] for cost in costs if cost)

    @property
    def storage(self) -> int | None:
        a, b = self.prices.class_a_per_1000, self.prices.class_b_per_1000
        if a is None or b is None:
            return None
        return round((Fraction(self.class_a) * Fraction(a) + Fraction(self.class_b) * Fraction(b)) * MILLION / 1000)

    @property
    def bigquery(self) -> int | None:
        price = self.prices.bigquery_per_tib
        if price is None or self.bigquery_bytes is None:
            return None
        return round(Fraction(self.bigquery_bytes) * Fraction(price) * MILLION / TIB)

    @property
    def total(self) -> int | None:
        """Of all that has a price; None if machines have none, which would say too little."""
        return None if self.machines is None else self.machines + (self.storage or 0) + (self.bigquery or 0)

    @property
    def estimate(self) -> int | None:
        """Of the machines, as the plan had it; None without a plan's decision or a price."""
        costs = [rung.cost(rung.estimate) for rung in self.rungs if rung.estimate]
        return sum(cost["paid"] for cost in costs if cost) if costs and all(costs) else None

    @property
    def seconds(self) -> Parts:
        """Of all rungs."""
        return sum((rung.parts for rung in self.rungs if rung.parts), Parts())

    def to_json(self) -> dict[str, Any]:
        """Money in the currency, None where it is not known; docs/operate/capacity.md lists the keys."""
        return {
            "currency": self.prices.currency,
            "prices": self.prices.name,
            "total": units(self.total),
            "per_million_tokens": self._each(self.tokens, MILLION),
            "per_thousand_rows": self._each(self.rows, 1000),
            "machines": units(self.machines),
            "machines_estimated": units(self.estimate),
            "rungs": [rung.to_json() for rung in self.rungs],
            "bigquery": {"bytes_billed": self.bigquery_bytes, "cost": units(self.bigquery)},
            "storage": {"class_a": self.class_a, "class_b": self.class_b, "cost": units(self.storage)},
            "unpriced": list(self.unpriced),
            "attempts_not_seen": self.not_seen,
        }

    def _each(self, count: int, size: int) -> float | None:
        return None if self.total is None or not count else float(Fraction(self.total * size, count * MILLION))


def bill(
    measured: Mapping[str, Any] | None,
    prices: Prices,
    *,
    chunks: int = 0,
    rows: int = 0,
    tokens: int = 0,
    own: tuple[str, Machine] | None = None,
    estimated: tuple[Decision, Machine] | None = None,
    bigquery_bytes: int | None = None,
) -> Bill | None:
    """None if it was not measured what the attempts were paid for.

    measured: of `nightshift.planner.measured.measure`. chunks, rows, tokens: that the run has in its ledger. own: the job's
    profile and its machine: nothing costs 0 on a machine without a price, so until something was measured this one stands for
    it; None for a run that needs no machine. estimated: what the task plan decided, and the machine of its profile.
    """
    found = measured.get("profiles") if measured else None
    if measured is None or not isinstance(found, list) or not all("machine_s" in each for each in found):
        return None
    rungs = [_rung(each, Machine(each["machine"], each["machines"]), prices) for each in found]
    if own and not rungs:
        rungs = [Rung(own[0], own[1], prices.machines.get(own[1].name), parts=Parts())]
    if estimated:
        rungs = _beside(rungs, *estimated, prices)
    class_a, class_b = operations(chunks, measured["attempts"], measured["marks"])
    return Bill(
        prices=prices,
        rungs=tuple(rungs),
        rows=rows,
        tokens=tokens,
        class_a=class_a,
        class_b=class_b,
        bigquery_bytes=bigquery_bytes,
        not_seen=measured["not_seen"],
    )


def estimate(decision: Decision) -> Parts | None:
    """Of a decision's machine time; None if its speed is unknown. `lost` is what it allows for preemptions."""
    if decision.work_s is None or decision.finish_s is None:
        return None
    paid = round(1000 * decision.workers * decision.finish_s)
    useful = min(paid, round(1000 * decision.workers * decision.work_s))
    start_up = min(paid - useful, round(1000 * decision.workers * decision.speed.start_up_s))
    return Parts(useful=useful, start_up=start_up, lost=paid - useful - start_up)


def operations(chunks: int, attempts: int, marks: int) -> tuple[int, int]:
    """Of Cloud Storage, classes A and B: computed, not counted.

    A: `OPERATIONS_PER_CHUNK` for each chunk; each mark is created; each attempt lists the chunks when it begins; the seal lists
    chunks and marks; ten for the run's own documents. B: the seal reads each chunk, and a worker its rows; an attempt
    reads three documents; the seal reads its newest mark.
    """
    chunk_pages, mark_pages = -(-chunks // PAGE), -(-marks // PAGE)
    class_a = OPERATIONS_PER_CHUNK * chunks + marks + (attempts + 1) * chunk_pages + mark_pages + 10
    return class_a, 2 * chunks + 4 * attempts + 10


def units(millionths: int | None) -> float | None:
    """In the currency."""
    return None if millionths is None else millionths / MILLION


def _rung(found: Mapping[str, Any], machine: Machine, prices: Prices) -> Rung:
    parts, price = Parts.from_json(found["machine_s"]), prices.machines.get(machine.name)
    return Rung(found["profile"], machine, price, found["attempts"], parts, workers=found.get("workers", 0))


def _beside(rungs: list[Rung], decision: Decision, machine: Machine, prices: Prices) -> list[Rung]:
    """The rungs with the estimate of the one that was planned, which comes first if nothing ran on it."""
    parts = estimate(decision)
    if all(rung.profile != decision.profile for rung in rungs):
        rungs = [Rung(decision.profile, machine, prices.machines.get(machine.name)), *rungs]
    planned = decision.workers
    return [replace(rung, estimate=parts, planned=planned) if rung.profile == decision.profile else rung for rung in rungs]
