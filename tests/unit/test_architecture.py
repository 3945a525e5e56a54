"""The arrows between the rooms, and the limits that keep modules readable, held by reading every import."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = ROOT / "plugins"
LINES_MAX = 450

ALLOWED: dict[str, set[str]] = {
    # room: the rooms it may import besides itself
    "exits": set(),
    "profiles": set(),
    "settings": set(),
    "store": set(),
    "spec": {"profiles", "tasks"},
    "tasks": {"spec"},
    "run": {"profiles", "spec", "store"},
    "status": {"run", "store"},
    "batch": {"driver", "exits", "run", "store", "tasks"},
    "driver": {"exits", "run", "spec", "store", "tasks"},
    "jobset": {"exits", "profiles", "run", "settings", "spec", "tasks"},
    "warehouse": {"run", "settings", "spec", "store", "tasks"},
    "lineage": {"run", "settings", "spec", "tasks"},
}
AIRFLOW_ROOMS = {"hooks", "operators", "timetables", "triggers"}
CLI = "cli"


def modules() -> list[Path]:
    return sorted((PLUGINS / "nightshift").rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(PLUGINS / "nightshift").parts[0].removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    """Every module that a file imports, also inside functions, as dotted names."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def violations(path: Path) -> list[str]:
    room = room_of(path)
    found = []
    for name in sorted(imports_of(path)):
        top, *rest = name.split(".")
        if top == "airflow" and room not in AIRFLOW_ROOMS:
            found.append(f"{path.relative_to(ROOT)}: imports {name}; Airflow stays in {sorted(AIRFLOW_ROOMS)}")
        if top in ("local", "tests"):
            found.append(f"{path.relative_to(ROOT)}: imports {name}; nothing under plugins/ knows {top}/")
        if (
            top == "nightshift"
            and rest
            and (PLUGINS / "nightshift" / rest[0]).with_suffix(".py").exists() | (PLUGINS / "nightshift" / rest[0]).is_dir()
        ):
            target = rest[0]
            if room in AIRFLOW_ROOMS | {CLI, "__init__"} or target == room:
                continue
            if target not in ALLOWED[room]:
                found.append(f"{path.relative_to(ROOT)}: {room} may not import {target}")
    return found


def test_arrows_point_one_way() -> None:
    assert [line for path in modules() for line in violations(path)] == []


def test_the_check_bites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "plugins"
    (fake / "nightshift/driver").mkdir(parents=True)
    (fake / "nightshift/jobset").mkdir()
    module = fake / "nightshift/driver/engine.py"
    module.write_text(
        "def f():\n    from airflow.sdk import DAG\n    import nightshift.jobset.manifest\n    import local.stack\n"
    )
    monkeypatch.setattr(sys.modules[__name__], "PLUGINS", fake)
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)

    assert [line.split(": ", 1)[1].split(";")[0] for line in violations(module)] == [
        "imports airflow.sdk.DAG",
        "imports local.stack",
        "driver may not import jobset",
    ]


def test_rooms_that_are_gone_are_not_listed() -> None:
    there = {room_of(path) for path in modules()}

    assert set(ALLOWED) | AIRFLOW_ROOMS | {CLI, "__init__"} == there


@pytest.mark.parametrize("path", sorted(ROOT.glob("plugins/**/*.py")) + sorted(ROOT.glob("local/**/*.py")), ids=str)
def test_modules_stay_short(path: Path) -> None:
    lines = len(path.read_text().splitlines())

    assert lines <= LINES_MAX, f"{path.relative_to(ROOT)} has {lines} lines; does it still have one reason to change?"


def test_the_driver_loads_nothing_that_a_pod_lacks() -> None:
    heavy = ["airflow", "google.cloud.bigquery", "kubernetes", "sqlglot", "openlineage", "pandas"]
    code = f"import nightshift.driver.process, sys; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(PLUGINS)}
    )

    assert done.stdout.strip() == "[]"
