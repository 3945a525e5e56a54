"""A Prometheus that is asked one number at a time. Cloud Monitoring is one, with a token."""

from __future__ import annotations

import json
import math
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Final

from nightshift.stream.status.queries import Place

TIMEOUT_S: Final = 30.0
GOOGLE_HOST: Final = "monitoring.googleapis.com"
SCOPE: Final = "https://www.googleapis.com/auth/monitoring.read"
_TEXT_MAX: Final = 300


class NoAnswer(Exception):
    """Prometheus does not answer, or not with a number; the message says what it said."""


class Prometheus:
    """Raises NoAnswer if it is Google's and there is no account to ask as."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._url = place.url.rstrip("/")
        where = urllib.parse.urlsplit(self._url)
        self._bearer = f"Bearer {_token()}" if (where.scheme, where.hostname) == ("https", GOOGLE_HOST) else ""

    def ask(self, query: str) -> float | None:
        """The number that an instant query has now; None if there is none. Raises NoAnswer."""
        url = f"{self._url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        try:
            request = urllib.request.Request(url)
            if self._bearer:
                request.add_unredirected_header("Authorization", self._bearer)
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
                result = json.load(reply)["data"]["result"]
            value = float(result[0]["value"][1]) if result else math.nan
        except urllib.error.HTTPError as error:
            raise NoAnswer(f"{self._url} answers {error.code}: {error.read()[:_TEXT_MAX].decode(errors='replace')}") from error
        except (OSError, ValueError) as error:
            raise NoAnswer(f"{self._url}: {error}") from error
        except (KeyError, IndexError, TypeError) as error:
            raise NoAnswer(f"{self._url} is not a Prometheus: its answer has no result") from error
        return value if math.isfinite(value) else None


def _token() -> str:
    """Of the account that Google's clients find by themselves."""
    try:
        import google.auth
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import Request
    except ModuleNotFoundError as error:
        raise NoAnswer(f"the package {error.name} is not installed. Install the extras driver and stream") from error
    try:
        credentials: Any = google.auth.default(scopes=[SCOPE])[0]
        credentials.refresh(Request())
    except GoogleAuthError as error:
        raise NoAnswer(f"there is no Google account to ask as: {error}") from error
    return str(credentials.token)
