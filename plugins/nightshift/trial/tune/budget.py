"""What a tune may take: rows for a trial; a time, or an amount of money, for all of them. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nightshift.fields.values import DURATION_PATTERN, duration_seconds

if TYPE_CHECKING:
    from nightshift.planner.costs.prices import Prices
    from nightshift.spec import JobSpec

DEFAULT: Final = "1h"
ROWS: Final = 1_000
"""Of a trial, if nothing is said."""
ROWS_MOST: Final = 100_000


@dataclass(frozen=True)
class Budget:
    """seconds: of all trials together. money: what they may cost, in the currency of the prices. One of the two is None."""

    seconds: float | None
    money: float | None = None

    @classmethod
    def read(cls, text: str) -> Budget:
        """``30m``, ``4.50``. Raises ValueError with what to write."""
        if re.fullmatch(DURATION_PATTERN, text) and duration_seconds(text) > 0:
            return cls(float(duration_seconds(text)))
        if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,4})?", text) and float(text) > 0:
            return cls(None, float(text))
        raise ValueError(f"{text!r} is neither a time, for example 30m, nor an amount of money, for example 4.50")

    def seconds_for(self, spec: JobSpec, prices: Prices) -> float:
        """Of trials of this job. Raises ValueError for money where no price is known."""
        if self.money is None:
            return self.seconds or 0.0
        worker = spec.compute.worker()
        price = prices.machines.get(worker.price_name)
        if not price:
            raise ValueError(
                f"the budget is an amount, and no price of {worker.price_name} is known. Write a time, for example 30m."
            )
        return self.money / (price * worker.machines) * 3600
