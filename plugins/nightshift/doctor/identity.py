"""Who Airflow's Google connection is: its e-mail address, and the numeric unique id by which a cluster may know it.

``https://oauth2.googleapis.com/tokeninfo`` describes a token: ``azp`` is the unique id of a service account, ``scope`` its
scopes, ``email`` only with the scope userinfo.email (asked as google-auth-library's ``getTokenInfo`` does, fields as in its
``TokenInfo``; the token is in a header, so that no log of addresses has it). GKE calls an account by its
address only if the token has that scope, else by its number (k8s/README.md, step 9).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from nightshift.doctor.context import EMULATORS, Surroundings
from nightshift.doctor.findings import Failed, Finding, Ok
from nightshift.hooks.services import Google

NAME: Final = "identity"
TOKENINFO: Final = "https://oauth2.googleapis.com/tokeninfo"
EMAIL_SCOPE: Final = "https://www.googleapis.com/auth/userinfo.email"
BREAKS: Final = "every task: none can call Google"


def ask(here: Surroundings) -> Iterator[Finding]:
    """Raises OSError if Google does not answer."""
    google = here.connections.google()
    if google.token is None:
        yield _anonymous(here)
        return
    reply = google.ask("POST", TOKENINFO, headers={"Content-Type": "application/x-www-form-urlencoded"})
    if reply.status != 200:
        # The body may repeat the token, so only the status is shown.
        wrong = f"Google does not accept the token of the connection {here.settings.gcp_conn_id} (HTTP {reply.status})"
        yield Failed(NAME, wrong, BREAKS, f"airflow connections get {here.settings.gcp_conn_id}")
        return
    yield Ok(NAME, _described(google, json.loads(reply.body)))


def _anonymous(here: Surroundings) -> Finding:
    conn = here.settings.gcp_conn_id
    if here.emulated:
        return Ok(NAME, "anonymous, as the emulators need")
    missing = [name for name in EMULATORS if not here.environment.get(name)]
    wrong = f"the connection {conn} is anonymous, which only the emulators accept, and {' and '.join(missing)} is not set"
    fix = f"airflow connections delete {conn} && airflow connections add {conn} --conn-type google_cloud_platform"
    return Failed(NAME, wrong, BREAKS, fix)


def _described(google: Google, info: dict[str, Any]) -> str:
    email = google.email or info.get("email") or "an account whose address the token does not tell"
    number = info.get("azp") or info.get("sub") or "unknown"
    sees = "address" if EMAIL_SCOPE in str(info.get("scope", "")).split() else "unique id"
    return f"{email}, unique id {number}; a GKE cluster sees the {sees}"
