"""``python3 -m local.google_cloud.count [PAGE...]``: how many commands one types for a page, and how many programs they run.

By default of both paths from an empty project, to the first night and to a stream's first answered message: by hand
(k8s/README.md) and with Terraform (infra/README.md). Nothing of them is run: each program is a function that counts itself.
A loop is typed once and runs as often as it has words; the commands in scripts that a page runs count as run, and so do those
in ``$(...)``. Exit codes: 0, or 2 if a page has no commands.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory
from typing import Final

from local.composer import COMMANDS
from local.environments import ROOT

_INSIDE: Final = re.compile(r"    (?:do|done|then|else|fi|esac|\{|\})\b|    [{}]")
"""Of what bash prints of a function: lines of a loop or a condition that are no commands of their own."""
_COUNTING: Final = r"""
command_not_found_handle() {
  printf '%s\n' "${*//$'\n'/ }" >> "$CALLS"
  case "$1 ${2-} ${3-}" in
    'bash '*) . "$2" ;;
    'dirname '*) printf '%s\n' "${2%/*}" ;;
    'python3 -m venv')
      /bin/mkdir -p "$4/bin"
      for tool in pip twine; do
        printf '#!/bin/bash\nprintf "%%s\\n" %s >> "$CALLS"\n' "$tool" > "$4/bin/$tool"
        /bin/chmod +x "$4/bin/$tool"
      done ;;
  esac
}
"""
_AUTOPILOT: Final = "container clusters create-auto"
"""The other one of two clusters."""


@dataclass(frozen=True)
class Count:
    """typed: commands as one types them. run: the programs that they start, in order."""

    typed: int
    run: tuple[str, ...]


def blocks(text: str) -> list[str]:
    """The commands of a page, without those of a choice that is not made."""
    found = re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [each for each in found if _AUTOPILOT not in each]


def count(commands: str, bundle: str = "") -> Count:
    """Of a shell's text. bundle: that of `dist/composer/commands.txt`. Raises ValueError if bash cannot read it."""
    shown = subprocess.run(
        ["bash"], input=f"page() {{\n{commands}\n}}\ndeclare -f page\n", capture_output=True, text=True, check=False
    )
    if shown.returncode:
        raise ValueError(shown.stderr)
    lines = [line for line in shown.stdout.splitlines()[2:-1] if re.match(r"    [^ ]", line)]
    with TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "dist/composer/dags/jobs").mkdir(parents=True)
        for name in ("k8s/overlays/gke-gpu-spot", "infra"):
            (place / name).mkdir(parents=True)
        (place / "dist/composer/commands.txt").write_text(bundle.replace("set -euo pipefail", ""))
        calls = place / "calls"
        calls.touch()
        environment = {"PATH": "/none", "CALLS": str(calls), "EDITOR": "editor"}
        script = (_COUNTING + commands).replace("/tmp/", f"{folder}/")
        done = subprocess.run(
            ["/bin/bash", "-c", script], cwd=place, env=environment, capture_output=True, text=True, check=False, timeout=60
        )
        if "unbound variable" in done.stderr or "syntax error" in done.stderr:
            raise ValueError(done.stderr)
        return Count(sum(1 for line in lines if not _INSIDE.match(line)), tuple(calls.read_text().splitlines()))


def of_page(path: Path) -> Count:
    """Of all bash blocks of a page, in order. Raises ValueError."""
    bundle = Template(COMMANDS.read_text()).substitute(wheel="nightshift.whl", version="0")
    return count("\n".join(blocks(path.read_text())), bundle)


def main(arguments: Sequence[str]) -> int:
    pages = [Path(each) for each in arguments] or [ROOT / "k8s/README.md", ROOT / "infra/README.md"]
    for page in pages:
        try:
            found = of_page(page)
        except (OSError, ValueError) as error:
            print(f"{page}: {error}", file=sys.stderr)
            return 2
        if not found.typed:
            print(f"{page} has no block of bash", file=sys.stderr)
            return 2
        print(f"{page}: {found.typed} commands typed, {len(found.run)} programs run")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
