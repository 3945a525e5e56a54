"""What NIGHTSHIFT_SINK_URL says of a stream's database that its manifests need: which way there is open, and who logs in."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

PROXIED: Final[tuple[int, ...]] = (5433, 3307)
"""Where the Auth Proxies of AlloyDB and Cloud SQL call their servers."""
ACCOUNT: Final = ".iam.gserviceaccount.com"


@dataclass(frozen=True)
class Database:
    """ports: what is to be reached. addresses: where; empty if they are not known. service_account: the Google service account
    that logs in with a token. url: then, if it holds no secret. person: any other Google account.
    """

    ports: tuple[int, ...]
    addresses: tuple[str, ...] = ()
    service_account: str | None = None
    person: str | None = None
    url: str | None = None

    @classmethod
    def of(cls, url: str, ports: tuple[int, ...]) -> Database:
        """url: empty if it is not known; ports: those to be open then. Raises ValueError."""
        if not url:
            return cls(ports)
        try:
            from nightshift.stream.sink_address import parse
        except ModuleNotFoundError as error:
            raise ValueError(
                f"NIGHTSHIFT_SINK_URL cannot be read without {error.name}. Install the extra stream where you render, or unset "
                "it: subscribers then read the address from a Secret, and may reach every host at the ports of databases"
            ) from None
        address = parse(url)
        open_ports = PROXIED if address.is_local else address.ports
        addresses = () if address.is_local else tuple(_networks(address.hosts))
        account = address.google_account
        if account is None:
            return cls(open_ports, addresses)
        if not account.endswith(ACCOUNT):
            return cls(open_ports, addresses, person=account)
        # Whoever may look at a Deployment sees what is in it.
        return cls(open_ports, addresses, account, None, None if address.has_secret else url)

    @property
    def egress(self) -> dict[str, Any]:
        """A rule of a NetworkPolicy."""
        to = {"to": [{"ipBlock": {"cidr": each}} for each in self.addresses]} if self.addresses else {}
        return {**to, "ports": [{"protocol": "TCP", "port": port} for port in self.ports]}


def _networks(hosts: tuple[str, ...]) -> Iterator[str]:
    """Of one address each; none at all if one of the hosts is a name, which a NetworkPolicy cannot resolve."""
    try:
        yield from [str(ipaddress.ip_network(host)) for host in hosts]
    except ValueError:
        return
