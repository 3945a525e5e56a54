"""``python -m local.smoke --project PROJECT [--location LOCATION] [--cluster CLUSTER]`` (`make smoke-gcp PROJECT=...`).

Runs the doctor, asks the questions of `local.smoke.open_questions`, and runs a night of a thousand rows if it knows a cluster:
as the account of the application default credentials, in a dataset and a bucket of their own that are removed at the end.
Prints a report in Markdown. Some forty queries over a few rows cost less than a cent; the night rents a node for some minutes.

The deployment is the one that the variables NIGHTSHIFT_* name. A night in a cluster needs its NIGHTSHIFT_BUCKET, which the
workers' account may read and write; the run's folder there is removed at the end. With BIGQUERY_EMULATOR_HOST and
STORAGE_EMULATOR_HOST it asks the emulators. If you interrupt the night, its JobSet ends at its deadline of half an hour.

Exit codes: 0, 1 if nightshift would not work there or a question was not answered, 2 for a wrong command line.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Final

import google.auth
from google.api_core.exceptions import GoogleAPICallError
from google.auth.credentials import AnonymousCredentials, Credentials
from google.auth.exceptions import GoogleAuthError
from google.cloud import bigquery
from google.cloud.storage import Client as StorageClient  # type: ignore[import-untyped]

from local.environments import ROOT
from local.smoke import night, report
from local.smoke.deployment import CommandFailed, deployed
from local.smoke.open_questions import OPEN_QUESTIONS
from local.smoke.place import Place, made, reason
from local.smoke.report import Line

LIKE: Final = ROOT / "dags" / "jobs" / "package-embeddings.yaml"
"""The night's model and engine are this job's."""
CLUSTER: Final = re.compile(r"projects/[^/]+/locations/[^/]+/clusters/[^/]+")


def lines(place: Place, cluster: str, profile: str) -> Iterator[Line]:
    """Asks everything, one after the other. Raises CommandFailed if the doctor cannot run."""
    with ExitStack() as stack:
        deployment = stack.enter_context(deployed(place, cluster))
        job = stack.enter_context(night.prepared(place, deployment, LIKE, profile)) if deployment.runtime else None
        yield from report.doctor(deployment, deployment.job_file(job["job"]) if job else None)
        yield from report.open_questions(place, OPEN_QUESTIONS)
        if job is not None:
            yield report.whole_night(place, deployment, job)


def _credentials() -> Credentials:
    if os.environ.get("BIGQUERY_EMULATOR_HOST"):
        return AnonymousCredentials()  # type: ignore[no-untyped-call]
    found, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
    return found


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m local.smoke", description="Tries nightshift on a real project.")
    parser.add_argument("--project", required=True, help="whose BigQuery and Cloud Storage are asked")
    parser.add_argument("--location", default="US", help="of the dataset and the bucket (default: %(default)s)")
    runs = "runs a night there: projects/PROJECT/locations/LOCATION/clusters/CLUSTER (default: NIGHTSHIFT_RUNTIME, or no night)"
    parser.add_argument("--cluster", default="", help=runs)
    parser.add_argument("--profile", default="gpu-l4-spot", help="what the night computes on (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.cluster and not CLUSTER.fullmatch(options.cluster):
        parser.error(
            f"--cluster {options.cluster!r} is not a cluster. Write projects/PROJECT/locations/LOCATION/clusters/CLUSTER."
        )
    if options.cluster and not os.environ.get("NIGHTSHIFT_BUCKET"):
        parser.error("a night in a cluster needs the bucket that the workers' account may use: set NIGHTSHIFT_BUCKET.")
    return options


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    try:
        credentials = _credentials()
        warehouse = bigquery.Client(project=options.project, credentials=credentials)
        storage = StorageClient(project=options.project, credentials=credentials)
        with made(warehouse, storage, options.location) as place:
            found = list(lines(place, options.cluster, options.profile))
    except GoogleAuthError as error:
        print(f"There are no credentials ({error}). Write them: gcloud auth application-default login", file=sys.stderr)
        return 1
    except GoogleAPICallError as error:
        print(
            f"Project {options.project} does not let the smoke test make or remove its place: {reason(error)}", file=sys.stderr
        )
        return 1
    except CommandFailed as error:
        print(error, file=sys.stderr)
        return 1
    print(report.table(found))
    for line in found:
        if "\n" in line.found:
            print(f"\n{line.question}\n{line.found}")
    return report.exit_code(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
