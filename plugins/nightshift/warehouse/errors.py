"""BigQuery's failures as two kinds: trying again may help, or someone must change something first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from google.api_core.exceptions import GoogleAPICallError

TRANSIENT_REASONS: Final = frozenset(
    {
        "backendError",
        "internalError",
        "jobBackendError",
        "jobInternalError",
        "jobRateLimitExceeded",
        "rateLimitExceeded",
        "tableUnavailable",
    }
)
"""Reasons in BigQuery's error table for which trying again helps (a job: with a new id)."""

CHANGED_MEANWHILE: Final = "The dead letters of the partition have changed since this script was written"
NOT_STAGED: Final = "The number of staged rows differs from the manifest"
NOT_INSERTED: Final = "The tables would not hold every row of the run once"
"""Messages of our own script (`nightshift.warehouse.publish`). The last two also if another try has published the run
meanwhile, dropped what it had staged, and a third one has created the staging table again, but not loaded it yet."""
CONFLICTS: Final = (
    "aborted due to concurrent update",
    "Could not serialize access to table",
    "Too many DML statements outstanding against table",
    CHANGED_MEANWHILE,
    NOT_STAGED,
    NOT_INSERTED,
)
"""Words in the message of a job that lost against others, and that another job under a new id can do. BigQuery gives them the
reasons of mistakes in the SQL: ``invalidQuery``, and ``resourcesExceeded`` to the third one, which many days of a backfill can
meet (its pages "Troubleshoot queries", "Troubleshoot quota and limit errors")."""

_REMEDIES: Final = {
    "accessDenied": "Grant the connection's service account the BigQuery roles that docs/operate/warehouse.md lists.",
    "billingNotEnabled": "Enable billing for the project.",
    "duplicate": "Remove what already exists, or choose another name.",
    "invalidQuery": "Correct the SQL.",
    "notFound": "Create it, or correct its name; check that it is in NIGHTSHIFT_LOCATION.",
    "quotaExceeded": "Wait until there is quota again, or request more.",
    "resourcesExceeded": "Let the query return fewer columns or rows, for example by splitting the job.",
}


class WarehouseError(Exception):
    """BigQuery refused, and would refuse again. The message gives BigQuery's own words and the remedy."""


class WarehouseUnavailable(Exception):
    """BigQuery could not be reached, or cannot work now. Whether a job was started is unknown; a repeat is safe."""


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Maps the client's exceptions; `what` begins the message, for example ``The query of job x``."""
    import requests
    from google.api_core.exceptions import GoogleAPICallError, RetryError
    from google.auth.exceptions import TransportError

    try:
        yield
    except GoogleAPICallError as error:
        if is_transient(error):
            raise WarehouseUnavailable(f"{what}: {words(error)}") from error
        raise refused(what, words(error), _reason(error)) from error
    except RetryError as error:
        raise WarehouseUnavailable(f"{what}: {error.cause or error}") from error
    except (requests.ConnectionError, requests.Timeout, TransportError, ConnectionError, TimeoutError) as error:
        raise WarehouseUnavailable(f"{what}: {error}") from error


def is_transient(error: GoogleAPICallError) -> bool:
    from google.api_core.exceptions import ServerError, TooManyRequests

    reason = _reason(error)
    if any(conflict in words(error) for conflict in CONFLICTS):
        return True
    if reason in _REMEDIES:
        return False
    return isinstance(error, ServerError | TooManyRequests) or reason in TRANSIENT_REASONS


def refused(what: str, message: str, reason: str | None) -> WarehouseError:
    remedy = _REMEDIES.get(reason or "")
    return WarehouseError(f"{what}: {message}" if remedy is None else f"{what}: {message.rstrip('.')}. {remedy}")


def words(error: GoogleAPICallError) -> str:
    """BigQuery's own message, including the position in the SQL, without the request's method, URL and job id."""
    for item in error.errors or ():
        if isinstance(item, dict) and item.get("message"):
            # One about types has several lines.
            return " ".join(str(item["message"]).split())
    return re.sub(r"^(?:GET|POST|PUT|PATCH|DELETE) \S+: ", "", str(error.message)).split("\n\nLocation:")[0].strip()


def _reason(error: GoogleAPICallError) -> str | None:
    from google.api_core.exceptions import Forbidden, NotFound

    for item in error.errors or ():
        if isinstance(item, dict) and item.get("reason"):
            reason: Any = item["reason"]
            return str(reason)
    if isinstance(error, NotFound):
        return "notFound"
    return "accessDenied" if isinstance(error, Forbidden) else None
