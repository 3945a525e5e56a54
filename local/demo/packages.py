"""What the demos are about: the distributions that are installed in some environments, as their authors describe them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Any


def packages(environments: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """Each name and version once, sorted: environments share many packages."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    folders = [str(path / "lib" / version / "site-packages") for path in environments]
    found = {(item.name, item.version): item for item in distributions(path=folders)}
    for (name, number), item in sorted(found.items()):
        facts = item.metadata.json
        yield {
            "name": name,
            "version": number,
            "summary": facts.get("summary"),
            "description": facts.get("description"),
            "home_page": facts.get("home_page"),
        }
