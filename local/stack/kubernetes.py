"""The cluster that runs a stack's JobSets instead of the local runtime."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

STORAGE_VARIABLE = "STORAGE_EMULATOR_HOST"


@dataclass(frozen=True)
class Kubernetes:
    """A cluster as a stack uses it; `local.cluster.deployment` makes one of these.

    gateway: this machine's address as the pods see it. The storage emulator listens there and nowhere else.
    environment: variables for everything that talks to the cluster.
    server: what the pods' container "server" gets in addition to what is rendered. volumes: the same for the pod.
    """

    gateway: str
    environment: dict[str, str]
    server: dict[str, Any]
    volumes: list[dict[str, Any]]

    def write(self, file: Path) -> None:
        file.write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def read(cls, file: Path) -> Kubernetes:
        return cls(**json.loads(file.read_text()))

    def pod_patch(self, storage: str) -> dict[str, Any]:
        """The deployment's override file (docs/operate/compute.md). storage: URL of the emulator."""
        driver = {"name": "driver", "env": [{"name": STORAGE_VARIABLE, "value": storage}]}
        spec = {"initContainers": [{"name": "server", **self.server}], "containers": [driver], "volumes": self.volumes}
        return {"spec": spec}
