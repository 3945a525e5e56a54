"""What ``make env`` prints."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from local.stack import airflow, shell
from local.stack.folder import Folder

pytestmark = pytest.mark.unit


def test_a_shell_has_the_settings_and_neither_a_secret_nor_a_path(tmp_path: Path) -> None:
    folder, package = Folder.at(tmp_path / "a state"), tmp_path / "installed"
    folder.make()
    (package / "nightshift").mkdir(parents=True)
    (package / "nightshift.dist-info").mkdir()
    (package / "bin").mkdir()
    settings = airflow.settings(folder, dict.fromkeys(airflow.PORTS, 1), airflow.Choice(tmp_path), package)
    (folder.airflow_home / "config").mkdir()
    (folder.airflow_home / "config" / "nightshift").symlink_to("/of/an/earlier/wheel")

    shell.prepare(folder, settings, package)
    shown = shell.variables(folder, settings)

    assert [secret for secret in folder.secrets().values() if secret in shell.exports(shown)] == []
    assert settings.keys() - shown.keys() == {*shell.SECRETS, "PYTHONPATH"}
    for name in shell.SECRETS:
        command = shlex.split(shown[f"{name}_CMD"])
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == settings[name]
        assert Path(command[-1]).stat().st_mode & 0o077 == 0
    config = folder.airflow_home / "config"
    assert {each.name: each.resolve() for each in config.iterdir()} == {
        name: package / name for name in ("nightshift", "nightshift.dist-info")
    }
