"""The driver's image as it is built: what it holds, and that a pod of a restricted namespace runs it."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from local.stack.parts import DRIVER_IMAGE
from nightshift import exits
from tests.cluster.kube import Namespace

pytestmark = [pytest.mark.cluster, pytest.mark.gate]

RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def test_it_is_nobody_and_starts_without_a_shell(driver_tar: Path) -> None:
    config = configuration(driver_tar)

    assert config["User"] == "65532:65532"
    assert config["Cmd"] == ["python3", "-m", "nightshift.driver"]
    assert not config.get("Entrypoint")


@pytest.mark.usefixtures("driver_tar")
def test_it_runs_on_a_read_only_root_and_says_what_it_lacks(namespace: Namespace) -> None:
    namespace.kubectl("label", "namespace", namespace.name, "pod-security.kubernetes.io/enforce=restricted")
    namespace.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "driver"},
            "spec": {
                "restartPolicy": "Never",
                "containers": [
                    {
                        "name": "driver",
                        "image": DRIVER_IMAGE,
                        "imagePullPolicy": "IfNotPresent",
                        "command": ["python3", "-m", "nightshift.driver"],
                        "securityContext": RESTRICTED,
                    }
                ],
            },
        }
    )

    def ended() -> dict[str, Any] | None:
        [pod] = namespace.get("pods")
        [status] = pod["status"].get("containerStatuses", [{"state": {}}])
        end: dict[str, Any] | None = status["state"].get("terminated")
        return end

    assert namespace.wait_until("its end", ended)["exitCode"] == exits.CONFIG
    first, *_ = [json.loads(line) for line in namespace.kubectl("logs", "driver").splitlines()]
    assert first["error"] == "ConfigError: NIGHTSHIFT_RUN_URL is not set"


def configuration(image: Path) -> dict[str, Any]:
    """What a container of the image starts with, from the tar itself."""
    with tarfile.open(image) as tar:
        [entry] = _json(tar, "manifest.json")
        config: dict[str, Any] = _json(tar, entry["Config"])["config"]
    return config


def _json(tar: tarfile.TarFile, name: str) -> Any:
    file = tar.extractfile(name)
    assert file is not None
    return json.load(file)
