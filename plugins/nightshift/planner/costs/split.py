"""Paid machine time of attempts, split into parts that add up to it exactly. Pure.

An attempt is paid for from the moment when its pod has a machine and starts its containers until its driver ends. Of an attempt
that ended well (`Life.well`):

- `start_up`: until its engine answered first.
- `useful`: of its work, the share of the rows that are in the ledger; `twice`: of the rest of its rows, whose chunks others had
  committed. Work is from its first request to its last answer, less the time without an engine.
- `idle`: everything else: reading the plan, waiting for the first row, for an engine that had gone, for stragglers.

Of an attempt that was killed, asked to end or gave up, what is not `useful` or `twice` is `lost`: its start-up has to be done
again, and so has the work that is in no chunk. If it was killed, it worked on after its newest heartbeat at its pace from
before, until `Life.paid_s` ends.

Times are whole milliseconds: shares are rounded by largest remainders, so nothing is lost or gained by rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any


@dataclass(frozen=True)
class Life:
    """What is known of one attempt. Rows: that it computed; of them in the ledger; of them in chunks that others committed.

    before_s: from the start of its containers until its process started. age_s: of its process at its newest heartbeat. tail_s:
    how long it ran after that. start_up_s: from its start until its engine answered; None if it never did. work_s: up to the
    newest heartbeat. engine_wait_s: of it, without an engine. well: it ended by itself with its work done.
    """

    before_s: float
    age_s: float
    tail_s: float
    start_up_s: float | None
    work_s: float
    engine_wait_s: float
    rows: int
    rows_used: int
    rows_lost: int
    well: bool

    @property
    def paid_s(self) -> float:
        return self.before_s + self.age_s + self.tail_s


@dataclass(frozen=True)
class Parts:
    """Milliseconds. Invariant: paid is the sum of all others."""

    useful: int = 0
    start_up: int = 0
    idle: int = 0
    twice: int = 0
    lost: int = 0

    @property
    def paid(self) -> int:
        return sum(getattr(self, part.name) for part in fields(self))

    def __add__(self, other: Parts) -> Parts:
        return Parts(*(getattr(self, name) + getattr(other, name) for name in PARTS))

    def to_json(self) -> dict[str, float]:
        """Seconds, to the millisecond: `paid`, then the parts."""
        return {"paid": self.paid / 1000, **{name: getattr(self, name) / 1000 for name in PARTS}}

    @classmethod
    def from_json(cls, value: Any) -> Parts:
        """Inverse of `to_json`. Raises KeyError, TypeError and ValueError for anything else."""
        return cls(**{name: round(1000 * float(value[name])) for name in PARTS})


PARTS = tuple(part.name for part in fields(Parts))


def split(life: Life) -> Parts:
    """The paid time of one attempt. Whatever a life claims, no part is ever negative."""
    paid = max(0, round(1000 * life.paid_s))
    start_up = paid if life.start_up_s is None else min(paid, round(1000 * (life.before_s + life.start_up_s)))
    work = min(paid - start_up, max(0, round(1000 * (life.work_s - life.engine_wait_s))))
    tail = min(paid - start_up - work, max(0, round(1000 * life.tail_s))) if work else 0
    # Not rounded to rows: a short tail may have brought half a one. The ledger may have more than that.
    computed = max(Fraction(life.rows * (work + tail), work) if work else Fraction(0), Fraction(life.rows_used))
    work += tail
    twice_rows = min(Fraction(life.rows_lost), computed - life.rows_used)
    rest = computed - life.rows_used - twice_rows
    if life.well:
        twice_rows, rest = twice_rows + rest, Fraction(0)
    if computed:
        useful, twice, unused = apportion(work, (Fraction(life.rows_used), twice_rows, rest))
    else:
        useful, twice, unused = 0, 0, work
    idle = paid - start_up - work
    if life.well:
        return Parts(useful=useful, start_up=start_up, idle=idle + unused, twice=twice)
    return Parts(useful=useful, twice=twice, lost=unused + start_up + idle)


def apportion(total: int, shares: Sequence[Fraction | int]) -> list[int]:
    """Whole numbers in proportion to the shares, whose sum is total: each is rounded down, and what is left goes one by one to
    those that were rounded most (Hamilton's method). All are 0 if all shares are. Raises ValueError for a share below 0.
    """
    if any(share < 0 for share in shares):
        raise ValueError(f"a share is below 0: {shares}")
    whole = sum(shares)
    if not whole:
        return [0] * len(shares)
    exact = [Fraction(total) * share / whole for share in shares]
    found = [int(each) for each in exact]
    by_remainder = sorted(range(len(shares)), key=lambda at: found[at] - exact[at])
    for at in by_remainder[: total - sum(found)]:
        found[at] += 1
    return found
