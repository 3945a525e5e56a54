"""The command `nightshift costs`."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from nightshift import exits
from nightshift.cli.trouble import guarded, warehouse_of
from nightshift.fields.arguments import day, flag, option
from nightshift.hooks.deployment import Deployment
from nightshift.planner.costs.report import by_job, lines
from nightshift.settings import Settings

DESCRIPTION: Final = (
    "Adds up the audit table: published and failed runs of each job, their machine hours, their estimated and actual cost. Run "
    "it where Airflow runs: it uses Airflow's connection to BigQuery."
)
EPILOG: Final = "Exit codes: 0; 2 bad input; 75 BigQuery does not answer; 78 it refuses."
DAYS: Final = 30


@dataclass(frozen=True)
class Options:
    since: str | None = option(
        "--since",
        type=day,
        metavar="DATE",
        help="runs of partitions from this day on: 2026-11-01 (default: of the last 30 days)",
    )
    job: str | None = option("--job", metavar="J", help="only this job")
    as_json: bool = flag("--json", "one JSON object")


def run(options: Options) -> int:
    return guarded("costs", lambda: _run(options))


def _run(options: Options) -> int:
    since = options.since or (datetime.now(UTC).date() - timedelta(days=DAYS)).isoformat()
    connections = Deployment(Settings.from_environment(os.environ))
    warehouse = warehouse_of(lambda: connections.warehouse(step="costs"))
    jobs, total = by_job(warehouse.audited(since, options.job))
    if options.as_json:
        said = {"since": since, "jobs": {job: sums.to_json() for job, sums in jobs.items()}, "total": total.to_json()}
        print(json.dumps(said))
    elif jobs:
        print(*lines(jobs, total), sep="\n")
    else:
        print(f"The audit table has no run of a partition from {since} on.")
    return exits.DONE
