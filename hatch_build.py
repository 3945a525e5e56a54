"""Hatchling's build hook: records in the wheel which commit it was built from, for ``nightshift --version``.

The text goes into the wheel's ``.dist-info``. It is that of `nightshift.cli.version.described`, which a checkout uses too. That
module is loaded by its path, as nothing is installed while a wheel is built.
"""

from __future__ import annotations

import runpy
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class RecordCommit(BuildHookInterface):  # type: ignore[type-arg]
    """Named in pyproject.toml."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        module = runpy.run_path(str(Path(self.root) / "plugins/nightshift/cli/version.py"))
        described = module["described"](Path(self.root) / "plugins/nightshift")
        if described is not None:
            self._folder = tempfile.TemporaryDirectory()
            record = Path(self._folder.name) / module["RECORD"]
            record.write_text(described, encoding="utf-8")
            build_data["extra_metadata"][str(record)] = record.name

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if build_data["extra_metadata"]:
            self._folder.cleanup()
