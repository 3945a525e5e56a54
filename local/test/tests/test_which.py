"""Which tests are a module's."""

from __future__ import annotations

import pytest

from local.environments import ROOT
from local.test.which import every_module

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("module", "first"),
    [
        ("run/ledger", "tests/unit/run/test_ledger.py"),
        ("tasks/_templates", "tests/unit/tasks/test_templates.py"),
        ("cli/runs", "tests/unit/cli/test_runs_command.py"),
        ("store", "tests/unit/test_store.py"),
    ],
)
def test_the_first_has_the_modules_name(module: str, first: str) -> None:
    assert every_module()[f"plugins/nightshift/{module}.py"].files[0] == first


def test_others_import_it() -> None:
    tests = every_module()["plugins/nightshift/run/seal.py"]

    assert tests.direct
    assert all("seal" in (ROOT / file).read_text() for file in tests.files)


def test_of_what_none_imports_they_are_those_of_what_imports_it() -> None:
    """A command is imported by its name alone, from its package."""
    for module in ("cli/schema", "stream/names"):
        tests = every_module()[f"plugins/nightshift/{module}.py"]
        assert not tests.direct
        assert tests.files[0].startswith(f"tests/unit/{module.partition('/')[0]}/")


def test_every_module_has_a_test() -> None:
    assert [path for path, tests in every_module().items() if not tests.files] == []
