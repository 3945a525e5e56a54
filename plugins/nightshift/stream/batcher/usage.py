"""Tokens: of a merged request the server reports only the sum, and of one in pieces the parts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def estimated(usage: Any, inputs: Sequence[int], outputs: Sequence[int]) -> list[dict[str, int]] | None:
    """A share of ``usage`` for each caller; None if the reply has none that can be read.

    inputs, outputs: bytes of what each sent and of what it gets. Tokens are shared out in proportion to them, so the shares add
    up to what the server has reported, but a single share is an estimate.
    """
    if not isinstance(usage, dict):
        return None
    totals = {name: usage.get(name) for name in ("prompt_tokens", "completion_tokens")}
    prompt, completion = totals["prompt_tokens"], totals["completion_tokens"]
    if type(prompt) is not int or prompt < 0:
        return None
    if type(completion) is not int or completion < 0:
        return [{"prompt_tokens": share, "total_tokens": share} for share in shares(prompt, inputs)]
    return [
        {"prompt_tokens": one, "completion_tokens": other, "total_tokens": one + other}
        for one, other in zip(shares(prompt, inputs), shares(completion, outputs), strict=True)
    ]


def summed(usages: Sequence[Any]) -> dict[str, int] | None:
    """The tokens of one caller's requests together; None unless all report them, and the same kinds of them."""
    if not all(isinstance(usage, dict) for usage in usages):
        return None
    counts = [{name: count for name, count in usage.items() if type(count) is int} for usage in usages]
    if any(each.keys() != counts[0].keys() for each in counts):
        return None
    return {name: sum(each[name] for each in counts) for name in counts[0]} or None


def shares(total: int, weights: Sequence[int]) -> list[int]:
    """Whole numbers in proportion to the weights that add up to `total`: those with the largest remainders are rounded up."""
    whole = sum(weights)
    if not whole:
        weights, whole = [1] * len(weights), len(weights)
    found = [total * weight // whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda place: (-(total * weights[place] % whole), place))
    for place in by_remainder[: total - sum(found)]:
        found[place] += 1
    return found
