"""In which order the rows of a run are planned, and what is counted to decide it. The decision: `nightshift.planner.order`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from nightshift.fields.stored import read

REMARK: Final = "-- nightshift orders the rows: "
"""How the first line of an ordered export begins. The rest is JSON, so that whoever finds the job later knows what it did."""


@dataclass(frozen=True)
class Order:
    """columns: of the query, by which the rows are sorted, in order; none: they stay as BigQuery exports them.

    buckets: in how many parts they are sorted, each by itself; 0 if they are not. spread: how many of the columns decide a
    row's bucket. why: in words, for people.
    """

    columns: tuple[str, ...] = ()
    buckets: int = 0
    spread: int = 0
    why: str = ""

    @property
    def remark(self) -> str:
        """A line of SQL that `of_statement` reads."""
        body = {"columns": self.columns, "buckets": self.buckets, "spread": self.spread}
        return f"{REMARK}{json.dumps(body, ensure_ascii=True)}\n"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> Order | None:
        """Raises ValueError."""
        return None if value is None else read(cls, value)


def of_statement(sql: str) -> Order | None:
    """The order of an export's statement; None if it sorts nothing."""
    line = sql.partition("\n")[0]
    if not line.startswith(REMARK):
        return None
    try:
        found = read(Order, json.loads(line.removeprefix(REMARK)))
    except ValueError:
        return None
    return found if found.columns else None


@dataclass(frozen=True)
class Counts:
    """The rows of a query; and of each leading part of these columns, how many different values it has (distinct) and how many
    rows have its most frequent one (largest), both about."""

    rows: int
    columns: tuple[str, ...] = ()
    distinct: tuple[int, ...] = ()
    largest: tuple[int, ...] = ()
