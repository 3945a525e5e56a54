"""The address of a sink's database (NIGHTSHIFT_SINK_URL): what it says of servers, and of who logs in and how."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import pq

from nightshift.stream.ports import BadUrl

PORT: Final = 5432
ENCRYPTED: Final = ("require", "verify-ca", "verify-full")
_ACCOUNT: Final = ".gserviceaccount.com"
_FORM: Final = "NIGHTSHIFT_SINK_URL is not an address of PostgreSQL"


@dataclass(frozen=True)
class Address:
    """given: libpq's parameters in it."""

    url: str
    given: Mapping[str, Any]

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names, addresses, or folders of sockets; none if libpq's default counts."""
        return tuple(str(self.given.get("hostaddr") or self.given.get("host") or "").split(","))

    @property
    def ports(self) -> tuple[int, ...]:
        """Each once."""
        return tuple(dict.fromkeys(int(port or PORT) for port in str(self.given.get("port") or "").split(",")))

    @property
    def sslmode(self) -> str | None:
        """What it, or the environment, says of encryption."""
        return self.given.get("sslmode") or os.environ.get("PGSSLMODE")

    @property
    def is_local(self) -> bool:
        """Whether it is this machine, or another container of this pod: a proxy that logs in on our behalf, for example."""
        return all(not host or host.startswith("/") or _is_loopback(host) for host in self.hosts)

    @property
    def has_secret(self) -> bool:
        """Whether a parameter is one that libpq itself does not show, or not without need: password, sslpassword and others."""
        return any(option.dispchar and self.given.get(option.keyword.decode()) for option in pq.Conninfo.get_defaults())

    @property
    def google_account(self) -> str | None:
        """The e-mail address of the Google account whose access token is the password; None if somebody else logs in.

        AlloyDB and Cloud SQL name a user after its account, a service account without its last part (AlloyDB, "Manage IAM
        authentication"; Cloud SQL, "Manage users with IAM database authentication").
        """
        user = str(self.given.get("user") or "")
        if "@" not in user or self.given.get("password") or self.given.get("passfile") or os.environ.get("PGPASSWORD"):
            return None
        return f"{user}{_ACCOUNT}" if user.endswith(".iam") else user


def parse(url: str) -> Address:
    """Raises BadUrl. libpq's own words are not used: they repeat the address, or parts of it, which may be its password's."""
    try:
        given = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise BadUrl(f"{_FORM}: postgresql://USER:PASSWORD@HOST/DATABASE") from None
    # Of a user or a password with @ or / in it, libpq takes the rest for host, port or database.
    host, port, database = (str(given.get(name) or "") for name in ("host", "port", "dbname"))
    # Of several servers each may have one.
    odd_port = not all(each.isdigit() for each in port.split(",") if each)
    if odd_port or "@" in host[1:] or ("@" in database and "user" not in given):
        raise BadUrl(f"{_FORM}: write @ / : in its user and password as %40 %2F %3A")
    address = Address(url, given)
    if address.google_account and (address.sslmode or ENCRYPTED[0]) not in ENCRYPTED and not address.is_local:
        raise BadUrl(
            f"NIGHTSHIFT_SINK_URL: sslmode={address.sslmode} would send the access token of {address.google_account} "
            f"unencrypted. Leave sslmode out, or write one of {', '.join(ENCRYPTED)}"
        )
    return address


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
