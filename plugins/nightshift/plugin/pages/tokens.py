"""What a write must carry, so that no other site can make a user's browser send it (CSRF).

Airflow recognizes a browser by a cookie, which the browser sends whoever asks it to. So a page holds a token that only it can
read, and htmx sends it as a header, which a form of another site cannot set. It is signed with Airflow's secret key and holds
the user: nobody can use the token of somebody else, and all API servers accept it.
"""

from __future__ import annotations

from typing import Annotated, Final

from airflow.api_fastapi.auth.tokens import get_signing_key
from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import Header
from itsdangerous import BadSignature, URLSafeTimedSerializer

from nightshift.plugin.pages.errors import Refused

HEADER: Final = "X-Nightshift-Token"
MOST_S: Final = 24 * 3600
"""How long a token holds: a page may stay open for a night."""


def _signer() -> URLSafeTimedSerializer:
    return URLSafeTimedSerializer(get_signing_key("api", "secret_key"), salt="nightshift.pages")


def token_for(user_id: str) -> str:
    return str(_signer().dumps(user_id))


def carries_token(user: GetUserDep, x_nightshift_token: Annotated[str, Header()] = "") -> None:
    """A dependency of every write. Raises Refused."""
    try:
        owner = _signer().loads(x_nightshift_token, max_age=MOST_S)
    except BadSignature:
        owner = None
    if owner is None or owner != str(user.get_id()):
        raise Refused(f"Nothing was done: the request has no valid {HEADER}. Load the page again, and repeat what you did.")
