"""A label, annotation or API version stands in one place: who writes a label and who reads it must mean the same."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from nightshift.jobset import labels
from tests.unit.architecture import Module, modules_of

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
NAMES = {value for key, value in vars(labels).items() if key.isupper()}


def repeated(module: Module) -> Iterator[str]:
    """The names that it writes out by itself, alone or in a longer text that is no docstring."""
    if not any(name in module.path.read_text() for name in NAMES):
        return
    docs = {id(node.value) for node in ast.walk(module.tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield from (name for name in NAMES if name in node.value)


def test_no_other_module_repeats_one() -> None:
    modules = modules_of(ROOT / "plugins" / "nightshift") | modules_of(ROOT / "local" / "runtime")
    others = [each for name, each in modules.items() if name != "nightshift.jobset.labels" and ".tests." not in name]
    found = {each.name: list(repeated(each)) for each in others}

    assert {name: strings for name, strings in found.items() if strings} == {}


def test_the_check_bites(tmp_path: Path) -> None:
    path = tmp_path / "m.py"
    path.write_text('"""Of nightshift.dev/run."""\nX = "nightshift.dev/run"\nY = f"/apis/jobset.x-k8s.io/v1alpha2/{X}"\n')

    assert set(repeated(Module("m", path))) == {"nightshift.dev/run", "jobset.x-k8s.io/v1alpha2"}
