"""The page of bounds says what the constants say."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any, Final

import pytest

pytestmark = pytest.mark.unit

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operate" / "limits.md"
UNITS: Final = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "Mi": 1 << 20, "s": 1, "min": 60}
ROW = re.compile(r"\| [^|]+ \| ([\d.,]+) ?(\w*) \| `([\w.]+)` \| [^|]*\|")


def rows() -> list[tuple[float, str]]:
    """Value and constant of each row."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and "Constant" not in line]
    found = [ROW.fullmatch(line) for line in lines]
    assert None not in found, [line for line, match in zip(lines, found, strict=True) if match is None]
    return [(float(match[1].replace(",", "")) * UNITS[match[2]], match[3]) for match in found if match]


def constant(name: str) -> Any:
    """Of a module, or the default of a class's field."""
    home, _, last = name.rpartition(".")
    try:
        return getattr(importlib.import_module(f"nightshift.{home}"), last)
    except ModuleNotFoundError:
        return getattr(constant(home), last)


@pytest.mark.parametrize(("value", "name"), rows())
def test_a_bound_is_what_the_page_says(value: float, name: str) -> None:
    assert constant(name) * (UNITS["MiB"] if name.endswith("_mb") else 1) == value
