"""``python -m local.smoke --project PROJECT [--location LOCATION]`` (`make smoke-gcp PROJECT=...`).

Asks `local.smoke.doubts` of a real project, as the account of the application default credentials, in a dataset and a bucket
of their own that are removed at the end, and prints a report in Markdown. Some forty queries over a few rows cost less than a
cent. With BIGQUERY_EMULATOR_HOST and STORAGE_EMULATOR_HOST it asks the emulators. Exit codes: 0, 1 if nightshift would not work
there or a question was not answered, 2 for a wrong command line.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import google.auth
from google.api_core.exceptions import GoogleAPICallError
from google.auth.credentials import AnonymousCredentials, Credentials
from google.auth.exceptions import GoogleAuthError
from google.cloud import bigquery
from google.cloud.storage import Client as StorageClient  # type: ignore[import-untyped]

from local.smoke.doubts import DOUBTS, Doubt
from local.smoke.place import JOB_S, Place, made, reason

AS_DOCUMENTED: Final = "as documented"
HANDLED: Final = "other than documented; nightshift works with it"
BREAKS: Final = "other than documented"
FAILED: Final = "not answered"


@dataclass(frozen=True)
class Line:
    """One question's line of the report. verdict: one of the four above. breaks: what goes wrong if it does."""

    question: str
    found: str
    verdict: str
    breaks: str


def ask(place: Place, doubts: Iterable[Doubt]) -> list[Line]:
    """Asks one after the other. A question that the service does not let us ask hides no other."""
    return [_line(place, doubt) for doubt in doubts]


def _line(place: Place, doubt: Doubt) -> Line:
    try:
        answer = doubt.ask(place)
    except GoogleAPICallError as error:
        return Line(doubt.question, reason(error), FAILED, doubt.breaks)
    except TimeoutError:
        return Line(doubt.question, f"no answer within {JOB_S:.0f} s", FAILED, doubt.breaks)
    verdict = (AS_DOCUMENTED if answer.documented else HANDLED) if answer.works else BREAKS
    return Line(doubt.question, answer.found, verdict, doubt.breaks)


def tell(lines: Sequence[Line]) -> int:
    """Prints the report; returns the exit code."""
    print("| Question | Found | So |\n|---|---|---|")
    for line in lines:
        so = f"**{line.breaks}**" if line.verdict in (BREAKS, FAILED) else line.verdict
        print("| " + " | ".join(text.replace("|", "\\|") for text in (line.question, line.found, so)) + " |")
    return int(any(line.verdict in (BREAKS, FAILED) for line in lines))


def _credentials() -> Credentials:
    if os.environ.get("BIGQUERY_EMULATOR_HOST"):
        return AnonymousCredentials()  # type: ignore[no-untyped-call]
    found, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
    return found


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m local.smoke", description="Asks a real project what the documents leave open."
    )
    parser.add_argument("--project", required=True, help="whose BigQuery and Cloud Storage are asked")
    parser.add_argument("--location", default="US", help="of the dataset and the bucket (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        credentials = _credentials()
        warehouse = bigquery.Client(project=options.project, credentials=credentials)
        storage = StorageClient(project=options.project, credentials=credentials)
        with made(warehouse, storage, options.location) as place:
            lines = ask(place, DOUBTS)
    except GoogleAuthError as error:
        print(f"There are no credentials ({error}). Write them: gcloud auth application-default login", file=sys.stderr)
        return 1
    except GoogleAPICallError as error:
        print(
            f"Project {options.project} does not let the smoke test make or remove its place: {reason(error)}", file=sys.stderr
        )
        return 1
    return tell(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
