"""What a nightshift run needs in a cluster on this machine: `k8s/overlays/local`, the driver's image, and vLLM.

Here vLLM has no image: a pod runs this machine's server environment, mounted read-only, on the image with Debian's Python.
The standard "restricted" forbids host folders in a pod, but not volume claims, and a volume may be a host folder.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import yaml

from local import hub, vllm
from local.cluster import images
from local.cluster.cluster import Cluster, ClusterError
from local.environments import ROOT, environment_dir
from local.stack.kubernetes import Kubernetes

OVERLAY: Final = ROOT / "k8s" / "overlays" / "local"
NAMESPACE: Final = "nightshift"
ACCOUNT: Final = "nightshift-airflow"
TOKEN_HOURS: Final = 24
QUOTA_S: Final = 120.0
SERVER_HOME: Final = "/opt/server"
HUB_HOME: Final = "/opt/hub"


def deploy(cluster: Cluster, folder: Path, say: Callable[[str], None]) -> Kubernetes:
    """Prepares `cluster`, which must be up, for runs; repeatable. folder: gets the files for its clients.

    Raises FileNotFoundError if the server environment is missing, StartError for what the cluster refuses, ClusterError.
    """
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-k", OVERLAY)
    volumes = _volumes()
    cluster.kubectl("apply", "--server-side", "-f", "-", text=yaml.safe_dump_all(_claims(volumes)))
    for image in (images.python(say), images.driver(say)):
        cluster.load(image)
    _await_quota(cluster)
    say(f"{NAMESPACE} is deployed on {', '.join(cluster.real_nodes())}")
    connection = {"conn_type": "kubernetes", "extra": {"kube_config_path": str(_airflow_kubeconfig(cluster, folder))}}
    return Kubernetes(
        gateway=cluster.gateway,
        environment={
            "NIGHTSHIFT_NAMESPACE": NAMESPACE,
            "NIGHTSHIFT_CPU_SERVER_IMAGE": images.PYTHON,
            "NIGHTSHIFT_IMAGE_PULL_POLICY": "Never",
            "AIRFLOW_CONN_KUBERNETES_DEFAULT": json.dumps(connection),
        },
        server={
            "env": [{"name": name, "value": value} for name, value in _server_environment().items()],
            "volumeMounts": [{"name": name, "mountPath": to, "readOnly": True} for name, (_, to) in volumes.items()],
        },
        volumes=[{"name": name, "persistentVolumeClaim": {"claimName": name, "readOnly": True}} for name in volumes],
    )


def _volumes() -> dict[str, tuple[Path, str]]:
    """Name -> (folder on this machine, its path in a pod)."""
    # The environment finds its interpreter by the path that it was made with.
    interpreter = sys.base_prefix
    found = {"server": (environment_dir("server"), SERVER_HOME), "models": (hub.ensure(), HUB_HOME)}
    # The image's own is from the same Debian; a folder mounted over its /usr would hide the rest.
    return found if interpreter == "/usr" else {**found, "interpreter": (Path(interpreter), interpreter)}


def _server_environment() -> dict[str, str]:
    """vLLM's variables on this machine, adapted to a pod that may write only to /tmp."""
    there = {"HF_HUB_CACHE": HUB_HOME, "VLLM_CACHE_ROOT": "/tmp/vllm", "HOME": "/tmp", "USER": "vllm"}
    return {**vllm.environment(), **there, "PATH": f"{SERVER_HOME}/bin:/usr/bin:/bin"}


def _claims(volumes: dict[str, tuple[Path, str]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name, (folder, _) in volumes.items():
        common = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
        volume = f"{NAMESPACE}-{name}"
        found.append(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": volume},
                "spec": {
                    **common,
                    # Required, but nothing measures it.
                    "capacity": {"storage": "1Gi"},
                    "hostPath": {"path": str(folder.resolve()), "type": "Directory"},
                    "claimRef": {"namespace": NAMESPACE, "name": name},
                },
            }
        )
        found.append(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": name, "namespace": NAMESPACE},
                "spec": {**common, "volumeName": volume, "resources": {"requests": {"storage": "1Gi"}}},
            }
        )
    return found


def _await_quota(cluster: Cluster) -> None:
    """Waits: under a quota whose use has not been counted yet, nothing is admitted. Raises ClusterError."""
    end = time.monotonic() + QUOTA_S
    while True:
        text = cluster.kubectl("get", "resourcequotas", "--namespace", NAMESPACE, "-o", "json")
        if all(quota["spec"]["hard"].keys() == quota["status"].get("used", {}).keys() for quota in json.loads(text)["items"]):
            return
        if time.monotonic() > end:
            raise ClusterError(f"the quota of the namespace {NAMESPACE} is not counted after {QUOTA_S:.0f} s")
        time.sleep(0.5)


def _airflow_kubeconfig(cluster: Cluster, folder: Path) -> Path:
    """For the account that has only the rights of k8s/base/airflow.yaml."""
    token = cluster.kubectl("create", "token", ACCOUNT, "--namespace", NAMESPACE, f"--duration={TOKEN_HOURS}h").strip()
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"] = [{"name": ACCOUNT, "user": {"token": token}}]
    config["contexts"][0]["context"]["user"] = ACCOUNT
    file = folder / "airflow-kubeconfig"
    file.touch(mode=0o600)
    file.write_text(yaml.safe_dump(config))
    return file
