"""The tokens of requests that were merged or cut: the server reports those of what it got. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any


def estimated(usage: Any, inputs: Sequence[int], outputs: Sequence[int]) -> list[dict[str, int]] | None:
    """A share of ``usage`` for each caller; None if the reply has none that can be read.

    inputs, outputs: bytes of what each sent and of what it gets. Tokens are shared out in proportion to them, so the shares add
    up to what the server has reported, but a single share is an estimate.
    """
    found = [{"total_tokens": 0} for _ in inputs]
    for name, sizes in (("prompt_tokens", inputs), ("completion_tokens", outputs)):
        total = usage.get(name) if isinstance(usage, dict) else None
        if type(total) is int and total >= 0:
            for own, share in zip(found, shares(total, sizes), strict=True):
                own[name] = share
                own["total_tokens"] += share
        elif name == "prompt_tokens":
            return None
    return found


def summed(usages: Sequence[Any]) -> dict[str, int] | None:
    """The tokens of one caller's requests together; None unless all report them, and the same kinds of them."""
    if not all(isinstance(usage, dict) for usage in usages):
        return None
    counts = [{name: count for name, count in usage.items() if type(count) is int} for usage in usages]
    if any(each.keys() != counts[0].keys() for each in counts):
        return None
    return {name: sum(each[name] for each in counts) for name in counts[0]} or None


def shares(total: int, weights: Sequence[int]) -> list[int]:
    """Whole numbers in proportion to the weights that add up to `total`."""
    weights = weights if any(weights) else [1] * len(weights)
    whole = sum(weights)
    ends = [(total * each + whole // 2) // whole for each in accumulate(weights)]
    return [end - start for start, end in pairwise([0, *ends])]
