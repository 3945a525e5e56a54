"""Tokens of Google accounts go to Google alone, and encrypted, whatever the address in a variable or a setting is."""

from __future__ import annotations

import urllib.request
from typing import Any

import pytest
import requests
from google.auth.credentials import AnonymousCredentials, Credentials

from nightshift import store
from nightshift.hooks import credentials, google
from nightshift.hooks.google import GoogleAccount
from nightshift.hooks.warehouse import warehouse_for
from nightshift.settings import Settings
from nightshift.stream.status import prometheus
from nightshift.stream.status.queries import Place
from nightshift.triggers.folder import storage_client

pytestmark = pytest.mark.unit

SETTINGS = Settings("b", "p")


class Account(Credentials):
    """A stand-in: there is no account of Google's here."""

    valid = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.token = "google"

    def refresh(self, _: object) -> None: ...


@pytest.fixture(autouse=True)
def as_google(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.providers.google.common.hooks.base_google import GoogleBaseHook

    monkeypatch.setenv("AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT", '{"conn_type": "google_cloud_platform"}')
    monkeypatch.setattr(GoogleBaseHook, "get_credentials", lambda _: Account())
    monkeypatch.setattr(google, "credentials_of", lambda *_: Account())
    monkeypatch.setattr(credentials, "credentials_of", lambda *_: Account())


@pytest.mark.parametrize(
    ("url", "gets"),
    [
        ("https://storage.googleapis.com/storage/v1/b/b", True),
        ("https://oauth2.googleapis.com/tokeninfo", True),
        ("https://europe-docker.pkg.dev/v2/p/r/i/manifests/1", True),
        ("http://storage.googleapis.com/storage/v1/b/b", False),
        ("http://127.0.0.1:9023/storage/v1/b/b", False),
        ("https://googleapis.com.example/x", False),
        ("https://evilgoogleapis.com/x", False),
        ("https://evil.example/https://storage.googleapis.com/", False),
    ],
)
def test_the_doctors_requests(url: str, gets: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict[str, str]] = []

    def request(_: requests.Session, method: str, url: str, *, headers: dict[str, str], **__: Any) -> requests.Response:
        sent.append(headers)
        return requests.Response()

    monkeypatch.setattr(requests.Session, "request", request)
    GoogleAccount("google_cloud_default").ask("GET", url)

    assert sent == [{"Authorization": "Bearer google"} if gets else {}]


@pytest.mark.parametrize("emulated", [True, False])
def test_clients_of_an_emulator_have_no_account(emulated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STORAGE_EMULATOR_HOST", "BIGQUERY_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)
        if emulated:
            monkeypatch.setenv(name, "http://elsewhere.example:9050")
    kind = AnonymousCredentials if emulated else Account

    assert type(storage_client(SETTINGS)._credentials) is kind
    assert type(warehouse_for(SETTINGS)._client._credentials) is kind


@pytest.mark.parametrize("emulator", ["http://elsewhere.example:9023", ""])
def test_the_stores_client_of_an_emulator_has_none(emulator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.delenv("STORAGE_EMULATOR_TOKEN", raising=False)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", emulator)
    monkeypatch.setattr(store, "GCSStore", lambda *_, credential_provider, **__: given.append(credential_provider))

    store.open_store("gs://b", credentials=dict)  # type: ignore[arg-type]

    assert given == [None if emulator else dict]


@pytest.mark.parametrize(
    ("url", "gets"),
    [
        ("https://monitoring.googleapis.com/v1/projects/p/location/global/prometheus", True),
        ("http://monitoring.googleapis.com/v1/projects/p/location/global/prometheus", False),
        ("https://monitoring.googleapis.com.example/", False),
    ],
)
def test_a_prometheus_is_not_google(url: str, gets: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is what Google's would redirect to: the header is one that urllib does not send on."""
    asked = []

    def urlopen(request: Any, timeout: float) -> Any:
        asked.append((dict(request.unredirected_hdrs), dict(request.headers)))
        raise OSError

    monkeypatch.setattr(prometheus, "_token", lambda: "google")
    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    with pytest.raises(prometheus.NoAnswer):
        prometheus.Prometheus(Place(url)).ask("up")

    assert asked == [({"Authorization": "Bearer google"} if gets else {}, {})]
