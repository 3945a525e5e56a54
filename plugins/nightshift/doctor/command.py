"""The command ``nightshift doctor``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nightshift.doctor.everything import diagnose
from nightshift.doctor.surroundings import Connections
from nightshift.settings import Settings

BAD_INPUT: Final = 2


@dataclass(frozen=True)
class Options:
    """job: a job's file; None for the deployment alone. as_json: one JSON object instead of lines."""

    job: Path | None = None
    as_json: bool = False


def run(options: Options, connect: Callable[[Settings], Connections], environment: Mapping[str, str] | None = None) -> int:
    """Prints what was found. The exit code: 0 if all that was asked is well, 1 if something is wrong, 2 for a missing file."""
    if options.job is not None and not options.job.is_file():
        print(f"{options.job}: there is no such file. Name a job's YAML file, as in dags/jobs/.", file=sys.stderr)
        return BAD_INPUT
    report = diagnose(os.environ if environment is None else environment, connect, job_file=options.job)
    print(json.dumps(report.to_json()) if options.as_json else "\n".join(report.lines()))
    return report.exit_code
