"""The wheel, built and installed as the local stack does it: what it holds, and that it works without the checkout."""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from local import package
from local.environments import ROOT, environment_dir
from nightshift import __version__
from nightshift.cli.version import described
from tests.integration.package.imports import airflow_variables, imported_in

pytestmark = [pytest.mark.integration, pytest.mark.gate]


def test_it_holds_every_module_and_nothing_else() -> None:
    with zipfile.ZipFile(package.wheel()) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}

    modules = {str(file.relative_to(ROOT / "plugins")) for file in (ROOT / "plugins/nightshift").rglob("*.py")}
    prices = {f"nightshift/planner/costs/list_prices/{region}.yaml" for region in ("europe-west4", "us-central1")}
    pages = {
        str(file.relative_to(ROOT / "plugins"))
        for folder in ("templates", "static")
        for file in (ROOT / "plugins/nightshift/plugin/pages" / folder).iterdir()
    }
    assert len(pages) > 10
    flags = {"nightshift/spec/vllm_flags.json"}
    assert names == modules | prices | flags | pages | {"nightshift/py.typed"}


def test_the_same_source_is_the_same_wheel() -> None:
    assert package.wheel() == package.wheel()
    assert (package.installed() / "nightshift" / "plugin" / "pages" / "templates" / "base.html").is_file()


def test_a_changed_file_is_another_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyproject.toml", "hatch_build.py", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "plugins", tmp_path / "plugins", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(package, "ROOT", tmp_path)
    before = package.wheel()
    (tmp_path / "plugins/nightshift/__pycache__").mkdir()
    (tmp_path / "plugins/nightshift/__pycache__/exits.cpython-311.pyc").write_bytes(b"Python's own")
    assert package.wheel() == before
    (tmp_path / "plugins/nightshift/exits.py").write_text("CHANGED = True\n")

    after = package.wheel()

    assert after != before
    with zipfile.ZipFile(after) as archive:
        assert archive.read("nightshift/exits.py") == b"CHANGED = True\n"
    shutil.rmtree(after.parent)


def test_airflow_can_import_all_that_it_needs_of_it(tmp_path: Path) -> None:
    found = imported_in("airflow", tmp_path)

    assert {"nightshift.operators.infer", "nightshift.triggers.jobset", "nightshift.hooks.kubernetes_engine"} <= found.keys()
    assert [name for name, file in found.items() if not file.startswith(str(package.installed()))] == []


@pytest.mark.parametrize(("command", "row"), [("plugins", "nightshift"), ("providers list", "airflow-provider-nightshift")])
def test_airflows_commands_list_it(command: str, row: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [str(environment_dir("airflow") / "bin" / "airflow"), *command.split(), "--output", "json"],
        env=airflow_variables(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    listed = json.loads(done.stdout[done.stdout.index("[{") :])

    assert row in [each.get("name") or each.get("package_name") for each in listed]


def test_it_says_of_which_commit_it_is() -> None:
    """The wheel's own metadata does, without the checkout; the same as git says of the files that it was built from."""
    command = [str(environment_dir("airflow") / "bin" / "python"), "-m", "nightshift.cli", "--version"]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(package.installed()), "PATH": ""}, cwd="/", capture_output=True, text=True, check=True
    )

    assert done.stdout == f"nightshift {__version__} (code of commit {described(ROOT / 'plugins/nightshift')})\n"
