"""The command `nightshift validate`."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nightshift import exits
from nightshift.fields.arguments import option
from nightshift.spec import JobSpec, load_files, notifiers, sql
from nightshift.spec.folder import job_files

DESCRIPTION: Final = "Reports every mistake in the files, each with its line and what to write instead."
EPILOG: Final = "Exit codes: 0 all files are valid; 2 one is not."


@dataclass(frozen=True)
class Options:
    files: list[Path] = option(
        nargs="+", type=Path, metavar="FILE", help="the YAML file of a job or a stream, or a folder of them"
    )


def run(options: Options) -> int:
    folders = {path: job_files(path) for path in options.files if path.is_dir()}
    specs, errors = load_files(file for path in options.files for file in folders.get(path, [path]))
    untold = {path: lines for path, spec in specs.items() if (lines := _not_told(path, spec))}
    for file, spec in specs.items():
        if file in untold:
            continue
        print(f"{file}: valid: {spec.job}, {spec.task} by {spec.model.name} {spec.summary}")
        if isinstance(spec, JobSpec) and (unread := sql.unread(spec.source.query)):
            print(f"{file}: {unread}", file=sys.stderr)
    empty = [
        f"{path}: The folder has no job files. Name one with *.yaml files." for path, files in folders.items() if not files
    ]
    for problem in (*errors.values(), *(line for lines in untold.values() for line in lines), *empty):
        print(problem, file=sys.stderr)
    return exits.BAD_INPUT if errors or untold or empty else exits.DONE


def _not_told(path: Path, spec: Any) -> list[str]:
    """What is wrong with a job's notifiers, where the operator's file is known."""
    file = os.environ.get(notifiers.SETTING)
    return list(notifiers.wrong(path, spec, file)) if file and isinstance(spec, JobSpec) else []
