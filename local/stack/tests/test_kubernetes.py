"""A stack whose JobSets run on a cluster: where its storage is, and what its clients and pods get."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from local.stack import environment
from local.stack.folder import Folder
from local.stack.kubernetes import Kubernetes
from nightshift.jobset.manifest.render import render
from nightshift.settings import Settings
from tests.builders import RUN, a_plan, a_spec

pytestmark = pytest.mark.unit

CLUSTER = Kubernetes(
    gateway="10.1.0.1",
    environment={"NIGHTSHIFT_NAMESPACE": "nightshift"},
    server={
        "env": [{"name": "HF_HUB_OFFLINE", "value": "1"}],
        "volumeMounts": [{"name": "server", "mountPath": "/opt/server", "readOnly": True}],
    },
    volumes=[{"name": "server", "persistentVolumeClaim": {"claimName": "server", "readOnly": True}}],
)
PORTS = {"storage": 9023, "bigquery": 9050, "bigquery_grpc": 9060}


def test_storage_is_where_pods_reach_it_and_nobody_asks_a_proxy_for_it(tmp_path: Path) -> None:
    clients = environment.clients(Folder.at(tmp_path), PORTS, CLUSTER)

    assert clients["STORAGE_EMULATOR_HOST"] == "http://10.1.0.1:9023"
    assert clients["BIGQUERY_EMULATOR_HOST"] == "http://127.0.0.1:9050"
    assert clients["NIGHTSHIFT_RUNTIME"] == "kubernetes"
    assert clients["NIGHTSHIFT_NAMESPACE"] == "nightshift"
    assert "10.1.0.1" in clients["NO_PROXY"].split(",")


def test_without_a_cluster_everything_is_on_this_machine(tmp_path: Path) -> None:
    clients = environment.clients(Folder.at(tmp_path), PORTS)

    assert clients["STORAGE_EMULATOR_HOST"] == "http://127.0.0.1:9023"
    assert clients["NIGHTSHIFT_RUNTIME"] == f"local:{tmp_path}/runtime"
    assert "NIGHTSHIFT_POD_PATCH" not in clients


def test_its_pods_find_the_storage_and_the_engine(tmp_path: Path) -> None:
    patch = tmp_path / "pod-patch.yaml"
    patch.write_text(json.dumps(CLUSTER.pod_patch("http://10.1.0.1:9023")))
    settings = replace(Settings("bucket", "project"), pod_patch=str(patch))

    manifest = render(a_spec(), RUN, a_plan(8), settings, name="night")

    pod = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    [server], [driver] = pod["initContainers"], pod["containers"]
    assert variables(driver)["STORAGE_EMULATOR_HOST"] == "http://10.1.0.1:9023"
    assert variables(server)["HF_HUB_OFFLINE"] == "1"
    assert "/opt/server" in [mount["mountPath"] for mount in server["volumeMounts"]]
    assert "/dev/shm" in [mount["mountPath"] for mount in server["volumeMounts"]]
    assert "server" in [volume["name"] for volume in pod["volumes"]]


def test_what_is_known_of_a_cluster_survives_the_way_to_the_supervisor(tmp_path: Path) -> None:
    CLUSTER.write(tmp_path / "kubernetes.json")

    assert Kubernetes.read(tmp_path / "kubernetes.json") == CLUSTER


def variables(container: dict[str, Any]) -> dict[str, Any]:
    return {entry["name"]: entry.get("value") for entry in container["env"]}
