"""The command `nightshift doctor`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nightshift import exits
from nightshift.cli.trouble import apart, beside_the_stack
from nightshift.fields.arguments import flag, option
from nightshift.hooks.deployment import Deployment

if TYPE_CHECKING:
    from nightshift.hooks.services import Connections
    from nightshift.settings import Settings

DESCRIPTION: Final = (
    "Checks this deployment's settings, account, bucket, datasets and cluster; with a job its query, queue, quota, nodes, "
    "images and model too; with a stream its Pub/Sub, database, autoscalers and gateway. Run it where Airflow runs: it uses "
    "Airflow's connections. The DAG nightshift_doctor does the same in a worker, and checks the triggerer too."
)
EPILOG: Final = "Exit codes: 0 all checks that ran are ok; 1 something is wrong; 2 wrong command line."


@dataclass(frozen=True)
class Options:
    file: Path | None = option(
        nargs="?", type=Path, metavar="FILE", help="the YAML file of a job, as in dags/jobs/, or of a stream"
    )
    as_json: bool = flag("--json", "one JSON object")


def run(
    options: Options,
    connect: Callable[[Settings], Connections] = Deployment,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Prints what was found."""
    if options.file is not None and not options.file.is_file():
        print(f"{options.file}: there is no such file. Name the YAML file of a job or a stream.", file=sys.stderr)
        return exits.BAD_INPUT
    # Here, because its packages come with Airflow: the help does not need them.
    from nightshift.doctor.checks import diagnose

    variables = os.environ if environment is None else environment
    report = apart(lambda: diagnose(variables, connect, job_file=options.file))
    print(json.dumps(report.to_json()) if options.as_json else "\n".join(report.lines()))
    if not variables.get("NIGHTSHIFT_BUCKET") and (words := beside_the_stack().strip()):
        print(words, file=sys.stderr)
    return report.exit_code
