"""The whole doctor over real clients, Airflow's real hooks and the emulators: all well, then one fault after the other.

The cluster's API and the hub are canned; `tests/cluster/test_doctor.py` asks a real cluster.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict

import pytest
from airflow.providers.google.common.hooks.base_google import GoogleBaseHook
from google.auth.credentials import Credentials

from local import package
from nightshift import __version__
from nightshift.doctor.context import Triggerer
from nightshift.doctor.findings import Ok, Report, Skipped
from nightshift.hooks.deployment import Deployment
from nightshift.hooks.google import GoogleAccount
from nightshift.hooks.services import Database
from nightshift.settings import Settings
from tests.canned_cluster import LOCAL_QUEUE, USER
from tests.integration.doctor.conftest import Place
from tests.integration.doctor.front import Answer, serving
from tests.integration.emulators import WORKER, grant

pytestmark = pytest.mark.integration


def wrong(report: Report) -> list[str]:
    return [problem.check for problem in report.problems]


@pytest.mark.gate
def test_all_is_well_and_nothing_is_left_behind(deployment: Place) -> None:
    answer = Triggerer(version=__version__, settings=asdict(Settings.from_environment()))

    report = deployment.examine(triggerer=answer)

    assert report.problems == ()
    assert report.exit_code == 0
    assert Ok("identity", "anonymous, as the emulators need") in report.findings
    not_asked = {"driver image", "cpu server image", "notifiers", "priority class"}
    # The cluster is reached over a connection, so Google Cloud is not asked about it: tests/unit/doctor/test_google_cloud.py.
    not_asked |= {"gke cluster", "add-ons", "node pools", "compute classes", "compute quotas"}
    assert {each.check for each in report.findings if isinstance(each, Skipped)} == not_asked
    assert deployment.objects() == []
    assert deployment.tables() == ["notes"]


def no_bucket(here: Place) -> None:
    here.set(bucket=f"{here.name}-gone")


def other_location(here: Place) -> None:
    here.set(location="EU")


def no_dataset(here: Place) -> None:
    here.set(dataset=f"{here.name}_gone")


def a_worker_that_writes_anywhere(here: Place) -> None:
    grant(here.bucket.bucket(here.name), ("storage.objectViewer", WORKER, None), ("storage.objectCreator", WORKER, None))


def no_delete(here: Place) -> None:
    def alter(method: str, path: str, answer: Answer) -> Answer:
        if "/iam/testPermissions" not in path:
            return answer
        held = json.loads(answer.body)
        held["permissions"].remove("storage.objects.delete")
        return Answer(200, json.dumps(held).encode(), answer.headers)

    here.storage.alter = alter


def no_tables(here: Place) -> None:
    refused = {"code": 403, "message": "Access Denied", "errors": [{"reason": "accessDenied", "message": "Access Denied"}]}

    def refuse(method: str, path: str) -> Answer | None:
        if method == "POST" and path.partition("?")[0].endswith("/tables"):
            return Answer(403, json.dumps({"error": refused}).encode(), {"Content-Type": "application/json"})
        return None

    here.bigquery.refuse = refuse


def store_down(here: Place) -> None:
    """For nightshift's own client, which speaks the XML API and uploads elsewhere."""

    here.storage.refuse = lambda method, path: None if path.startswith("/storage/") else Answer(403, b"no")


def no_jobset(here: Place) -> None:
    del here.cluster.groups["jobset.x-k8s.io/v1alpha2"]


def old_kueue(here: Place) -> None:
    here.cluster.groups["kueue.x-k8s.io/v1beta1"] = here.cluster.groups.pop("kueue.x-k8s.io/v1beta2")


def no_right(here: Place) -> None:
    here.cluster.denied.add("watch pods")


def no_queue(here: Place) -> None:
    del here.cluster.objects[LOCAL_QUEUE]


def small_quota(here: Place) -> None:
    here.job["compute"] = {"profile": "cpu", "workers": 3}


def no_revision(here: Place) -> None:
    here.hub.revisions = ()


def no_weights(here: Place) -> None:
    here.job["model"] = {"name": "m", "uri": f"gs://{here.name}/models/m", "revision": "1"}


def no_column(here: Place) -> None:
    query = f"SELECT name, missing AS text FROM `{here.name}.notes` WHERE day = @partition"
    here.job["source"] = {"query": query, "key": ["name"]}


def broken_job(here: Place) -> None:
    here.job["deadline"] = "soon"


def half_emulated(here: Place) -> None:
    here.monkeypatch.delenv("BIGQUERY_EMULATOR_HOST")


FAULTS: list[tuple[Callable[[Place], None], str, str]] = [
    (no_bucket, "bucket", "gcloud storage buckets create gs://{name}-gone --location=US"),
    (other_location, "location", "NIGHTSHIFT_LOCATION=US"),
    (no_dataset, "dataset", "bq --location=US mk --dataset local:{name}_gone"),
    (no_delete, "storage.objects.delete", "--role=roles/storage.objectUser"),
    (a_worker_that_writes_anywhere, "workers' rights", "objects/_workers/"),
    (no_tables, "bigquery.tables.create", "roles/bigquery.dataEditor"),
    (store_down, "store", "--role=roles/storage.objectUser"),
    (no_jobset, "jobset api", "kubectl apply --server-side -f https://github.com/kubernetes-sigs/jobset/"),
    (old_kueue, "kueue api", "kubectl apply --server-side -f https://github.com/kubernetes-sigs/kueue/"),
    (no_right, "watch pods", f"--role=nightshift-airflow --user={USER}"),
    (no_queue, "queue", "kubectl apply --namespace=nightshift -f k8s/components/queues/queue.yaml"),
    (small_quota, "quota cpu", "kubectl edit clusterqueue nightshift"),
    (no_revision, "model", "hf download org/m --revision=main --dry-run"),
    (no_weights, "model", "gcloud storage ls gs://{name}"),
    (no_column, "query", "correct the job"),
    (broken_job, "job", "nightshift validate"),
    (half_emulated, "identity", "airflow connections add google_cloud_default"),
]


@pytest.mark.parametrize(("fault", "check", "fix"), FAULTS, ids=[fault.__name__ for fault, *_ in FAULTS])
def test_a_fault_is_named_alone_and_with_its_fix(
    deployment: Place, fault: Callable[[Place], None], check: str, fix: str
) -> None:
    """Every check that does not need what is broken still answers."""
    fault(deployment)

    report = deployment.examine()

    assert wrong(report) == [check], report.lines()
    assert fix.format(name=deployment.name) in report.problems[0].fix
    assert report.problems[0].affects
    assert report.exit_code == 1
    assert sum(isinstance(each, Ok) for each in report.findings) > 15, report.lines()
    assert deployment.objects() == []
    assert deployment.tables() == ["notes"]


def test_the_account_sends_its_token_and_follows_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    class Account(Credentials):
        service_account_email = "airflow@acme.iam.gserviceaccount.com"

        def refresh(self, _: object) -> None:
            self.token = "a-token"

    sent: list[tuple[str, str, str | None]] = []

    def respond(method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        sent.append((method, path, headers.get("Authorization")))
        return Answer(302, b"", {"Location": "/elsewhere"})

    monkeypatch.setenv("AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT", '{"conn_type": "google_cloud_platform"}')
    monkeypatch.setattr(GoogleBaseHook, "get_credentials", lambda _: Account())  # type: ignore[no-untyped-call]
    account = GoogleAccount("google_cloud_default")

    with serving(respond) as url:
        reply = account.ask("HEAD", f"{url}/here")

    assert (reply.status, account.email, account.token) == (302, Account.service_account_email, "a-token")
    assert sent == [("HEAD", "/here", None)], "only Google gets the token"


def test_the_streams_database_is_that_of_airflows_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    connections = Deployment(Settings("runs", "acme"))
    monkeypatch.delenv("AIRFLOW_CONN_POSTGRES_DEFAULT", raising=False)
    absent = connections.database()
    monkeypatch.setenv("AIRFLOW_CONN_POSTGRES_DEFAULT", "postgres://airflow%40acme.iam@10.9.0.2/catalog")

    assert (absent, connections.database()) == (None, Database("10.9.0.2", "airflow@acme.iam"))


def test_a_package_that_is_not_installed_is_named_with_its_fix(deployment: Place) -> None:
    """As in this environment: nightshift is on the path, and Airflow has no entry point of it."""
    report = deployment.examine(Deployment)

    assert wrong(report) == ["plugin", "provider"]
    assert "make composer-bundle" in report.problems[0].fix


def test_a_triggerer_without_nightshift_is_named_with_its_fix(deployment: Place) -> None:
    report = deployment.examine(triggerer=Triggerer(problem="Trigger failure"))

    assert wrong(report) == ["triggerer"]
    assert "make composer-bundle" in report.problems[0].fix


def test_a_cluster_that_does_not_answer_hides_nothing_else(deployment: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightshift.hooks.deployment.PATIENCE_S", 0.5)
    nobody = json.loads(os.environ["AIRFLOW_CONN_KUBERNETES_DEFAULT"].replace(deployment.urls["cluster"], "http://127.0.0.1:9"))
    monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", json.dumps(nobody))

    report = deployment.examine()

    assert wrong(report) == ["cluster"]
    assert report.problems[0].fix == "airflow connections get kubernetes_default"
    assert Skipped("rights", "cluster is not ok", needs="cluster") in report.findings
    assert any(isinstance(each, Ok) and each.check == "query" for each in report.findings)


@pytest.mark.gate
def test_the_command_with_the_package_installed(deployment: Place) -> None:
    """A process of its own, with the wheel: Airflow's own lists have the plugin and the provider."""
    command = [sys.executable, "-m", "nightshift.cli", "doctor", str(deployment.job_file), "--json"]
    environment = {**deployment.environment, "PYTHONPATH": str(package.installed())}

    done = subprocess.run(command, cwd=deployment.folder, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    checks = {each["check"]: each["state"] for each in json.loads(done.stdout.splitlines()[-1])["checks"]}
    assert (checks["plugin"], checks["provider"], checks["triggerer"]) == ("ok", "ok", "skipped")
