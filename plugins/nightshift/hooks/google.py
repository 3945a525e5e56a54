"""Plain requests with the account of Airflow's Google connection, where Google has no client."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Final

from nightshift.hooks.credentials import credentials_of, has_no_login
from nightshift.hooks.services import LOGIN, Wrong

if TYPE_CHECKING:
    from google.auth.credentials import Credentials
    from requests import Session

    from nightshift.hooks.services import Reply

TIMEOUT_S: Final = 20.0
_GOOGLES: Final = re.compile(r"https://([a-z0-9-]+\.)*(googleapis\.com|pkg\.dev|gcr\.io)/.*")
"""Addresses that get the account's token. An emulator, whose address is a variable's, does not."""


class GoogleAccount:
    """
    `nightshift.hooks.services.Google` on an Airflow connection. The first use of its credentials may raise
    `nightshift.hooks.credentials.NoCredentials`.

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

        return None if isinstance(self._credentials, AnonymousCredentials) else str(self._credentials.token)

    def ask(self, method: str, url: str, *, headers: Mapping[str, str] | None = None) -> Reply:
        """One request. headers: in addition to the token, which only Google gets. Raises OSError, as requests does."""
        from nightshift.hooks.services import Reply

        sent = dict(headers or {})
        if self.token is not None and _GOOGLES.fullmatch(url):
            sent["Authorization"] = f"Bearer {self.token}"
        reply = self._session.request(method, url, headers=sent, timeout=TIMEOUT_S, allow_redirects=False)
        return Reply(reply.status_code, reply.content)

    @cached_property
    def _credentials(self) -> Credentials:
        try:
            return credentials_of(self.gcp_conn_id, OSError)
        except OSError as error:
            if has_no_login(error):
                raise Wrong(str(error), LOGIN) from error
            raise

    @cached_property
    def _session(self) -> Session:
        from requests import Session

        return Session()
