"""Storage with the credentials of Airflow's Google connection, at a door that lets nobody in without a token that it knows."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import obstore
import pytest
from aiohttp import web
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from google.auth import iam
from google.cloud.storage import Client as StorageClient  # type: ignore[import-untyped]

from nightshift.hooks.warehouse import warehouse_for
from nightshift.operators.plan import PlanOperator
from nightshift.operators.run import RunOperator
from nightshift.operators.seal import SealOperator
from nightshift.settings import Settings
from nightshift.store import StoreUnavailable
from nightshift.warehouse import WarehouseUnavailable
from tests.builders import a_spec
from tests.integration.driver.serving import ThreadedServer
from tests.integration.emulators import ANONYMOUS_CONNECTION, PROJECT, StorageEmulator

pytestmark = [pytest.mark.integration, pytest.mark.gate]

CONNECTION = "AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT"
OWNER, OTHER = "owner@local.iam.gserviceaccount.com", "other@local.iam.gserviceaccount.com"


class Google(ThreadedServer):
    """Cloud Storage, behind which the emulator stands, and the two services that give tokens for it.

    lifetime_s: of the next tokens of keys. refusals: status and JSON with which tokens are refused, by what they are of:
    ``key``, or an account. issued: the tokens, in order. seen: the Authorization header of each request to storage.
    """

    def __init__(self, emulator: str) -> None:
        super().__init__(0)
        self._emulator = emulator
        self.lifetime_s = 3600
        self.refusals: dict[str, tuple[int, Any]] = {}
        self.issued: list[str] = []
        self.seen: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/token", self._token),
            web.post("/v1/projects/-/serviceAccounts/{account}:generateAccessToken", self._impersonated),
            web.route("*", "/{path:.*}", self._storage),
        ]

    async def _token(self, request: web.Request) -> web.Response:
        return self._issue("key", lambda token: {"access_token": token, "expires_in": self.lifetime_s})

    async def _impersonated(self, request: web.Request) -> web.Response:
        if not self._knows(request):
            return web.json_response({"error": {"code": 403, "message": "Permission denied"}}, status=403)
        said = {"expireTime": "2126-11-23T00:00:00Z"}
        return self._issue(request.match_info["account"], lambda token: {**said, "accessToken": token})

    def _issue(self, of: str, reply: Callable[[str], Any]) -> web.Response:
        if of in self.refusals:
            status, body = self.refusals[of]
            return web.json_response(body, status=status)
        self.issued.append(f"{of}-{len(self.issued) + 1}")
        return web.json_response(reply(self.issued[-1]))

    def _knows(self, request: web.Request) -> bool:
        return request.headers.get("Authorization", "").removeprefix("Bearer ") in self.issued

    async def _storage(self, request: web.Request) -> web.Response:
        self.seen.append(request.headers.get("Authorization"))
        if not self._knows(request):
            return web.Response(status=401)
        kept = {name: value for name, value in request.headers.items() if name not in ("Host", "Authorization")}
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                request.method, f"{self._emulator}{request.raw_path}", headers=kept, data=await request.read()
            ) as reply,
        ):
            body = await reply.read()
            length = {"Content-Length"} if request.method != "HEAD" else set()
            told = {name: value for name, value in reply.headers.items() if name not in {"Transfer-Encoding"} | length}
            return web.Response(status=reply.status, headers=told, body=body)


@pytest.fixture(scope="module")
def key() -> str:
    """A private key, as a key file has it."""
    made = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


@pytest.fixture
def google(storage_emulator: StorageEmulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[Google]:
    with Google(storage_emulator.url) as google:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", google.url)
        monkeypatch.setattr(
            iam, "_IAM_ENDPOINT", iam._IAM_ENDPOINT.replace("https://iamcredentials.googleapis.com", google.url)
        )
        yield google


@pytest.fixture
def key_file(google: Google, key: str, tmp_path: Path) -> Path:
    said = {"type": "service_account", "project_id": PROJECT, "client_email": OWNER, "private_key": key}
    file = tmp_path / "key.json"
    file.write_text(json.dumps({**said, "private_key_id": "1", "token_uri": f"{google.url}/token"}))
    return file


@pytest.fixture
def bucket(storage_client: StorageClient, monkeypatch: pytest.MonkeyPatch) -> str:
    """The deployment's, named by the variables that Airflow's components have."""
    name = f"runs-{uuid.uuid4().hex[:10]}"
    storage_client.create_bucket(name)
    monkeypatch.setenv("NIGHTSHIFT_BUCKET", name)
    monkeypatch.setenv("NIGHTSHIFT_PROJECT", PROJECT)
    return name


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Gives the connection these extras."""

    def connect(**extra: Any) -> None:
        monkeypatch.setenv(CONNECTION, json.dumps({"conn_type": "google_cloud_platform", "extra": extra}))

    return connect


def a_task() -> RunOperator:
    """As it is made for each attempt."""
    with DAG("job", schedule=None):
        return SealOperator(task_id="seal", run_prefix="job/2026-11-20/0123456789abcdef", terms="")


def visit(task: RunOperator) -> None:
    """Writes an object, lists it and reads it."""
    obstore.put(task.store, "a/b", b"x", mode="overwrite")
    assert [meta["path"] for meta in obstore.list(task.store, "a").collect()] == ["a/b"]
    assert bytes(obstore.get(task.store, "a/b").bytes()) == b"x"


@pytest.mark.usefixtures("bucket")
class TestTokens:
    def test_a_key_file(self, google: Google, connect: Any, key_file: Path) -> None:
        connect(key_path=str(key_file))

        visit(a_task())

        assert google.seen == ["Bearer key-1"] * 3
        assert google.issued == ["key-1"], "it is asked for once"

    def test_a_key_in_the_connection_that_the_settings_name(
        self, google: Google, key_file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        extra = {"keyfile_dict": key_file.read_text()}
        monkeypatch.setenv("AIRFLOW_CONN_NIGHTS", json.dumps({"conn_type": "google_cloud_platform", "extra": extra}))
        monkeypatch.setenv("NIGHTSHIFT_GCP_CONN_ID", "nights")

        visit(a_task())

        assert google.seen == ["Bearer key-1"] * 3

    def test_an_impersonated_account(self, google: Google, connect: Any, key_file: Path) -> None:
        connect(key_path=str(key_file), impersonation_chain=OTHER)

        visit(a_task())

        assert set(google.seen) == {f"Bearer {OTHER}-2"}

    def test_the_weights_that_a_run_pins(
        self, google: Google, connect: Any, key_file: Path, storage_client: StorageClient, bucket: str
    ) -> None:
        storage_client.bucket(bucket).blob("org/m/weights.bin").upload_from_string(b"weights")
        connect(key_path=str(key_file))
        with DAG("job", schedule=None):
            task = PlanOperator(task_id="plan", spec={})

        assert task._pin(a_spec(model__uri=f"gs://{bucket}/org/m")).weights_bytes == 7

        assert set(google.seen) == {"Bearer key-1"}

    def test_a_task_that_outlives_its_token_gets_another(self, google: Google, connect: Any, key_file: Path) -> None:
        """The first tokens end as soon as they are issued."""
        connect(key_path=str(key_file))
        google.lifetime_s = 0
        task = a_task()

        visit(task)
        google.lifetime_s = 3600
        visit(task)

        assert google.seen[:3] == ["Bearer key-2", "Bearer key-3", "Bearer key-4"]
        assert google.seen[3:] == ["Bearer key-5"] * 3
        assert len(google.issued) == 5

    def test_an_anonymous_connection_sends_none(
        self, google: Google, connect: Any, storage_emulator: StorageEmulator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(CONNECTION, ANONYMOUS_CONNECTION)

        with pytest.raises(obstore.exceptions.UnauthenticatedError):
            visit(a_task())
        assert {(header or "").removeprefix("Bearer").strip() for header in google.seen} == {""}

        monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_emulator.url)
        visit(a_task())
        assert google.issued == []


@pytest.mark.usefixtures("bucket")
class TestFailures:
    def no_connection(self, connect: Any, key_file: Path, google: Google) -> str:
        return "isn't defined"

    def no_key_file(self, connect: Any, key_file: Path, google: Google) -> str:
        connect(key_path="/no/such/key.json")
        return "No such file or directory: '/no/such/key.json'"

    def half_a_key(self, connect: Any, key_file: Path, google: Google) -> str:
        connect(keyfile_dict={"type": "service_account", "client_email": OWNER})
        return "its key lacks 'private_key'"

    def no_json(self, connect: Any, key_file: Path, google: Google) -> str:
        connect(keyfile_dict="{")
        return "Invalid key JSON"

    def a_key_that_was_deleted(self, connect: Any, key_file: Path, google: Google) -> str:
        connect(key_path=str(key_file))
        google.refusals["key"] = (400, {"error": "invalid_grant", "error_description": "Invalid JWT Signature."})
        return "invalid_grant: Invalid JWT Signature"

    PERMANENT = (no_connection, no_key_file, half_a_key, no_json, a_key_that_was_deleted)

    @pytest.mark.parametrize("mistake", PERMANENT, ids=lambda mistake: mistake.__name__)
    def test_what_a_person_must_correct_fails_for_good(
        self, mistake: Any, connect: Any, key_file: Path, google: Google
    ) -> None:
        problem = mistake(self, connect, key_file, google)

        for ask in (lambda: a_task().store, lambda: warehouse_for(Settings.from_environment())):
            with pytest.raises(
                AirflowFailException, match="The connection 'google_cloud_default' gives no credentials: "
            ) as told:
                ask()
            assert problem in str(told.value)
            assert "NIGHTSHIFT_GCP_CONN_ID" in str(told.value)

    def outage(self, connect: Any, key_file: Path, google: Google) -> None:
        connect(key_path=str(key_file))
        google.refusals["key"] = (503, {"error": "unavailable"})

    def denied(self, connect: Any, key_file: Path, google: Google) -> None:
        """A role that was granted takes minutes to be known everywhere."""
        connect(key_path=str(key_file), impersonation_chain=OTHER)
        google.refusals[OTHER] = (403, {"error": {"code": 403, "message": "iam.serviceAccounts.getAccessToken denied"}})

    def silence(self, connect: Any, key_file: Path, google: Google) -> None:
        key_file.write_text(key_file.read_text().replace(google.url, "http://127.0.0.1:9"))
        connect(key_path=str(key_file))

    @pytest.mark.parametrize("fault", [outage, denied, silence], ids=lambda fault: fault.__name__)
    def test_what_may_pass_is_left_to_the_retries(self, fault: Any, connect: Any, key_file: Path, google: Google) -> None:
        fault(self, connect, key_file, google)

        with pytest.raises(StoreUnavailable, match="The connection 'google_cloud_default' gives no credentials now: "):
            _ = a_task().store
        with pytest.raises(WarehouseUnavailable, match="The connection 'google_cloud_default' gives no credentials now: "):
            warehouse_for(Settings.from_environment())

    def test_no_new_token_says_nothing_about_the_weights(
        self, google: Google, connect: Any, key_file: Path, bucket: str
    ) -> None:
        """The first token ends at once, and there is no second one."""
        connect(key_path=str(key_file))
        google.lifetime_s = 0
        with DAG("job", schedule=None):
            task = PlanOperator(task_id="plan", spec={})
        assert task.store
        google.refusals["key"] = (503, {"error": "unavailable"})

        with pytest.raises(StoreUnavailable, match="gives no credentials now: "):
            task._pin(a_spec(model__uri=f"gs://{bucket}/org/m"))
