"""Plain requests with the account of Airflow's Google connection, for questions that no client of Google's asks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from google.auth.credentials import Credentials
    from requests import Session

    from nightshift.doctor.surroundings import Reply

TIMEOUT_S: Final = 20.0


class GoogleAccount:
    """
    `nightshift.doctor.surroundings.Google` on an Airflow connection.

    :param gcp_conn_id: the connection.
    """

    def __init__(self, gcp_conn_id: str) -> None:
        self.gcp_conn_id = gcp_conn_id

    @property
    def email(self) -> str | None:
        if self.token is None:
            return None
        found = getattr(self._credentials, "service_account_email", None)
        return str(found) if found and "@" in str(found) else None

    @cached_property
    def token(self) -> str | None:
        from google.auth.credentials import AnonymousCredentials
        from google.auth.transport.requests import Request

        if isinstance(self._credentials, AnonymousCredentials):
            return None
        # The address of a machine's own account is known only after this.
        self._credentials.refresh(Request())  # type: ignore[no-untyped-call]
        return str(self._credentials.token)

    def ask(self, method: str, url: str, *, headers: Mapping[str, str] | None = None) -> Reply:
        """One request. headers: in addition to the token. Raises OSError, as requests does."""
        from nightshift.doctor.surroundings import Reply

        sent = dict(headers or {})
        if self.token is not None:
            sent["Authorization"] = f"Bearer {self.token}"
        reply = self._session.request(method, url, headers=sent, timeout=TIMEOUT_S, allow_redirects=False)
        return Reply(reply.status_code, reply.content, {name.lower(): value for name, value in reply.headers.items()})

    @cached_property
    def _credentials(self) -> Credentials:
        from airflow.providers.google.common.hooks.base_google import GoogleBaseHook

        return GoogleBaseHook(gcp_conn_id=self.gcp_conn_id).get_credentials()

    @cached_property
    def _session(self) -> Session:
        from requests import Session

        return Session()
