"""Airflow's REST API (v2) for a command outside Airflow: where it is, who asks, and errors in words. Standard library, and for
Cloud Composer google-auth.

The address is NIGHTSHIFT_AIRFLOW_URL, else Airflow's own setting ``[api] base_url`` from its variable, as in the local stack.
Who asks: NIGHTSHIFT_AIRFLOW_TOKEN; else ``USER:PASSWORD@`` in the address; else, at the address in Airflow's own setting, the
file of passwords of its simple auth manager, if its variables name one; else, at Cloud Composer, this machine's Google account.
Its token allows whatever the account may do, so it goes only to hosts of Composer's own, and encrypted.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urlencode, urlsplit, urlunsplit

from nightshift.cli.trouble import beside_the_stack

TIMEOUT_S: Final = 30.0
SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
BASE_URL: Final = "AIRFLOW__API__BASE_URL"
_COMPOSER: Final = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)*\.composer\.googleusercontent\.com")
PASSWORDS: Final = "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"


class NoAirflow(Exception):
    """It is not known where Airflow is, or it does not let this account in. The message says what to do."""


class NotNamed(NoAirflow):
    """No variable has its address."""


class Unreachable(Exception):
    """Airflow does not answer, or fails: trying again may help."""


class Refused(Exception):
    """Airflow answered that the request is wrong. status: of HTTP; detail: its words."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"Airflow answers {status}: {detail}")
        self.status, self.detail = status, detail


class _Direct(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: urllib would send the token to wherever it leads."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER: Final = urllib.request.build_opener(_Direct)


@dataclass
class AirflowApi:
    """One Airflow. base: its address, without a slash at its end. login: user and password, if these are how it is asked.

    token: the bearer's; fetched anew with the login, or from Google, when it is no longer accepted.
    """

    base: str
    login: tuple[str, str] | None = None
    token: str | None = None
    timeout_s: float = TIMEOUT_S
    _google: Any = field(default=None, repr=False)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> AirflowApi:
        """Raises NoAirflow."""
        url = environment.get("NIGHTSHIFT_AIRFLOW_URL") or environment.get(BASE_URL)
        if not url:
            raise NotNamed(
                "It is not known where Airflow is. Set NIGHTSHIFT_AIRFLOW_URL to the address of its pages (Cloud Composer: "
                "`gcloud composer environments describe NAME --location REGION --format 'value(config.airflowUri)'`)."
                f"{beside_the_stack()}"
            )
        parts = urlsplit(url.strip().rstrip("/"))
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise NoAirflow("NIGHTSHIFT_AIRFLOW_URL is not an address. Write https://HOST, as the browser shows it.")
        host = parts.netloc.rpartition("@")[2]
        base = urlunsplit((parts.scheme, host, parts.path, "", ""))
        if token := environment.get("NIGHTSHIFT_AIRFLOW_TOKEN"):
            return cls(base, token=token)
        if parts.username and parts.password:
            return cls(base, login=(unquote(parts.username), unquote(parts.password)))
        own = environment.get(BASE_URL, "").strip().rstrip("/") == url.strip().rstrip("/")
        return cls(base, login=_simple_login(environment.get(PASSWORDS) if own else None))

    def get(self, path: str, **query: Any) -> Any:
        """path: below /api/v2. Raises Refused, Unreachable, NoAirflow."""
        return self._ask("GET", f"{path}?{urlencode(query, doseq=True)}" if query else path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The same."""
        return self._ask("POST", path, body)

    def page(self, *names: str) -> str:
        """The address of a page of Airflow's."""
        return "/".join([self.base, *(quote(name, safe="") for name in names)])

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        fresh = self.token is None
        if fresh:
            self._log_in()
        try:
            return self._send(method, f"/api/v2{path}", body)
        except Refused as error:
            if error.status == 401 and not fresh and (self.login or self._google):
                self._log_in()
                return self._send(method, f"/api/v2{path}", body)
            if error.status in (401, 403):
                raise NoAirflow(
                    f"{self.base} does not let this account do that ({error.status}: {error.detail}). {self._who()}"
                ) from error
            raise

    def _who(self) -> str:
        if self.login:
            return f"It was asked as the user {self.login[0]}."
        how = "Google's credentials of this machine" if self._google else "NIGHTSHIFT_AIRFLOW_TOKEN"
        return f"It was asked with {how}: use an account that may trigger this DAG."

    def _log_in(self) -> None:
        if self.login is None:
            self.token = self._google_token()
            return
        user, password = self.login
        try:
            self.token = str(self._send("POST", "/auth/token", {"username": user, "password": password})["access_token"])
        except (KeyError, TypeError, Refused) as error:
            raise NoAirflow(f"{self.base} does not accept the user {user} and its password: {error}.") from error

    def _google_token(self) -> str:
        where = urlsplit(self.base)
        if where.scheme != "https" or not _COMPOSER.fullmatch(where.hostname or ""):
            raise NoAirflow(
                f"It is not known as whom to ask Airflow at {self.base}. Set NIGHTSHIFT_AIRFLOW_TOKEN, or write "
                "NIGHTSHIFT_AIRFLOW_URL as https://USER:PASSWORD@HOST. This machine's Google token is sent only to Cloud "
                "Composer: https://NAME.composer.googleusercontent.com."
            )
        try:
            import google.auth
            from google.auth.exceptions import GoogleAuthError
            from google.auth.transport.requests import Request
        except ImportError:
            raise NoAirflow(
                "It is not known as whom to ask Airflow. Set NIGHTSHIFT_AIRFLOW_TOKEN, or write NIGHTSHIFT_AIRFLOW_URL as "
                "https://USER:PASSWORD@HOST; for Google's credentials, the package google-auth is not installed here."
            ) from None
        try:
            if self._google is None:
                self._google, _ = google.auth.default(scopes=[SCOPE])
            self._google.refresh(Request())
        except GoogleAuthError as error:
            raise NoAirflow(
                f"There are no Google credentials for {self.base}: {str(error).rstrip('.')}. Log in with "
                "`gcloud auth application-default login`, or set NIGHTSHIFT_AIRFLOW_TOKEN."
            ) from error
        return str(self._google.token)

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if self.token and path != "/auth/token":
            headers["Authorization"] = f"Bearer {self.token}"
        request = urllib.request.Request(f"{self.base}{path}", data, headers, method=method)
        try:
            with _OPENER.open(request, timeout=self.timeout_s) as reply:
                content = reply.read()
        except urllib.error.HTTPError as error:
            words = _words(error)
            if error.code in range(300, 400):
                raise NoAirflow(
                    f"{self.base} sends elsewhere ({error.code}): it is not Airflow's address, or a login is before it."
                ) from error
            if error.code >= 500 or error.code == 429:
                raise Unreachable(f"{self.base} answers {error.code}: {words}") from error
            raise Refused(error.code, words) from error
        except (OSError, ValueError) as error:
            why = getattr(error, "reason", error)
            raise Unreachable(f"Airflow does not answer at {self.base}: {why}") from error
        try:
            return json.loads(content) if content else {}
        except ValueError:
            raise NoAirflow(
                f"{self.base} answers with a page, not with JSON: it is not Airflow's address, or a login is before it."
            ) from None


def _simple_login(passwords: str | None) -> tuple[str, str] | None:
    """The first user of the file, which the local stack has for its one user."""
    if not passwords:
        return None
    try:
        users = json.loads(Path(passwords).read_text())
        return next((str(user), str(password)) for user, password in users.items())
    except (OSError, ValueError, AttributeError, StopIteration):
        return None


def _words(error: urllib.error.HTTPError) -> str:
    """What a refusal says: Airflow's ``detail`` is a text, or a list of what is wrong in a body."""
    text = error.read(10_000).decode(errors="replace")
    try:
        detail = json.loads(text)["detail"]
    except (KeyError, TypeError, ValueError):
        return text[:300] or str(error.reason)
    if isinstance(detail, list):
        return "; ".join(str(each.get("msg", each)) if isinstance(each, dict) else str(each) for each in detail)
    return str(detail)
