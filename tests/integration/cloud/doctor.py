"""The doctor, asked of what a walk left behind."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final
from unittest import mock

from obstore.store import MemoryStore

from local.google_cloud import access
from local.google_cloud import state as types
from local.google_cloud.cloud import Cloud
from local.google_cloud.shell import Walk
from nightshift.doctor.checks import diagnose
from nightshift.doctor.findings import Report
from tests.google_deployment import READS_ALL, StateApi
from tests.integration.cloud.pages import PROJECT
from tests.unit.doctor.fakes import FakeConnections, StateGoogle, google

AIRFLOW: Final = f"nightshift-airflow@{PROJECT}.iam.gserviceaccount.com"


def settings_of(walk: Walk) -> dict[str, str]:
    """What Airflow's components have after the walk; a stream's walk has no Airflow, and then what it would be given."""
    environments = list(walk.cloud.state.of(types.ENVIRONMENT).values())
    if environments:
        return {**environments[0]["config"]["softwareConfig"]["envVariables"], "HF_HUB_OFFLINE": "1"}
    [cluster] = walk.cloud.state.of(types.CLUSTER)
    return {
        "NIGHTSHIFT_BUCKET": f"{PROJECT}-nightshift",
        "NIGHTSHIFT_PROJECT": PROJECT,
        "NIGHTSHIFT_LOCATION": "europe-west4",
        "NIGHTSHIFT_RUNTIME": f"gke:{cluster.partition('.com/')[2]}",
        "NIGHTSHIFT_PRIORITY_CLASS": "nightshift-batch",
        "HF_HUB_OFFLINE": "1",
    }


def let_it_ask(cloud: Cloud, roles: Iterable[str]) -> str:
    """Gives Airflow's account roles on every project, and binds its unique id, as the overlays' kustomize does, which the
    stand-in of kubectl leaves out. Returns the id."""
    state = cloud.state
    for project in state.of(types.PROJECT).values():
        for role in roles:
            access.add(project, f"roles/{role}", f"serviceAccount:{AIRFLOW}")
    account = cloud.account(AIRFLOW)
    assert account
    for kind in ("RoleBinding", "ClusterRoleBinding"):
        for binding in state.of(f"rbac.authorization.k8s.io/{kind}").values():
            binding["subjects"].append({"kind": "User", "name": account["uniqueId"]})
    return str(account["uniqueId"])


def asked(walk: Walk, file: Path, roles: Iterable[str] = READS_ALL) -> Report:
    """roles: those of docs/operate/doctor.md, which the page does not grant."""
    settings = settings_of(walk)
    user = let_it_ask(walk.cloud, roles)
    bucket = f"https://storage.googleapis.com/storage/v1/b/{settings['NIGHTSHIFT_BUCKET']}"
    well = google().replies
    replies = {key.replace("https://storage.googleapis.com/storage/v1/b/runs", bucket): reply for key, reply in well.items()}
    replies[f"GET {bucket}"] = (200, {"location": "EUROPE-WEST4"})
    replies[f"GET {bucket}/iam"] = (200, {"bindings": []})
    connections = FakeConnections(account=StateGoogle(replies, email=AIRFLOW, state=walk.cloud.state))
    connections.bigquery.where = "europe-west4"
    [cluster] = walk.cloud.state.of(types.CLUSTER)
    connections.api = StateApi(walk.cloud.state, user, cluster)
    memory = MemoryStore()
    with mock.patch("nightshift.store.open_store", return_value=memory):
        return diagnose(settings, lambda _: connections, job_file=file)


def images(report: Report) -> Report:
    """Without what asks a registry: the stand-in's images are not behind HTTP."""
    return Report(tuple(each for each in report.findings if "image" not in each.check))
