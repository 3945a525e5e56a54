"""The command `nightshift stream load`: a stream's new files into BigQuery, once."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nightshift import exits
from nightshift.cli.trouble import guarded, open_bucket
from nightshift.fields.arguments import option, positive
from nightshift.fields.text import n
from nightshift.settings import Settings
from nightshift.spec import load_stream
from nightshift.stream.bigquery.load import DAYS, Batch, StreamLoader
from nightshift.warehouse.errors import WarehouseError, translated

if TYPE_CHECKING:
    from google.cloud.bigquery import Client

DESCRIPTION: Final = (
    "Looks for files of the stream that are not in its table yet, loads them, and merges them in one transaction. Run it as "
    "often as you like, even two at a time."
)
EPILOG: Final = (
    "NIGHTSHIFT_PROJECT, NIGHTSHIFT_BUCKET, NIGHTSHIFT_LOCATION and NIGHTSHIFT_DATASET are the deployment's. Exit codes: 0 all "
    "new files are in the table; 2 bad input; 75 a service does not answer, run it again; 78 not retryable."
)


@dataclass(frozen=True)
class Options:
    file: Path = option(type=Path, metavar="STREAM_FILE", help="a stream's YAML file with sink.files and sink.bigquery")
    days: int = option(
        "--days",
        default=DAYS,
        type=positive,
        metavar="N",
        help="look at messages published in the last N days (default: %(default)s; longer than the subscription keeps them)",
    )


def run(options: Options) -> int:
    """Loads what is new; returns the exit code. What is wrong is said on stderr, what was loaded on stdout."""
    return guarded("stream load", lambda: _run(options))


def _run(options: Options) -> int:
    spec = load_stream(options.file)
    settings = Settings.from_environment()
    if spec.sink.loaded_into is None:
        print(f"{options.file}: sink.bigquery: The stream's files have no table. Write dataset.table.", file=sys.stderr)
        return exits.BAD_INPUT
    import google.cloud.bigquery  # noqa: F401 - what is missing is said before anything is begun

    today = datetime.now(UTC).date()
    loader = StreamLoader(_client(settings), settings, spec, open_bucket(spec.sink.place))
    files = loader.load(today - timedelta(days=options.days), today, on_batch=_say)
    print(f"{n(files, 'new file')} loaded into {spec.sink.loaded_into}")
    return exits.DONE


def _say(batch: Batch) -> None:
    print(f"batch {batch.digest}: {n(len(batch.urls), 'file')}", flush=True)


def _client(settings: Settings) -> Client:
    """With this machine's own account. Raises WarehouseError if it has none."""
    from google.auth.credentials import AnonymousCredentials
    from google.auth.exceptions import DefaultCredentialsError
    from google.cloud.bigquery import Client

    account = AnonymousCredentials() if os.environ.get("BIGQUERY_EMULATOR_HOST") else None  # type: ignore[no-untyped-call]
    try:
        with translated("The account"):
            return Client(project=settings.project, location=settings.location, credentials=account)
    except DefaultCredentialsError as error:
        raise WarehouseError(f"There is no account for BigQuery: {error}") from error
