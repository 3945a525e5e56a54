"""Things in modules and classes that are replaced for as long as a context lasts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

Change = tuple[Any, str, Any]
"""An object, the name of what is replaced in it, and what it is replaced by."""


@contextlib.contextmanager
def replaced(changes: Iterable[Change]) -> Iterator[None]:
    """Puts the new things in place, and the old ones back at the end."""
    # From the owner's own namespace: a property or a static method must come back as what it is.
    known = [(owner, name, owner.__dict__[name], new) for owner, name, new in changes]
    for owner, name, _, new in known:
        setattr(owner, name, new)
    try:
        yield
    finally:
        for owner, name, old, _ in known:
            setattr(owner, name, old)
