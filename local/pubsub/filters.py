"""Filters of subscriptions, by a message's attributes: those that nightshift's pages name. Pure.

``attributes:KEY`` and ``NOT attributes:KEY``; KEY is a word of letters, digits, hyphens and underscores. The rest of the
language (page: "Filter messages from a subscription") is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from local.pubsub.errors import not_implemented

Filter = Callable[[Mapping[str, str]], bool]
"""Whether a message with these attributes is delivered."""

_PRESENCE: Final = re.compile(r"\s*(NOT\s+|-\s*)?attributes\s*:\s*([A-Za-z0-9_][A-Za-z0-9_-]*)\s*")


def parse(text: str) -> Filter:
    """Raises `local.pubsub.errors.Refusal` for any other text. An empty one lets every message through."""
    if not text.strip():
        return lambda _: True
    found = _PRESENCE.fullmatch(text)
    if not found:
        raise not_implemented(f"filter {text!r}; it has attributes:KEY and NOT attributes:KEY")
    there, key = not found[1], found[2]
    return lambda attributes: (key in attributes) is there
