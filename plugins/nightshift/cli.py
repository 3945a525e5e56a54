"""The command `nightshift`. Each command is one function that imports what it needs when it runs, so that ``--help`` is quick.

Exit codes: 0 done, 2 bad input (every mistake on stderr).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from nightshift import __version__

BAD_INPUT: Final = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; argparse itself exits with 2 for arguments that it cannot read."""
    options = _parser().parse_args(arguments)
    code: int = options.command(options)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nightshift", description="A warehouse table turned into predictions every night.")
    parser.add_argument("--version", action="version", version=f"nightshift {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    validate = commands.add_parser("validate", help="say everything that is wrong with job files")
    validate.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a job's YAML file, as in dags/jobs/")
    validate.set_defaults(command=_validate)

    schema = commands.add_parser("schema", help="print the JSON schema of a job file (docs/job.schema.json)")
    schema.set_defaults(command=_schema)
    return parser


def _validate(options: argparse.Namespace) -> int:
    from nightshift.spec import load_files

    specs, errors = load_files(options.files)
    for file, spec in specs.items():
        print(
            f"{file}: good: {spec.job}, {spec.task} by {spec.model.name} into {spec.destination.table} within {spec.deadline}"
        )
    for error in errors.values():
        print(error, file=sys.stderr)
    return BAD_INPUT if errors else 0


def _schema(_: argparse.Namespace) -> int:
    from nightshift.spec.schema import json_schema_text

    print(json_schema_text(), end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
