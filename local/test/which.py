"""Which tests are a module's: those with its name, those that import it, or else those of what imports it.

``python3 -m local.test.which FILE...`` prints them, the best first. CONTRIBUTING.md lists the modules whose tests neither have
their name nor import them (`local.test.table`).
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from local.environments import ROOT
from local.test.groups import every_file

PLUGINS: Final = ROOT / "plugins"
UNIT: Final = "tests/unit/"
ENDINGS: Final = ("", "_command", "_operator", "_trigger")
"""What a test's name may have after its module's."""
_IMPORT: Final = re.compile(
    r"^\s*(?:from (nightshift[\w.]*) import (\([^)]*\)|[^\n]*)|import (nightshift[\w.]*))", re.MULTILINE
)


@dataclass(frozen=True)
class Tests:
    """Of one module. direct: they have its name or import it."""

    files: tuple[str, ...]
    direct: bool


@cache
def every_module() -> Mapping[str, Tests]:
    """By the module's file, as a path below the root. Packages that only have a docstring are left out."""
    modules = {_name(file): str(file.relative_to(ROOT)) for file in sorted(PLUGINS.rglob("nightshift/**/*.py"))}
    users: dict[str, set[str]] = defaultdict(set)
    testers: dict[str, list[str]] = defaultdict(list)
    for name, path in modules.items():
        for other in _imported(path) & modules.keys() - {name}:
            users[other].add(name)
        # A package may run by their names what is in it, such as the modules of commands.
        users[name].add(name.rpartition(".")[0])
    for test in every_file():
        for name in _imported(test) & modules.keys():
            testers[name].append(test)
    return {
        path: _tests_of(name, users, testers)
        for name, path in modules.items()
        if not path.endswith("__init__.py") or re.search(r"^(?:def|class|from|import) |^\w+.* = ", _text(path), re.MULTILINE)
    }


def _tests_of(name: str, users: Mapping[str, set[str]], testers: Mapping[str, list[str]]) -> Tests:
    parts = name.split(".")
    folder = f"{UNIT}{parts[1]}/" if len(parts) > 2 else UNIT
    leaf = parts[-1].strip("_")
    own = [path for ending in ENDINGS if (ROOT / (path := f"{folder}test_{leaf}{ending}.py")).exists()]
    found = _sorted(testers[name], folder, leaf)
    direct = bool(own or found)
    seen = level = {name}
    while not own and not found and level:
        level = {user for each in level for user in users[each]} - seen
        seen = seen | level
        found = _sorted((test for each in level for test in testers[each]), folder, leaf)
    return Tests(tuple(dict.fromkeys([*own, *found])), direct)


def _sorted(tests: Iterable[str], folder: str, leaf: str) -> list[str]:
    """Those without a process first, of these the room's own, of these such as say the module's name most often."""
    said = re.compile(rf"(?<![a-z]){leaf.replace('_', '[ _-]')}(?![a-z])")
    return sorted(
        set(tests),
        key=lambda each: (not each.startswith(UNIT), not each.startswith(folder), -len(said.findall(_text(each))), each),
    )


def _name(file: Path) -> str:
    return ".".join(file.relative_to(PLUGINS).with_suffix("").parts).removesuffix(".__init__")


@cache
def _text(path: str) -> str:
    return (ROOT / path).read_text()


@cache
def _imported(path: str) -> frozenset[str]:
    """Dotted names that may be modules, wherever in the file they are imported."""
    found: set[str] = set()
    for package, names, module in _IMPORT.findall(_text(path)):
        found |= {module or package, *(f"{package}.{each}" for each in re.findall(r"\w+", names))}
    return frozenset(found)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(*every_module()[str(Path(argument).resolve().relative_to(ROOT))].files, sep="\n")
