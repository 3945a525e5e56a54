"""The table of groups in CONTRIBUTING.md, made from `local.test.groups`.

``python3 -m local.test.table`` writes it; a unit test checks that it is current.
"""

from __future__ import annotations

import sys
from typing import Final

from local.environments import ROOT
from local.test.groups import GROUPS, Group

PAGE: Final = ROOT / "CONTRIBUTING.md"
BEGIN: Final = "<!-- groups of tests: made by python3 -m local.test.table -->"
END: Final = "<!-- end of the groups of tests -->"


def table() -> str:
    """The Markdown between `BEGIN` and `END`."""
    head = "| Group | Covers | Needs | `make test` | `make test-all` |\n|---|---|---|---|---|"
    return "\n".join([head, *(_line(group) for group in GROUPS)])


def with_table(page: str) -> str:
    """The page with the current table. Raises ValueError for a page without the two comments."""
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"{PAGE.name} has no lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def _line(group: Group) -> str:
    covers = ", ".join(f"`{path}`" for path in group.covers)
    needs = ", ".join(sorted(group.needs - {"test"})) or "nothing else"
    return f"| `{group.name}` | {covers} | {needs} | {group.gate_s} s | {group.all_s} s |"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
    sys.exit(0)
