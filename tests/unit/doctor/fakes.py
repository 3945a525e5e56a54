"""Connections whose answers a test chooses, and what a check then says. The real ones run in `tests/integration/doctor`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from local.google_cloud.state import State
from nightshift import DISTRIBUTION, __version__
from nightshift.doctor.context import Surroundings, Triggerer
from nightshift.doctor.findings import Failed, Finding
from nightshift.hooks.deployment import Deployment
from nightshift.hooks.services import Components, Database, Reply
from nightshift.jobset.kubernetes.api import JobSetApi
from nightshift.settings import Settings
from nightshift.spec import JobSpec
from nightshift.spec.notifiers import Named
from nightshift.warehouse import WarehouseError
from tests.canned_cluster import CannedApi, Cluster
from tests.google_deployment import AIRFLOW, StateApi, reply_of

Ask = Callable[[Surroundings], Iterable[Finding]]
ACCOUNT = "airflow@acme.iam.gserviceaccount.com"
EMULATORS = {"STORAGE_EMULATOR_HOST": "http://127.0.0.1:1", "BIGQUERY_EMULATOR_HOST": "http://127.0.0.1:2"}
BUCKET = "https://storage.googleapis.com/storage/v1/b/runs"
WORKER = (
    "principal://iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p.svc.id.goog/subject/ns/nightshift/sa"
)
OWN_PREFIX = {
    "role": "roles/storage.objectCreator",
    "members": [f"{WORKER}/nightshift-worker"],
    "condition": {"title": "own", "expression": 'resource.name.startsWith("projects/_/buckets/runs/objects/_workers/")'},
}


@dataclass
class FakeGoogle:
    """replies: by method and URL without its query: a status, or a status with a document. asked: every request."""

    replies: dict[str, int | tuple[int, Any]] = field(default_factory=dict)
    email: str | None = ACCOUNT
    token: str | None = "token"
    asked: list[str] = field(default_factory=list)

    def ask(self, method: str, url: str, *, headers: Mapping[str, str] | None = None) -> Reply:
        self.asked.append(f"{method} {url}")
        found = self.replies[f"{method} {url.partition('?')[0]}"]
        status, document = found if isinstance(found, tuple) else (found, {})
        if document == "held":
            document = {"permissions": parse_qs(urlsplit(url).query)["permissions"]}
        return Reply(status, json.dumps(document).encode())


def google(**replies: Any) -> FakeGoogle:
    """All well; ``google(bucket=404)`` changes one reply."""
    well: dict[str, Any] = {
        "identity": (200, {"azp": "110000000000000000001", "scope": "https://www.googleapis.com/auth/cloud-platform"}),
        "bucket": (200, {"location": "EU"}),
        "permissions": (200, "held"),
        "policy": (200, {"bindings": [OWN_PREFIX]}),
    } | replies
    return FakeGoogle(
        {
            "POST https://oauth2.googleapis.com/tokeninfo": well["identity"],
            f"GET {BUCKET}": well["bucket"],
            f"GET {BUCKET}/iam/testPermissions": well["permissions"],
            f"GET {BUCKET}/iam": well["policy"],
        }
    )


@dataclass
class FakeTrial:
    """where: the dataset's location; None if it is missing. refused: what BigQuery refuses. made: the steps that were tried."""

    where: str | None = "EU"
    refused: tuple[str, ...] = ()
    made: list[str] = field(default_factory=list)

    def location(self, dataset: str) -> str | None:
        if "bigquery.datasets.get" in self.refused:
            raise WarehouseError(f"Dataset {dataset}: Access Denied")
        return self.where

    def run_job(self) -> None:
        self._do("bigquery.jobs.create")

    def steps(self, dataset: str) -> Iterator[tuple[str, Callable[[], None]]]:
        for verb in ("create", "updateData", "getData", "delete"):
            name = f"bigquery.tables.{verb}"
            yield name, lambda name=name: self._do(name)  # type: ignore[misc]

    def _do(self, permission: str) -> None:
        self.made.append(permission)
        if permission in self.refused:
            raise WarehouseError(f"Access Denied: {permission}")


@dataclass
class FakeWarehouse:
    refuses: str = ""

    def check_query(self, spec: JobSpec, partition: str) -> None:
        if self.refuses:
            raise WarehouseError(self.refuses)


@dataclass
class FakeConnections:
    seen: Components = field(
        default_factory=lambda: Components("3.3.1", {"nightshift": "an entry point"}, {}, {DISTRIBUTION: __version__})
    )
    account: FakeGoogle = field(default_factory=google)
    bigquery: FakeTrial = field(default_factory=FakeTrial)
    queries: FakeWarehouse = field(default_factory=FakeWarehouse)
    api: JobSetApi | None = field(default_factory=lambda: CannedApi(Cluster()))
    sink: Database | None = None

    def components(self) -> Components:
        return self.seen

    def google(self) -> FakeGoogle:
        return self.account

    def storage_credentials(self) -> Any:
        return lambda: {"token": self.account.token, "expires_at": None}

    def trial(self) -> Any:
        return self.bigquery

    def warehouse(self, **_: str) -> Any:
        return self.queries

    def notifier(self, named: Named) -> str | None:
        return Deployment(Settings("runs", "acme")).notifier(named)

    def cluster(self) -> JobSetApi | None:
        return self.api

    def database(self) -> Database | None:
        return self.sink


@dataclass
class StateGoogle(FakeGoogle):
    """The APIs of a pretended Google Cloud, for everything but what `replies` has."""

    state: State = field(default_factory=State)

    def ask(self, method: str, url: str, *, headers: Mapping[str, str] | None = None) -> Reply:
        if f"{method} {url.partition('?')[0]}" in self.replies:
            return super().ask(method, url, headers=headers)
        self.asked.append(f"{method} {url}")
        assert self.email
        return reply_of(self.state, method, url, self.email)


def on(state: State, **replies: Any) -> FakeConnections:
    """To a pretended Google Cloud, whose bucket and datasets are well."""
    account = StateGoogle(google(**replies).replies, email=AIRFLOW, state=state)
    return FakeConnections(account=account, api=StateApi(state), sink=None)


def here(
    connections: FakeConnections | None = None,
    job: JobSpec | None = None,
    *,
    triggerer: Triggerer | None = None,
    environment: Mapping[str, str] | None = None,
    **settings: Any,
) -> Surroundings:
    """All well in a deployment in the EU; the arguments say what is otherwise."""
    of = Settings(**({"bucket": "runs", "project": "acme", "location": "EU"} | settings))
    return Surroundings(of, connections or FakeConnections(), job, triggerer, environment or {})


def only(ask: Ask, surroundings: Surroundings) -> Finding:
    [finding] = ask(surroundings)
    return finding


def problem(ask: Ask, surroundings: Surroundings) -> Failed:
    finding = only(ask, surroundings)
    assert isinstance(finding, Failed), finding
    return finding
