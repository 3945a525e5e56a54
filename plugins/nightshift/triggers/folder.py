"""The listing of a watched folder on Cloud Storage, page by page: when each of its objects was created.

Google's client asks for that time (``timeCreated``). obstore's listing only has the time of an object's last change, and a
change of its metadata or storage class brings no rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Final

from nightshift.store import StoreUnavailable, is_hidden

if TYPE_CHECKING:
    from google.cloud.storage import Blob, Client  # type: ignore[import-untyped]

    from nightshift.settings import Settings

LATE: Final = timedelta(days=8)
"""Folders ``dt=YYYY-MM-DD`` of days that began longer ago are not listed. Pub/Sub keeps a message for 7 days by default."""
_FIELDS: Final = "items(name,size,timeCreated),prefixes,nextPageToken"
_DAY_FOLDER: Final = re.compile(r"dt=(\d{4}-\d\d-\d\d)")


def storage_client(settings: Settings) -> Client:
    """On Airflow's Google connection; STORAGE_EMULATOR_HOST is honoured by Google's client.

    Raises `nightshift.hooks.credentials.NoCredentials`, and StoreUnavailable if a repeat may help.
    """
    from google.cloud.storage import Client

    from nightshift.hooks.credentials import credentials_of, unless_emulated

    credentials = credentials_of(settings.gcp_conn_id, StoreUnavailable)
    return Client(project=settings.project, credentials=unless_emulated(credentials, "STORAGE_EMULATOR_HOST"))


def created(client: Client, url: str, since: datetime) -> Iterator[datetime]:
    """When the objects of a folder were created, except empty and hidden ones, and those of days too old to get more. Holds one
    page at a time.

    Only folders right below it are known as days (``dt=2026-11-19``). url: ``gs://BUCKET/FOLDER``. since: aware, the moment
    from which on objects are listed. Raises StoreUnavailable.
    """
    bucket, _, folder = url.removeprefix("gs://").partition("/")
    top = f"{folder}/" if folder else ""
    oldest = (since - LATE).date()
    with _unavailable(url):
        listing = client.list_blobs(bucket, prefix=top, delimiter="/", fields=_FIELDS)
        for page in listing.pages:
            yield from _counted(page, top)
            for name in page.prefixes:
                if not _left_out(name.removeprefix(top).rstrip("/"), oldest):
                    yield from _counted(client.list_blobs(bucket, prefix=name, fields=_FIELDS), top)
            # It collects those of all pages.
            listing.prefixes.clear()


def _counted(blobs: Iterator[Blob], top: str) -> Iterator[datetime]:
    return (blob.time_created for blob in blobs if blob.size and not is_hidden(blob.name.removeprefix(top)))


def _left_out(folder: str, oldest: date) -> bool:
    day = _DAY_FOLDER.fullmatch(folder)
    return is_hidden(folder) or (day is not None and _date(day[1]) < oldest)


def _date(text: str) -> date:
    """The latest possible day for a text that is not a date, so that its folder is listed."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        return date.max


@contextmanager
def _unavailable(url: str) -> Iterator[None]:
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.exceptions import GoogleAuthError

    try:
        yield
    except (GoogleAPIError, GoogleAuthError, OSError) as error:
        raise StoreUnavailable(f"list {url}: {error}") from error
