"""Runs OpenTofu on a copy of `infra/`, with the stand-in for Google's provider."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from local.environments import ROOT
from local.terraform.build import Tools

INFRA: Final = ROOT / "infra"
BESIDE: Final = ("dags", "streams", "monitoring")
"""What modules of `infra/` read beside it, in the repository's root."""
_SCHEMA: Final = "NIGHTSHIFT_TERRAFORM_SCHEMA"


class Failed(Exception):
    """A command of OpenTofu failed; the message is what it printed."""


@dataclass(frozen=True)
class Workspace:
    """A copy of `infra/`. folder: the copy; its parent has what lies beside `infra/`, of its own or of this clone."""

    tools: Tools
    folder: Path

    @classmethod
    def make(cls, tools: Tools, place: Path) -> Workspace:
        """Copies `infra/` into the folder `place`, without state or variables, and finds its modules. Raises Failed."""
        folder = place / "infra"
        shutil.copytree(INFRA, folder, ignore=shutil.ignore_patterns(".terraform*", "terraform.tfvars", "*.tfstate*"))
        for name in BESIDE:
            if (ROOT / name).exists() and not (place / name).exists():
                (place / name).symlink_to(ROOT / name)
        rc = place / "tofurc"
        overrides = json.dumps({"hashicorp/google": str(tools.provider)}).replace(":", " =", 1)
        rc.write_text(f"provider_installation {{\n  dev_overrides {overrides}\n  direct {{}}\n}}\n")
        made = cls(tools, folder)
        made.run("get")
        return made

    def run(self, *arguments: str, schema: Path | None = None) -> str:
        """What `tofu ARGUMENTS` prints on stdout. schema: another than the whole one. Raises Failed."""
        done = self.attempt(*arguments, schema=schema)
        if done.returncode:
            raise Failed(f"tofu {' '.join(arguments)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def attempt(self, *arguments: str, schema: Path | None = None) -> subprocess.CompletedProcess[str]:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TF_")},
            "TF_CLI_CONFIG_FILE": str(self.folder.parent / "tofurc"),
            "TF_IN_AUTOMATION": "1",
            _SCHEMA: str(schema or self.tools.schema),
            # Its processes are short: without the collection of garbage they take half of the time, and 300 MB.
            "GOGC": "off",
        }
        command = [str(self.tools.tofu), *arguments]
        return subprocess.run(
            command, cwd=self.folder, env=environment, text=True, capture_output=True, stdin=subprocess.DEVNULL
        )

    def problems(self, *, schema: Path | None = None) -> list[str]:
        """What `tofu validate` says against it, each with its file and line; empty if it is valid."""
        return [_line(each) for each in self._errors(schema)]

    def places_of_problems(self, *, schema: Path | None = None) -> list[tuple[str, int]]:
        """Files and lines, from 1, of what `tofu validate` says against it."""
        ranges = [each["range"] for each in self._errors(schema) if "range" in each]
        return [(each["filename"], each["start"]["line"]) for each in ranges]

    def _errors(self, schema: Path | None) -> list[dict[str, Any]]:
        done = self.attempt("validate", "-json", schema=schema)
        return [each for each in json.loads(done.stdout)["diagnostics"] if each["severity"] == "error"]

    def state(self) -> dict[str, Any]:
        """Its state, as OpenTofu keeps it; empty before the first apply."""
        file = self.folder / "terraform.tfstate"
        state: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"resources": [], "outputs": {}}
        return state


def _line(diagnostic: dict[str, Any]) -> str:
    place = diagnostic.get("range")
    where = f"{place['filename']}:{place['start']['line']}: " if place else ""
    return f"{where}{diagnostic['summary']}: {diagnostic.get('detail', '')}"
