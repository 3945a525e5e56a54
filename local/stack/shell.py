"""What ``make env`` prints: the variables of a stack's clients for a person's shell, which keeps them for hours.

Without secrets, which a screen and the shell's children would show: Airflow reads those from files that only their owner can
read. And without PYTHONPATH, which would put this nightshift before the user's own: Airflow's commands find it in their home.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from local.stack.folder import Folder

SECRETS: Final = ("AIRFLOW__API__SECRET_KEY", "AIRFLOW__API_AUTH__JWT_SECRET", "AIRFLOW__CORE__FERNET_KEY")


def prepare(folder: Folder, settings: Mapping[str, str], package: Path) -> None:
    """Writes what the shell's Airflow reads instead.

    settings: Airflow's environment. package: the folder where nightshift is installed.
    """
    for name in SECRETS:
        with open(os.open(_secret(folder, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(settings[name])
    # Airflow puts this folder at the end of its path.
    config = folder.airflow_home / "config"
    config.mkdir(exist_ok=True)
    for old in config.iterdir():
        if old.is_symlink():
            old.unlink()
    for part in (package / "nightshift", *package.glob("*.dist-info")):
        (config / part.name).symlink_to(part)


def variables(folder: Folder, environment: Mapping[str, str]) -> dict[str, str]:
    """Those of the shell. environment: of the stack's clients (`local.stack.stack.Stack.environment`)."""
    shown = {name: value for name, value in environment.items() if name not in (*SECRETS, "PYTHONPATH")}
    return shown | {f"{name}_CMD": shlex.join(["cat", str(_secret(folder, name))]) for name in SECRETS if name in environment}


def exports(shown: Mapping[str, str]) -> str:
    """Lines that set these variables in a POSIX shell, sorted by name."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in sorted(shown.items()))


def _secret(folder: Folder, name: str) -> Path:
    return folder.path / f"{name.lower()}.secret"
