"""The command `nightshift costs`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Final

from nightshift.cli import values
from nightshift.cli.values import Commands

NO_ANSWER: Final = 1
BAD_INPUT: Final = 2


def add_to(commands: Commands) -> None:
    costs = commands.add_parser(
        "costs",
        help="add up what runs cost, by job, from the audit table (docs/costs.md)",
        description="Adds up the audit table: published and failed runs of each job, their machine hours, their estimated "
        "and actual cost. Run it where Airflow runs: it uses Airflow's connection to BigQuery.",
        epilog="Exit codes: 0; 1 BigQuery does not answer, or refuses; 2 bad input.",
    )
    costs.add_argument(
        "--since", required=True, type=values.day, metavar="DATE", help="runs of partitions from this day on: 2026-11-01"
    )
    costs.add_argument("--job", metavar="J", help="only this job")
    costs.add_argument("--json", action="store_true", help="one JSON object (keys: docs/costs.md)")
    costs.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> int:
    from nightshift.operators.connections import AirflowConnections
    from nightshift.planner.costs.report import by_job, lines
    from nightshift.settings import Settings, SettingsError
    from nightshift.warehouse import WarehouseError, WarehouseUnavailable

    try:
        warehouse = AirflowConnections(Settings.from_environment(os.environ)).warehouse()
        found = warehouse.audited(options.since, options.job)
    except (SettingsError, ImportError) as error:
        print(f"nightshift costs: {error}", file=sys.stderr)
        return BAD_INPUT
    except (WarehouseError, WarehouseUnavailable) as error:
        print(f"nightshift costs: {error}", file=sys.stderr)
        return NO_ANSWER
    jobs, total = by_job(found)
    if options.json:
        said = {"since": options.since, "jobs": {job: sums.to_json() for job, sums in jobs.items()}, "total": total.to_json()}
        print(json.dumps(said, ensure_ascii=False))
    elif jobs:
        print(*lines(jobs, total), sep="\n")
    else:
        print(f"The audit table has no run of a partition from {options.since} on.")
    return 0
