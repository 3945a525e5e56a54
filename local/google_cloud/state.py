"""What there is in a pretended Google Cloud: one JSON file.

    {"seconds": 1260, "resources": {TYPE: {FULL_NAME: FIELDS}}}

TYPE and FULL_NAME are those of Cloud Asset Inventory ("Supported asset types"), with a project's id where Google writes its
number; what it does not list is named in the same way. FIELDS are spelled as in the resource's REST API (camelCase). An IAM
policy stands under ``iamPolicy`` of its resource: ``{"bindings": [{"role", "members", "condition"}]}``. ``seconds`` is
pretended time: what Google takes minutes for passes there.

Below each TYPE stand its FULL_NAME and the FIELDS that the stand-ins read; whatever else a resource has is kept.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

PROJECT: Final = "cloudresourcemanager.googleapis.com/Project"
"""//cloudresourcemanager.googleapis.com/projects/P: projectId, projectNumber."""
SERVICE: Final = "serviceusage.googleapis.com/Service"
"""//serviceusage.googleapis.com/projects/P/services/S: state (ENABLED)."""
ORG_POLICY: Final = "orgpolicy.googleapis.com/Policy"
"""//orgpolicy.googleapis.com/projects/P/policies/CONSTRAINT: spec.rules[].enforce."""
SERVICE_ACCOUNT: Final = "iam.googleapis.com/ServiceAccount"
"""//iam.googleapis.com/projects/P/serviceAccounts/EMAIL: email, uniqueId."""
BUCKET: Final = "storage.googleapis.com/Bucket"
"""//storage.googleapis.com/B: location, iamConfiguration.uniformBucketLevelAccess.enabled."""
DATASET: Final = "bigquery.googleapis.com/Dataset"
"""//bigquery.googleapis.com/projects/P/datasets/D: location."""
REPOSITORY: Final = "artifactregistry.googleapis.com/Repository"
"""//artifactregistry.googleapis.com/projects/P/locations/L/repositories/R: format, mode."""
IMAGE: Final = "artifactregistry.googleapis.com/DockerImage"
"""REPOSITORY/dockerImages/NAME:TAG: uri, architecture."""
PACKAGE: Final = "artifactregistry.googleapis.com/Version"
"""REPOSITORY/packages/NAME/versions/VERSION."""
NETWORK: Final = "compute.googleapis.com/Network"
"""//compute.googleapis.com/projects/P/global/networks/N."""
ADDRESS: Final = "compute.googleapis.com/GlobalAddress"
"""//compute.googleapis.com/projects/P/global/addresses/A: purpose, network."""
PEERING: Final = "servicenetworking.googleapis.com/Connection"
"""//servicenetworking.googleapis.com/projects/P/global/networks/N/connections/servicenetworking: reservedPeeringRanges."""
QUOTA: Final = "cloudquotas.googleapis.com/QuotaPreference"
"""//cloudquotas.googleapis.com/projects/P/locations/global/quotaPreferences/ID: quotaId, dimensions, quotaConfig."""
CLUSTER: Final = "container.googleapis.com/Cluster"
"""//container.googleapis.com/projects/P/locations/L/clusters/C: addonsConfig, autopilot.enabled, networkConfig,
workloadIdentityConfig.workloadPool, controlPlaneEndpointsConfig, monitoringConfig."""
NODE_POOL: Final = "container.googleapis.com/NodePool"
"""CLUSTER/nodePools/N: config (machineType, accelerators, labels, spot, flexStart, serviceAccount), autoscaling,
initialNodeCount, locations, placementPolicy."""
ENVIRONMENT: Final = "composer.googleapis.com/Environment"
"""//composer.googleapis.com/projects/P/locations/L/environments/E: config.dagGcsPrefix, config.nodeConfig.serviceAccount,
config.softwareConfig (envVariables, pypiPackages)."""
TOPIC: Final = "pubsub.googleapis.com/Topic"
"""//pubsub.googleapis.com/projects/P/topics/T."""
SUBSCRIPTION: Final = "pubsub.googleapis.com/Subscription"
"""//pubsub.googleapis.com/projects/P/subscriptions/S: topic, deadLetterPolicy, retryPolicy, messageRetentionDuration."""
ALLOYDB: Final = "alloydb.googleapis.com/Cluster"
"""//alloydb.googleapis.com/projects/P/locations/L/clusters/C: networkConfig.network."""
ALLOYDB_INSTANCE: Final = "alloydb.googleapis.com/Instance"
"""ALLOYDB/instances/I: instanceType, databaseFlags, ipAddress."""
ALLOYDB_USER: Final = "alloydb.googleapis.com/User"
"""ALLOYDB/users/U: userType, databaseRoles."""

Fields = dict[str, Any]
"""A resource as its REST API shows it."""


def kubernetes_type(api_version: str, kind: str) -> str:
    """The TYPE of an object of a cluster: ``k8s.io/Pod`` for what has no group, else ``GROUP/KIND``.

    Its FULL_NAME: CLUSTER/k8s/PLURAL/NAME, or CLUSTER/k8s/namespaces/NAMESPACE/PLURAL/NAME. FIELDS: the object itself.
    """
    group, slash, _ = api_version.partition("/")
    return f"{group if slash else 'k8s.io'}/{kind}"


def full_name(service: str, *parts: str) -> str:
    """``full_name("pubsub", "projects", "p", "topics", "t")`` is ``//pubsub.googleapis.com/projects/p/topics/t``."""
    return "/".join([f"//{service}.googleapis.com", *parts])


@dataclass
class State:
    """seconds: pretended time since the project was made. resources: TYPE -> FULL_NAME -> FIELDS."""

    seconds: int = 0
    resources: dict[str, dict[str, Fields]] = field(default_factory=dict)

    def of(self, kind: str) -> dict[str, Fields]:
        """All resources of a TYPE by FULL_NAME, in the order in which they were made; changing it changes the state."""
        return self.resources.setdefault(kind, {})

    def get(self, kind: str, name: str) -> Fields | None:
        return self.resources.get(kind, {}).get(name)

    def put(self, kind: str, name: str, fields: Fields) -> None:
        """Makes or replaces a resource."""
        self.of(kind)[name] = fields

    def remove(self, kind: str, name: str) -> None:
        """Removes a resource and all that lie in it (whose FULL_NAME begins with its own). Raises KeyError if there is none."""
        del self.of(kind)[name]
        for others in self.resources.values():
            for child in [each for each in others if each.startswith(f"{name}/")]:
                del others[child]


def load(path: Path) -> State:
    """The state in a file; an empty one if there is no file. Raises ValueError if it is not a state."""
    if not path.exists():
        return State()
    data = json.loads(path.read_text())
    if not isinstance(data, dict) or not isinstance(data.get("resources"), dict):
        raise ValueError(f"{path} is not a state of {__name__}: it has no object `resources`")
    return State(data.get("seconds", 0), data["resources"])


def save(state: State, path: Path) -> None:
    """Writes a state with sorted TYPEs, so that two files can be compared."""
    data = {"seconds": state.seconds, "resources": {kind: each for kind, each in sorted(state.resources.items()) if each}}
    path.write_text(json.dumps(data, indent=1) + "\n")


@contextmanager
def opened(path: Path) -> Iterator[State]:
    """The state in a file, held by one process at a time, and saved at the end unless that raises."""
    with Path(f"{path}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = load(path)
        yield state
        save(state, path)
