"""What the source says of itself: which module imports which, and how long its functions and classes are."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs/architecture.md"
BEGIN: Final = "<!-- lines: made by python -m tests.unit.architecture --write -->"
END: Final = "<!-- end of lines -->"
ROOM_LEFT: Final = 1.02
"""A budget that is higher than this times what there is has been left behind by the code."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One file. name: dotted, as it is imported; a package's own is that of its folder."""

    name: str
    path: Path

    @property
    def room(self) -> str:
        """The part of the package that it belongs to: ``jobset`` for nightshift.jobset.kubernetes.follow; '' for the root."""
        return self.name.split(".")[1] if "." in self.name else ""

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text())

    @cached_property
    def imports(self) -> set[str]:
        """Every name that it imports, also inside functions and for type checkers only. A relative one is a ValueError."""
        found: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                if node.level:
                    raise ValueError(f"{self.path}:{node.lineno}: a relative import; write the whole name")
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
        return found

    def functions(self) -> Iterator[Function]:
        """Methods and inner functions too."""
        for node in ast.walk(self.tree):
            if isinstance(node, Function):
                yield node

    def classes(self) -> Iterator[ast.ClassDef]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ClassDef):
                yield node


def modules_of(folder: Path) -> dict[str, Module]:
    """By name, of a package's folder: ``plugins/nightshift`` gives nightshift, nightshift.cli, ..."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = Module(name, path)
    return found


def target_of(imported: str, modules: Mapping[str, Module]) -> str | None:
    """The module that an imported name is or is in; None for one of another package."""
    while imported and imported not in modules:
        imported = imported.rpartition(".")[0]
    return imported or None


def circles(modules: Mapping[str, Module]) -> list[list[str]]:
    """Groups of modules each of which needs each other one, sorted."""
    needs = {
        name: {target for each in module.imports if (target := target_of(each, modules)) and target != name}
        for name, module in modules.items()
    }
    reach = {name: _reachable(name, needs) for name in needs}
    groups = {tuple(sorted(other for other in reach[name] if name in reach[other])) for name in needs if name in reach[name]}
    return sorted(list(group) for group in groups)


def _reachable(start: str, needs: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = list(needs[start])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += needs[name]
    return found


def lines_of(node: Function) -> int:
    """From its ``def`` to its last line."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def methods_of(node: ast.ClassDef) -> int:
    """Its own ones. A property is an attribute to who uses the class, and does not count."""
    properties = {"property", "cached_property", "setter"}
    own = [each for each in node.body if isinstance(each, Function)]
    return sum(not any(_last_name(decorator) in properties for decorator in each.decorator_list) for each in own)


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def room_arrows(modules: Mapping[str, Module]) -> dict[str, set[str]]:
    """Room -> the other rooms that its modules import. The root, ``''``, holds what lies in no room."""
    rooms: dict[str, set[str]] = {module.room: set() for module in modules.values()}
    for module in modules.values():
        targets = {modules[target].room for each in module.imports if (target := target_of(each, modules))}
        rooms[module.room] |= targets - {module.room}
    return rooms


def floors(arrows: Mapping[str, set[str]]) -> int:
    """The length of the longest chain of rooms, each of which imports the next. The arrows must have no circle."""

    def height(room: str) -> int:
        return 1 + max((height(each) for each in arrows[room]), default=0)

    return max(height(room) for room in arrows)


def room_lines(modules: Mapping[str, Module]) -> dict[str, int]:
    """Room -> lines of its modules; the root is `root`. Sorted."""
    lines: Counter[str] = Counter()
    for module in modules.values():
        lines[module.room or "root"] += len(module.path.read_text().splitlines())
    return dict(sorted(lines.items()))


def lines_budget(page: str) -> dict[str, int]:
    """Room -> lines at most, as the architecture page has them."""
    table = page[page.index(BEGIN) : page.index(END)]
    return {room: int(lines.replace(",", "")) for room, lines in re.findall(r"^\| `(\w+)` \| ([\d,]+) \|", table, re.MULTILINE)}


def with_lines(page: str, lines: Mapping[str, int]) -> str:
    """The page with these as the budget."""
    rows = [f"| `{room}` | {count:,} |" for room, count in lines.items()]
    table = "\n".join([BEGIN, "| Room | Lines at most |", "|---|---|", *rows, ""])
    return page[: page.index(BEGIN)] + table + page[page.index(END) :]


def main() -> None:
    """Prints the size of the product: ``python -m tests.unit.architecture``; with ``--write`` its lines become the budget."""
    modules = modules_of(ROOT / "plugins" / "nightshift")
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(with_lines(PAGE.read_text(), room_lines(modules)))
    arrows = room_arrows(modules)
    print(f"rooms, with the root   {len(arrows)}")
    print(f"arrows between rooms   {sum(len(each) for each in arrows.values())}")
    print(f"floors                 {floors(arrows)}")
    print(f"circles of modules     {len(circles(modules))}")
    print(f"modules                {len(modules)}")
    print(f"lines                  {sum(room_lines(modules).values())}")


if __name__ == "__main__":
    main()
