"""BigQuery's failures as two kinds: trying again may help, or someone must change something first."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from google.api_core.exceptions import GoogleAPICallError

log = logging.getLogger(__name__)

_PASSES: Final = None
"""No remedy is needed: another try helps (of a job: under a new id)."""
_ASK_GOOGLE: Final = "Contact Google Cloud's support."
_LESS: Final = "Let the query return fewer columns or rows, for example by splitting the job."
REASONS: Final[Mapping[str, str | None]] = {
    "accessDenied": "Grant the connection's service account the BigQuery roles that docs/operate/warehouse.md lists.",
    "attributeError": "Correct the SQL: a Python function of it uses an attribute that is not there.",
    "backendError": _PASSES,
    "badRequest": "Correct the request: BigQuery's words say what is wrong with it.",
    "billingNotEnabled": "Enable billing for the project.",
    "billingTierLimitExceeded": "Let the query use less CPU for the bytes that it reads, or run it in a reservation of slots.",
    "blocked": _ASK_GOOGLE,
    "duplicate": "Remove what already exists, or choose another name.",
    "internalError": _PASSES,
    "invalid": "",
    "invalidQuery": "Correct the SQL.",
    "invalidUser": "Renew the credentials of the connection.",
    "jobBackendError": _PASSES,
    "jobInternalError": _PASSES,
    "jobRateLimitExceeded": _PASSES,
    "notFound": "Create it, or correct its name; check that it is in NIGHTSHIFT_LOCATION.",
    "notImplemented": _ASK_GOOGLE,
    "proxyAuthenticationRequired": "Give Airflow's workers and triggerers the credentials of the proxy.",
    "quotaExceeded": "Wait until there is quota again, or request more.",
    "rateLimitExceeded": _PASSES,
    "resourceInUse": "Wait until nothing uses it, or empty it.",
    "resourcesExceeded": _LESS,
    "responseTooLarge": _LESS,
    "stopped": "A user or a program cancelled the job. To start another one, clear the task.",
    "tableUnavailable": _PASSES,
    "timeout": _LESS,
}
"""All reasons in BigQuery's error table (its page "Error messages"), with what to do about one that stays; "" if its own words
say it."""
_STAYS: Final = re.compile(
    r"(?i:custom quota)|PerDay|per day|free query bytes|partition modifications|Authorized Views"
    r"|quota for (?:imports or query appends|copies) per|quota for (?:SNAPSHOT|CREATE MODEL)|image storage usage"
)
"""Words of the quotas (reason ``quotaExceeded``) that hold for a day or for ever. All others count what runs, waits or was read
within seconds: they drain by themselves, and another try costs nothing."""

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
    "would affect rows in the streaming buffer",
    NOT_STAGED,
    NOT_INSERTED,
)
"""Words in the message of a job that lost against others, and that another job under a new id can do later. BigQuery gives
them the reasons of mistakes in the SQL: ``invalidQuery``, and ``resourcesExceeded`` to the third one, which many days of a
backfill can meet (its pages "Troubleshoot queries", "Troubleshoot quota and limit errors")."""


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
    """Of a call: for an unknown reason, the status decides."""
    from google.api_core.exceptions import ServerError, TooManyRequests

    return passes(_reason(error), words(error), unknown=isinstance(error, ServerError | TooManyRequests))


def passes(reason: str | None, message: str, *, unknown: bool) -> bool:
    """Whether another try may succeed. reason, message: BigQuery's. unknown: what holds for one that is not in `REASONS`."""
    if any(conflict in message for conflict in CONFLICTS):
        return True
    if reason is None:
        return unknown
    if reason not in REASONS:
        what = "another try follows" if unknown else "it is taken for one that stays"
        log.warning("BigQuery gives a reason that nightshift does not know, %r (%s): %s", reason, message, what)
        return unknown
    return REASONS[reason] is _PASSES or (reason == "quotaExceeded" and not _STAYS.search(message))


def refused(what: str, message: str, reason: str | None) -> WarehouseError:
    remedy = REASONS.get(reason or "")
    return WarehouseError(f"{what}: {message.rstrip('.')}. {remedy}" if remedy else f"{what}: {message}")


def words(error: GoogleAPICallError) -> str:
    """BigQuery's own message, including the position in the SQL, without the request's method, URL and job id."""
    if said := _said(error, "message"):
        return " ".join(said.split())  # One about types has several lines.
    return re.sub(r"^(?:GET|POST|PUT|PATCH|DELETE) \S+: ", "", str(error.message)).split("\n\nLocation:")[0].strip()


def _said(error: GoogleAPICallError, key: str) -> str:
    """The first such entry of its details; '' if there is none."""
    return next((str(item[key]) for item in error.errors or () if isinstance(item, dict) and item.get(key)), "")


def _reason(error: GoogleAPICallError) -> str | None:
    from google.api_core.exceptions import Forbidden, NotFound

    if reason := _said(error, "reason"):
        return reason
    if isinstance(error, NotFound):
        return "notFound"
    return "accessDenied" if isinstance(error, Forbidden) else None
