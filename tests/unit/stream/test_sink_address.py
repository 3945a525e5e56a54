"""What a sink's address says: servers and ports, who logs in, and that a token never travels unencrypted."""

from __future__ import annotations

from typing import Any

import google.auth
import pytest
from google.auth.credentials import Scoped

from nightshift.stream.dead_letters import DeadLetterTable
from nightshift.stream.google_login import SCOPES, Token
from nightshift.stream.ports import BadUrl
from nightshift.stream.redrive import Redrive, redrive
from nightshift.stream.session import Session
from nightshift.stream.sink_address import parse
from tests.stream_manifests import a_stream

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _nobodys_password(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGPASSWORD", "PGSSLMODE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("url", "hosts", "ports"),
    [
        ("postgresql://u:p@h/d", ("h",), (5432,)),
        ("postgresql://u:p@h:6432/d", ("h",), (6432,)),
        ("postgresql://u:p@a:5433,b:5433,c/d", ("a", "b", "c"), (5433, 5432)),
        ("postgresql://u:p@[fd00::1]:6432/d", ("fd00::1",), (6432,)),
        ("host=h hostaddr=10.0.0.1 port=5433 user=u password=p", ("10.0.0.1",), (5433,)),
        ("postgresql:///d?host=/run/sockets", ("/run/sockets",), (5432,)),
    ],
)
def test_servers_and_ports(url: str, hosts: tuple[str, ...], ports: tuple[int, ...]) -> None:
    address = parse(url)

    assert (address.hosts, address.ports) == (hosts, ports)


@pytest.mark.parametrize(
    ("url", "account"),
    [
        ("postgresql://texts%40acme.iam@h/d", "texts@acme.iam.gserviceaccount.com"),
        ("postgresql://ann%40acme.com@h/d", "ann@acme.com"),
        ("postgresql://texts%40acme.iam:password@h/d", None),
        ("postgresql://texts%40acme.iam@h/d?passfile=/pgpass", None),
        ("postgresql://texts@h/d", None),
        ("postgresql://h/d", None),
    ],
)
def test_a_google_account_is_who_has_an_address_and_no_password(url: str, account: str | None) -> None:
    assert parse(url).google_account == account


def test_a_password_in_the_environment_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "secret")

    assert parse("postgresql://texts%40acme.iam@h/d").google_account is None


@pytest.mark.parametrize("mode", ["disable", "allow", "prefer"])
def test_a_token_is_not_sent_unencrypted_over_a_network(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "postgresql://texts%40acme.iam@{}/d?sslmode=" + mode
    with pytest.raises(
        BadUrl, match=f"sslmode={mode} would send the access token of texts@acme.iam.gserviceaccount.com unencry"
    ):
        parse(url.format("10.0.0.1"))
    for local in ("127.0.0.1", "[::1]", "localhost", "%2Frun%2Fsockets"):
        assert parse(url.format(local))
    monkeypatch.setenv("PGSSLMODE", mode)
    with pytest.raises(BadUrl):
        parse("postgresql://texts%40acme.iam@h/d")


@pytest.mark.parametrize(
    ("url", "mode"),
    [
        ("postgresql://texts%40acme.iam@10.0.0.1/d", "require"),
        ("postgresql://texts%40acme.iam@10.0.0.1/d?sslmode=verify-full", None),
        ("postgresql://texts%40acme.iam@127.0.0.1/d", None),
        ("postgresql://u:p@10.0.0.1/d", None),
    ],
)
def test_encryption_is_asked_for_where_a_token_needs_it(url: str, mode: str | None) -> None:
    """None: nothing beside what the address says."""
    assert Session(parse(url))._parameters.get("sslmode") == mode


class Whole(Scoped):
    """An account whose tokens may do more, as a connection of Airflow's has it."""

    def __init__(self, scopes: tuple[str, ...]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._scopes, self.token, self.valid = scopes, "-".join(scopes), True

    requires_scopes = False

    def with_scopes(self, scopes: Any, default_scopes: Any = None) -> Whole:
        return Whole(tuple(scopes))


async def test_a_token_can_log_in_and_do_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def default(scopes: tuple[str, ...]) -> tuple[Whole, None]:
        return Whole(("cloud-platform",)), None

    monkeypatch.setattr(google.auth, "default", default)

    assert await Token().read() == await Token(Whole(("cloud-platform",))).read() == "-".join(SCOPES)  # type: ignore[arg-type]


async def test_redriving_from_airflow_logs_in_as_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    account: Any = Whole(("cloud-platform",))
    sessions: list[Session] = []

    async def select(self: DeadLetterTable, selection: object) -> tuple[list[Any], int]:
        sessions.append(self._session)
        return [], 0

    monkeypatch.setattr(DeadLetterTable, "select", select)
    asked = Redrive("projects/acme/subscriptions/texts", topic="projects/acme/topics/texts")
    await redrive("postgresql://airflow%40acme.iam@10.0.0.1/d", a_stream(), asked, account)

    [session] = sessions
    assert session._token is not None
    assert await session._token.read() == "-".join(SCOPES)
