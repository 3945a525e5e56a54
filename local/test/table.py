"""The tables in CONTRIBUTING.md, made from `local.test.groups` and `local.test.which`.

``python3 -m local.test.table`` writes them; a unit test checks that they are current.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import Final

from local.environments import ROOT
from local.test.groups import GROUPS, Group
from local.test.which import every_module

PAGE: Final = ROOT / "CONTRIBUTING.md"
MADE: Final = "made by python3 -m local.test.table"


def with_tables(page: str) -> str:
    """The page with the current tables. Raises ValueError for a page without their comments."""
    return _with(_with(page, "groups of tests", groups()), "modules without tests of their own", modules())


def groups() -> str:
    head = "| Group | Covers | Needs | `make test` | `make test-all` |\n|---|---|---|---|---|"
    return "\n".join([head, *(_line(group) for group in GROUPS)])


def modules() -> str:
    """A line for each room: its modules that no test has the name of or imports, by the test to run in its place."""
    rooms: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path, tests in every_module().items():
        if not tests.direct:
            room, _, name = path.removeprefix("plugins/nightshift/").removesuffix(".py").partition("/")
            rooms[room][tests.files[0]].append(name)
    said = {room: "; ".join(f"{', '.join(names)}: {test}" for test, names in of.items()) for room, of in rooms.items()}
    return "\n".join(
        [
            "| Room | Modules: their test |\n|---|---|",
            *(f"| {room} | {text} |" for room, text in said.items()),
        ]
    )


def _with(page: str, what: str, table: str) -> str:
    begin, end = f"<!-- {what}: {MADE} -->", f"<!-- end of the {what} -->"
    before, _, rest = page.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"{PAGE.name} has no lines {begin!r} and {end!r}")
    return f"{before}{begin}\n{table}\n{end}{after}"


def _line(group: Group) -> str:
    covers = ", ".join(f"`{path}`" for path in group.covers)
    needs = ", ".join(sorted(group.needs - {"test"})) or "nothing else"
    return f"| `{group.name}` | {covers} | {needs} | {group.gate_s} s | {group.all_s} s |"


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
    sys.exit(0)
