"""The credentials of Airflow's Google connection, and what it means if there are none."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from nightshift.fields.values import is_this_machine
from nightshift.settings import Settings
from nightshift.store import StoreUnavailable, open_store

if TYPE_CHECKING:
    from google.auth.credentials import Credentials
    from obstore.store import GCSCredential, GCSCredentialProvider, ObjectStore


class NoCredentials(AirflowFailException):
    """The connection gives no credentials until a user corrects it: the task fails for good."""


def storage_credentials(settings: Settings) -> GCSCredentialProvider:
    """For `nightshift.store.open_store`: tokens of the connection ``settings.gcp_conn_id``, empty if it is anonymous.

    The first one is fetched now, so that a wrong connection is reported before its use. A quota project of the connection has
    no effect on storage. Raises NoCredentials, and StoreUnavailable if a repeat may help.
    """
    from google.auth.credentials import AnonymousCredentials

    credentials = credentials_of(settings.gcp_conn_id, StoreUnavailable)
    return _no_token if isinstance(credentials, AnonymousCredentials) else _Tokens(credentials, settings.gcp_conn_id)


def open_bucket() -> ObjectStore:
    """The bucket of the deployment, by the settings in this process's environment. Raises as `storage_credentials`."""
    settings = Settings.from_environment()
    return open_store(f"gs://{settings.bucket}", credentials=storage_credentials(settings))


def credentials_of(connection: str, unavailable: type[Exception]) -> Credentials:
    """With a token unless the connection is anonymous. Raises NoCredentials, or `unavailable` if a repeat may help."""
    from airflow.providers.google.common.hooks.base_google import GoogleBaseHook

    with explained(connection, unavailable):
        credentials = GoogleBaseHook(gcp_conn_id=connection).get_credentials()
        # The address of a machine's own account is known only after this.
        refresh(credentials)
    return credentials


def unless_emulated(credentials: Credentials, variable: str) -> Credentials:
    """The same, but anonymous where Google's client asks the emulator that the variable names, on another machine: its address
    is any, and not encrypted."""
    from google.auth.credentials import AnonymousCredentials

    emulator = os.environ.get(variable)
    return AnonymousCredentials() if emulator and not is_this_machine(emulator) else credentials  # type: ignore[no-untyped-call]


class _Tokens:
    """The store calls it, from a thread of its own, when it has no token or its token is about to expire."""

    def __init__(self, credentials: Credentials, connection: str) -> None:
        self._credentials = credentials
        self._connection = connection

    def __call__(self) -> GCSCredential:
        with explained(self._connection, StoreUnavailable):
            refresh(self._credentials)
        expiry = self._credentials.expiry
        return {"token": str(self._credentials.token), "expires_at": expiry and expiry.replace(tzinfo=UTC)}


def _no_token() -> GCSCredential:
    return {"token": "", "expires_at": None}


def refresh(credentials: Credentials) -> None:
    """Asks for a token unless there is one that lasts. Raises google.auth's errors; see `explained`."""
    from google.auth.transport.requests import Request

    if not credentials.valid:
        credentials.refresh(Request())  # type: ignore[no-untyped-call]


@contextmanager
def explained(connection: str, unavailable: type[Exception]) -> Iterator[None]:
    """Maps what goes wrong when a hook takes credentials from a connection: NoCredentials, or `unavailable` if it may pass."""
    from google.auth.exceptions import GoogleAuthError

    try:
        yield
    except GoogleAuthError as error:
        if isinstance(error, ValueError) or _refused(error):
            raise _no_credentials(connection, error.args[0]) from error
        raise unavailable(f"The connection {connection!r} gives no credentials now: {error.args[0]}") from error
    except KeyError as error:
        raise _no_credentials(connection, f"its key lacks {error}") from error
    except (AirflowException, ValueError, TypeError, FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise _no_credentials(connection, error) from error


def has_no_login(error: BaseException) -> bool:
    """Whether `credentials_of` failed because this machine has no account. On a machine of Google's that may pass: its metadata
    server did not answer."""
    from google.auth.exceptions import DefaultCredentialsError

    return isinstance(error.__cause__, DefaultCredentialsError)


def _refused(error: Any) -> bool:
    """Whether Google's token service gave a reason for its refusal, which is then final.

    The texts of other services do not show that: a role that was granted is not known everywhere at once.
    """
    return not error.retryable and any(isinstance(reply, Mapping) for reply in error.args[1:])


def _no_credentials(connection: str, problem: object) -> NoCredentials:
    return NoCredentials(
        f"The connection {connection!r} gives no credentials: {str(problem).rstrip('.')}. Correct it in Airflow, or name "
        "another one in NIGHTSHIFT_GCP_CONN_ID. A connection without a key uses the machine's account."
    )
