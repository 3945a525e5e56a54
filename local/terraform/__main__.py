"""``python3 -m local.terraform``: see the package.

Exit codes: 0; 1 if something is wrong or cannot run; 2 for a wrong command line.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from local.cluster.build import BuildError
from local.terraform import build, check
from local.terraform.tofu import Failed, Workspace


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m local.terraform", description="Runs infra/ without Google Cloud.")
    parser.add_argument("command", choices=["build", "validate", "test", "schema"])
    command = parser.parse_args(arguments).command
    try:
        tools = build.ensure(_say)
        if command == "build":
            return 0
        if command == "schema":
            check.FILE.write_text(check.text(check.of_infra(json.loads(tools.schema.read_text()))))
            return 0
        with tempfile.TemporaryDirectory() as folder:
            workspace = Workspace.make(tools, Path(folder))
            if problems := workspace.problems():
                print("\n".join(problems), file=sys.stderr)
                return 1
            if command == "test":
                print(workspace.run("test"))
    except (BuildError, Failed, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _say(line: str) -> None:
    print(f"[terraform] {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
