"""Logging in to AlloyDB and Cloud SQL as a Google account: an access token of the account is the password.

A token is read when a connection is opened, and lasts about an hour; a connection that is open outlives it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from nightshift.stream.ports import Locked, Unavailable

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

SCOPES: Final = (
    "https://www.googleapis.com/auth/alloydb.login",
    "https://www.googleapis.com/auth/sqlservice.login",
)
"""All that a token may be used for: whoever gets it from the database's server can do nothing else with it."""


class Token:
    """credentials: by default those of the environment."""

    def __init__(self, credentials: Credentials | None = None) -> None:
        self._given = credentials
        self._own: Any = None

    async def read(self) -> str:
        """A token that is valid now. Raises Unavailable; Locked if there is none to be had for this account."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> str:
        import google.auth
        from google.auth.credentials import Scoped
        from google.auth.exceptions import GoogleAuthError, TransportError
        from google.auth.transport.requests import Request

        try:
            if self._own is None:
                given: Any = self._given or google.auth.default(scopes=SCOPES)[0]
                scoped: Any = given if isinstance(given, Scoped) else None
                self._own = scoped.with_scopes(SCOPES) if scoped else given
            if not self._own.valid:
                self._own.refresh(Request())
        except TransportError as error:
            raise Unavailable(f"no access token for the database: {error}") from error
        except GoogleAuthError as error:
            raise Locked(f"no access token for the database: {error}") from error
        return str(self._own.token)
