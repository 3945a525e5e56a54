"""The metrics that autoscalers ask for, served beside the cluster by `programs/metrics`, for as long as a ``with`` lasts.

It stands in for Google's adapter, which shows Cloud Monitoring's metrics to autoscalers; here the backlog is the Pub/Sub
emulator's, and the rest is read from the pods. While it is registered and does not run, no namespace can be deleted: Kubernetes
waits until it knows all kinds. So it is registered only meanwhile.
"""

from __future__ import annotations

import base64
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import yaml

from local.cluster import build
from local.cluster.cluster import Cluster
from local.cluster.context import HOST
from local.cluster.control_plane import METRICS_HOST
from local.cluster.layout import Layout
from local.cluster.processes import StartError
from local.ports import new_port

VERSIONS: Final = (
    ("custom.metrics.k8s.io", "v1beta2"),
    ("custom.metrics.k8s.io", "v1beta1"),
    ("external.metrics.k8s.io", "v1beta1"),
)
PATIENCE_S: Final = 600.0
_NAME, _NAMESPACE, _ = METRICS_HOST.split(".")


@contextmanager
def served(cluster: Cluster, pubsub_control: str) -> Iterator[None]:
    """pubsub_control: URL of the emulator's control port. Builds the program if it is missing.

    Raises BuildError; StartError if the metrics are not there within a minute.
    """
    program = build.on_demand("metrics", print)
    layout, port = Layout.at(cluster.state), new_port()
    kubeconfigs = [f"--{kind}-kubeconfig={cluster.kubeconfig}" for kind in ("lister", "authentication", "authorization")]
    command = [str(program), f"--bind-address={HOST}", f"--secure-port={port}", *kubeconfigs]
    command += [f"--tls-cert-file={layout.pki}/metrics.crt", f"--tls-private-key-file={layout.pki}/metrics.key"]
    command.append(f"--pubsub-control={pubsub_control}")
    log = layout.path / "metrics.log"
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
    try:
        authority = base64.b64encode((layout.pki / "ca.crt").read_bytes()).decode()
        cluster.kubectl("apply", "--server-side", "-f", "-", text=yaml.safe_dump_all(_documents(port, authority)))
        _await(cluster, process)
        yield
    except StartError as error:
        raise StartError(f"{error}\n{log.read_text()[-2000:]}") from error
    finally:
        names = [f"{version}.{group}" for group, version in VERSIONS]
        cluster.kubectl("delete", "--ignore-not-found", "apiservice", *names)
        cluster.kubectl("delete", "--ignore-not-found", "--namespace", _NAMESPACE, "service", _NAME)
        process.terminate()
        process.wait(20)


def _documents(port: int, authority: str) -> list[dict[str, Any]]:
    """The Service is an alias of this machine, on which API server and metrics run."""
    found: list[dict[str, Any]] = [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": _NAME, "namespace": _NAMESPACE},
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        }
    ]
    for number, (group, version) in enumerate(VERSIONS):
        found.append(
            {
                "apiVersion": "apiregistration.k8s.io/v1",
                "kind": "APIService",
                "metadata": {"name": f"{version}.{group}"},
                "spec": {
                    "group": group,
                    "version": version,
                    "service": {"name": _NAME, "namespace": _NAMESPACE, "port": port},
                    "caBundle": authority,
                    "groupPriorityMinimum": 100,
                    "versionPriority": 200 - number,
                },
            }
        )
    return found


def _await(cluster: Cluster, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + PATIENCE_S
    names = [f"apiservice/{version}.{group}" for group, version in VERSIONS]
    while True:
        try:
            cluster.kubectl("wait", "--for=condition=Available", "--timeout=5s", *names)
            return
        except StartError:
            if process.poll() is not None or time.monotonic() > end:
                raise
