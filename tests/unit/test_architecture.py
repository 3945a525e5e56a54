"""The order of the rooms, no circles, and the limits that keep modules readable, held by reading every import."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import nightshift
from tests.unit.architecture import (
    BEGIN,
    END,
    PAGE,
    ROOM_LEFT,
    ROOT,
    Module,
    circles,
    lines_budget,
    lines_of,
    methods_of,
    modules_of,
    room_lines,
    with_lines,
)

pytestmark = pytest.mark.unit

PLUGINS = ROOT / "plugins"
PRODUCT = modules_of(PLUGINS / "nightshift")


def is_test(name: str) -> bool:
    """Whether a module, or what is imported from one, belongs to the tests: those of this folder, or those beside a program."""
    top, *rest = name.split(".")
    return top == "tests" or (top == "local" and ("tests" in rest or rest == ["conftest"]))


LOCAL = {name: module for name, module in modules_of(ROOT / "local").items() if not is_test(name)}

MODULE_LINES_MAX = 450
FUNCTION_LINES_MAX = 60
METHODS_MAX = 25

ALLOWED: dict[str, set[str]] = {
    # room: the rooms that it may import besides itself. From the bottom up: each stands below all that may import it.
    "": set(),
    "exits": set(),
    "formats": {""},
    "fields": set(),
    "profiles": {"fields"},
    "settings": set(),
    "store": {"fields"},
    "tasks": {"fields"},
    "spec": {"fields", "profiles", "tasks"},
    "run": {"", "fields", "formats", "spec", "store"},
    "planner": {"fields", "formats", "profiles", "run", "spec", "store", "tasks"},
    "status": {"fields", "formats", "planner", "run", "spec", "store", "tasks"},
    "driver": {"", "exits", "fields", "run", "spec", "store", "tasks"},
    "batch": {"driver", "exits", "fields", "formats", "run", "spec", "store", "tasks"},
    "jobset": {"exits", "fields", "profiles", "run", "settings", "spec", "store", "tasks"},
    "warehouse": {"fields", "formats", "run", "settings", "spec", "store", "tasks"},
    "trial": {
        "driver",
        "exits",
        "fields",
        "formats",
        "jobset",
        "planner",
        "run",
        "settings",
        "spec",
        "store",
        "tasks",
    },
    "stream": {"driver", "exits", "fields", "formats", "jobset", "run", "settings", "spec", "store", "tasks", "warehouse"},
    "batcher": {"driver", "exits", "fields", "stream"},
    "hooks": {"fields", "jobset", "settings", "spec", "store", "warehouse"},
    "doctor": {"", "fields", "hooks", "jobset", "profiles", "run", "settings", "spec", "store", "stream", "warehouse"},
    "triggers": {"", "fields", "hooks", "jobset", "run", "settings", "spec", "store", "warehouse"},
    "operators": {
        "doctor",
        "exits",
        "fields",
        "formats",
        "hooks",
        "jobset",
        "planner",
        "profiles",
        "run",
        "settings",
        "spec",
        "status",
        "store",
        "stream",
        "tasks",
        "triggers",
        "trial",
        "warehouse",
    },
    "plugin": {"fields", "formats", "hooks", "operators", "planner", "run", "settings", "status", "store", "trial"},
    "provider": set(),
    "cli": {
        "",
        "batch",
        "batcher",
        "doctor",
        "exits",
        "fields",
        "hooks",
        "jobset",
        "planner",
        "profiles",
        "run",
        "settings",
        "spec",
        "status",
        "store",
        "stream",
        "trial",
        "warehouse",
    },
}
AIRFLOW_ROOMS = {"hooks", "operators", "plugin", "triggers"}

PUBLIC = set(re.findall(r"^- ``nightshift\.(\w+)``", nightshift.__doc__ or "", re.MULTILINE))
"""The rooms that the package's docstring offers to others."""
DEPLOYED_WITH_IT = {"settings"}
"""What this repository's own DAGs use besides: they are deployed together with the package."""
EXAMPLES = [*ROOT.glob("docs/examples/*.py"), *ROOT.glob("docs/**/*.md"), ROOT / "README.md"]


def wrong_imports(module: Module, rooms: set[str]) -> Iterator[str]:
    """What a module of the product may not import, a line for each. rooms: those of the product."""
    for name in sorted(module.imports):
        top, _, rest = name.partition(".")
        target = rest.split(".")[0]
        if top == "airflow" and module.room not in AIRFLOW_ROOMS:
            yield f"{module.name} imports {name}: Airflow stays in {', '.join(sorted(AIRFLOW_ROOMS))}"
        elif top in ("local", "tests"):
            yield f"{module.name} imports {name}: the product knows nothing of {top}/"
        elif top == "nightshift":
            room = target if target in rooms else ""
            if room != module.room and room not in ALLOWED[module.room]:
                yield f"{module.name} imports {name}: {module.room or 'the root'} may not import {room or 'the root'}"


def imports_of_tests(modules: Mapping[str, Module]) -> Iterator[str]:
    for module in modules.values():
        for name in sorted(module.imports):
            if is_test(name):
                yield f"{module.name} imports {name}"


def upward(allowed: Mapping[str, set[str]]) -> list[tuple[str, str]]:
    """(room, room above it or on its own floor that it may import)."""
    floors = list(allowed)
    return [(room, each) for room in floors for each in sorted(allowed[room]) if floors.index(each) >= floors.index(room)]


def too_long(module: Module) -> Iterator[str]:
    lines = len(module.path.read_text().splitlines())
    if lines > MODULE_LINES_MAX:
        yield f"{module.name} has {lines} lines, {MODULE_LINES_MAX} at most: does it still have one reason to change?"
    for function in module.functions():
        if lines_of(function) > FUNCTION_LINES_MAX:
            yield f"{module.name}.{function.name} has {lines_of(function)} lines, {FUNCTION_LINES_MAX} at most"
    for each in module.classes():
        if methods_of(each) > METHODS_MAX:
            yield f"{module.name}.{each.name} has {methods_of(each)} methods, {METHODS_MAX} at most"


def imports_of_an_example(text: str) -> set[str]:
    """Rooms of nightshift that a text imports: a Python file, or a page with Python in it."""
    return set(re.findall(r"^ *(?:from|import) nightshift\.(\w+)", text, re.MULTILINE))


class TestRooms:
    def test_arrows_point_one_way(self) -> None:
        rooms = {module.room for module in PRODUCT.values()}

        assert [line for module in PRODUCT.values() for line in wrong_imports(module, rooms)] == []

    def test_no_room_may_import_upward(self) -> None:
        assert upward(ALLOWED) == []

    def test_every_room_and_every_permission_is_in_use(self) -> None:
        """So that the table says what is, not what was."""
        used: dict[str, set[str]] = {module.room: set() for module in PRODUCT.values()}
        for module in PRODUCT.values():
            for name in module.imports:
                top, _, rest = name.partition(".")
                room = rest.split(".")[0] if rest.split(".")[0] in used else ""
                if top == "nightshift" and room != module.room:
                    used[module.room].add(room)

        assert used == ALLOWED

    def test_the_check_bites(self, tmp_path: Path) -> None:
        written = {
            "driver/engine.py": "def f():\n    from airflow.sdk import DAG\n    import nightshift.jobset.manifest\n",
            "triggers/local.py": "import airflow\nfrom nightshift import operators\n",
            "jobset/x.py": "import local.stack\nfrom nightshift import __version__\n",
        }

        assert [line.split(":")[0] for line in self._lines(tmp_path, written)] == [
            "nightshift.driver.engine imports airflow.sdk.DAG",
            "nightshift.driver.engine imports nightshift.jobset.manifest",
            "nightshift.jobset.x imports local.stack",
            "nightshift.jobset.x imports nightshift.__version__",
            "nightshift.triggers.local imports nightshift.operators",
        ]

    def test_the_order_bites(self) -> None:
        assert upward({"low": {"high"}, "same": {"same"}, "high": {"low"}}) == [("low", "high"), ("same", "same")]

    def test_a_relative_import_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"engine\.py:1: a relative import"):
            self._lines(tmp_path, {"driver/engine.py": "from . import metrics\n"})

    def _lines(self, folder: Path, written: Mapping[str, str]) -> list[str]:
        package = folder / "nightshift"
        for path, text in written.items():
            (package / path).parent.mkdir(parents=True, exist_ok=True)
            (package / path).write_text(text)
        return [line for module in modules_of(package).values() for line in wrong_imports(module, set(ALLOWED))]


class TestLocal:
    """local/ holds programs, and their tests in folders of their own: ``local/*/tests``."""

    def test_programs_import_no_tests(self) -> None:
        assert list(imports_of_tests(LOCAL)) == []

    def test_nothing_else_imports_what_only_their_tests_use(self) -> None:
        every = {name: module for top in ("tests", "benchmarks") for name, module in modules_of(ROOT / top).items()}
        # To parse all of them would take half a minute.
        others = {
            name: module
            for name, module in every.items()
            if re.search(r"\blocal\b.*\b(tests|conftest)\b", module.path.read_text())
        }

        assert [line for line in imports_of_tests(others) if "imports local." in line] == []

    def test_the_check_bites(self, tmp_path: Path) -> None:
        package = tmp_path / "local"
        (package / "x" / "tests").mkdir(parents=True)
        (package / "x" / "main.py").write_text("def f():\n    from tests.builders import a\n    import local.x.tests.support\n")
        (package / "x" / "tests" / "test_main.py").write_text("import tests.builders\n")
        found = modules_of(package)

        assert [name for name in found if is_test(name)] == ["local.x.tests.test_main"]
        assert list(imports_of_tests({"local.x.main": found["local.x.main"]})) == [
            "local.x.main imports local.x.tests.support",
            "local.x.main imports tests.builders.a",
        ]


class TestCircles:
    def test_no_two_modules_need_each_other(self) -> None:
        assert circles(PRODUCT | LOCAL) == []

    def test_the_check_bites(self, tmp_path: Path) -> None:
        """Inside a function and for type checkers too, and through a third module."""
        package = tmp_path / "house"
        (package / "room").mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "a.py").write_text("from house import b\n")
        (package / "b.py").write_text("def f():\n    from house.room import g\n")
        (package / "room/__init__.py").write_text("if TYPE_CHECKING:\n    from house.a import T\n\ndef g(): ...\n")
        (package / "above.py").write_text("import house.a\nimport house\n")

        assert circles(modules_of(package)) == [["house.a", "house.b", "house.room"]]


class TestSizes:
    def test_modules_functions_and_classes_stay_short(self) -> None:
        assert [line for module in (PRODUCT | LOCAL).values() for line in too_long(module)] == []

    def test_the_check_bites(self, tmp_path: Path) -> None:
        def source(lines: int, methods: int) -> str:
            function = "def f():\n" + "    pass\n" * (lines - 1)
            own = "".join(f"    def m{number}(self): pass\n" for number in range(methods))
            return f"{function}class C:\n{own}    @property\n    def p(self): pass\n    @p.setter\n    def p(self, v): pass\n"

        (tmp_path / "short.py").write_text(source(FUNCTION_LINES_MAX, METHODS_MAX))
        (tmp_path / "long.py").write_text(source(FUNCTION_LINES_MAX + 1, METHODS_MAX + 1) + "\n" * MODULE_LINES_MAX)
        found = modules_of(tmp_path)

        names = [line.split(" has ")[0].removeprefix(f"{tmp_path.name}.") for line in too_long(found[f"{tmp_path.name}.long"])]
        assert names == ["long", "long.f", "long.C"]
        assert list(too_long(found[f"{tmp_path.name}.short"])) == []


class TestLines:
    def test_no_room_is_over_its_budget(self) -> None:
        """Whoever raises one says in the commit what the lines bought, and what went instead."""
        budget, lines = lines_budget(PAGE.read_text()), room_lines(PRODUCT)

        assert budget.keys() == lines.keys()
        assert {room: count for room, count in lines.items() if count > budget[room]} == {}, f"raise it in {PAGE.name}, or cut"

    def test_no_budget_is_far_above_what_there_is(self) -> None:
        """Or what one change saved, the next one could spend without a word."""
        budget, lines = lines_budget(PAGE.read_text()), room_lines(PRODUCT)

        loose = {room: most for room, most in budget.items() if most > lines[room] * ROOM_LEFT + 20}
        assert loose == {}, "run: python -m tests.unit.architecture --write"

    def test_the_table_is_read_as_it_is_written(self) -> None:
        page = f"before\n{BEGIN}\n{END}\nafter\n"

        assert lines_budget(with_lines(page, {"cli": 3440, "root": 12})) == {"cli": 3440, "root": 12}


class TestWhatOthersMayImport:
    """Said in the docstring of the package; the rest is private by convention."""

    def test_the_rooms_are_there(self) -> None:
        assert {"hooks", "operators", "spec", "triggers"} == PUBLIC

    @pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
    def test_examples_import_nothing_else(self, file: Path) -> None:
        assert imports_of_an_example(file.read_text()) <= PUBLIC

    @pytest.mark.parametrize("file", sorted(ROOT.glob("dags/*.py")), ids=lambda file: file.name)
    def test_our_own_dags_import_little_else(self, file: Path) -> None:
        assert imports_of_an_example(file.read_text()) <= PUBLIC | DEPLOYED_WITH_IT

    def test_the_check_bites(self) -> None:
        page = (
            "Write:\n```python\nfrom nightshift.spec import load\n  import nightshift.driver.worker\n```\nfrom nightshift.dev\n"
        )

        assert imports_of_an_example(page) == {"spec", "driver", "dev"}


def test_the_driver_loads_nothing_that_a_pod_lacks() -> None:
    heavy = ["airflow", "google.cloud.bigquery", "kubernetes", "sqlglot", "openlineage", "pandas"]
    code = f"import nightshift.driver.main, sys; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(PLUGINS)}
    )

    assert done.stdout.strip() == "[]"
