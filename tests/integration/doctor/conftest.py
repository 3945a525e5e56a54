"""A deployment over the session's emulators in which all is well: a bucket, a dataset, a source, a cluster's API and a hub."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from google.cloud import bigquery
from google.cloud.storage import Client as StorageClient  # type: ignore[import-untyped]

from nightshift import DISTRIBUTION, __version__
from nightshift.doctor.checks import diagnose
from nightshift.doctor.context import Triggerer
from nightshift.doctor.findings import Report
from nightshift.hooks.deployment import Deployment
from nightshift.hooks.services import Components, Connections
from nightshift.settings import Settings
from tests.canned_cluster import Cluster
from tests.integration.doctor.front import Front, Hub, cluster_api, serving
from tests.integration.emulators import PROJECT, WORKER, BigQueryEmulator, StorageEmulator, below, grant

JOB = {
    "job": "notes",
    "owner": "team",
    "start_date": "2026-11-01",
    "task": "embedding",
    "request": {"input": "{{ text }}"},
    "model": {"name": "m", "uri": "hf://org/m", "revision": "main"},
    "engine": {"max_num_seqs": 8},
    "deadline": "2h",
    "compute": {"profile": "cpu", "workers": 2},
    "queue": "nightly",
}


class Installed(Deployment):
    """Airflow's real connections, in an Airflow that has the package: this environment runs nightshift from its source."""

    def components(self) -> Components:
        seen = super().components()
        return Components(seen.airflow, {"nightshift": "an entry point"}, {}, {DISTRIBUTION: __version__})


@dataclass
class Place:
    """name: of bucket and dataset. A test alters the parts, then calls `examine`."""

    name: str
    folder: Path
    monkeypatch: pytest.MonkeyPatch
    bucket: StorageClient
    dataset: bigquery.Client
    storage: Front
    bigquery: Front
    cluster: Cluster
    hub: Hub
    urls: dict[str, str]
    job: dict[str, object] = field(default_factory=dict)

    def set(self, **variables: str) -> None:
        for name, value in variables.items():
            self.monkeypatch.setenv(f"NIGHTSHIFT_{name.upper()}", value)

    @property
    def job_file(self) -> Path:
        file = self.folder / "notes.yaml"
        file.write_text(yaml.safe_dump(self.job))
        return file

    def examine(self, connect: Callable[[Settings], Connections] = Installed, triggerer: Triggerer | None = None) -> Report:
        return diagnose(self.environment, connect, job_file=self.job_file, triggerer=triggerer)

    @property
    def environment(self) -> Mapping[str, str]:
        return dict(os.environ)

    def objects(self) -> list[str]:
        return [blob.name for blob in self.bucket.list_blobs(self.name)]

    def tables(self) -> list[str]:
        return sorted(table.table_id for table in self.dataset.list_tables(f"{PROJECT}.{self.name}"))


@pytest.fixture
def deployment(
    storage_emulator: StorageEmulator,
    bigquery_emulator: BigQueryEmulator,
    storage_client: StorageClient,
    bigquery_client: bigquery.Client,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Iterator[Place]:
    name = f"doctor{uuid.uuid4().hex[:10]}"
    grant(
        storage_client.create_bucket(name),
        ("storage.objectViewer", WORKER, None),
        ("storage.objectCreator", WORKER, below(name, "_workers/")),
    )
    bigquery_client.create_dataset(name)
    bigquery_client.query(f"CREATE TABLE `{name}.notes` (name STRING, text STRING, day DATE)").result()
    cluster, hub = Cluster(), Hub()
    storage, tables = Front(storage_emulator.url), Front(bigquery_emulator.url)
    with ExitStack() as stack:
        urls = {
            "storage": stack.enter_context(serving(lambda *request: storage.respond(*request))),
            "bigquery": stack.enter_context(serving(lambda *request: tables.respond(*request))),
            "cluster": stack.enter_context(serving(cluster_api(cluster))),
            "hub": stack.enter_context(serving(lambda *request: hub.respond(*request))),
        }
        for variable, value in variables(name, urls).items():
            monkeypatch.setenv(variable, value)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        job: dict[str, object] = {
            **JOB,
            "source": {"query": f"SELECT name, text FROM `{name}.notes` WHERE day = @partition", "key": ["name"]},
            "destination": {"table": f"{name}.vectors", "column": "vector"},
        }
        yield Place(name, tmp_path, monkeypatch, storage_client, bigquery_client, storage, tables, cluster, hub, urls, job)


def variables(name: str, urls: Mapping[str, str]) -> dict[str, str]:
    """Of a component of Airflow in this deployment."""
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "here"}}],
        "clusters": [{"name": "here", "cluster": {"server": urls["cluster"]}}],
        "users": [{"name": "here", "user": {"token": "t"}}],
    }
    google = {"conn_type": "google_cloud_platform", "extra": {"is_anonymous": True, "project": PROJECT}}
    kubernetes = {"conn_type": "kubernetes", "extra": {"kube_config": json.dumps(kubeconfig)}}
    return {
        "NIGHTSHIFT_BUCKET": name,
        "NIGHTSHIFT_PROJECT": PROJECT,
        "NIGHTSHIFT_LOCATION": "US",
        "NIGHTSHIFT_DATASET": name,
        "STORAGE_EMULATOR_HOST": urls["storage"],
        "BIGQUERY_EMULATOR_HOST": urls["bigquery"],
        "HF_ENDPOINT": urls["hub"],
        "AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT": json.dumps(google),
        "AIRFLOW_CONN_KUBERNETES_DEFAULT": json.dumps(kubernetes),
    }
