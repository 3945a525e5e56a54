"""Numbers as text for users."""

from __future__ import annotations


def minutes(seconds: float) -> str:
    """A length of time as text."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 3 * 3600:
        return f"{seconds / 60:,.0f} min"
    return f"{seconds / 3600:,.1f} h"


def n(count: int, noun: str) -> str:
    """A count and its noun, which gets an s: 1 row, 2,000 rows."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
