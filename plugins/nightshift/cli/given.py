"""What a command was given, checked: the partition of a job, and the error for what it cannot use."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nightshift.spec import JobSpec


class Wrong(ValueError):
    """Bad input: the message says what, where, and what to do."""


def partition_of(spec: JobSpec, asked: str | None) -> str:
    """The partition that ``--partition`` means for this job; without one, the last that is over. Raises Wrong."""
    from nightshift.spec import periods

    if asked is None:
        return periods.at(datetime.now(UTC), spec.every)
    try:
        return periods.read(asked, spec.every)
    except periods.NoPartition as error:
        raise Wrong(f"--partition is {asked!r}. {error}") from None
