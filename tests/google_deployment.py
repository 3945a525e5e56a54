"""A deployment on a pretended Google Cloud in which all is well: Airflow's project, the cluster's, a stream behind a gateway.

The cluster's objects are this repository's own files and what `nightshift render` makes. A test takes something away, and asks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from local.google_cloud import kubernetes, rest
from local.google_cloud import state as types
from local.google_cloud.access import workload
from local.google_cloud.controllers import cloud_of
from local.google_cloud.kubernetes_api import KubernetesApi
from local.google_cloud.manifests import ADAPTER, CLUSTER_WIDE, JOBSET, KUEUE, release
from local.google_cloud.state import Fields, State, full_name, kubernetes_type
from nightshift.hooks.services import Reply
from nightshift.jobset.kubernetes.api import JobSetApi
from nightshift.jobset.kubernetes.rest import failure
from nightshift.settings import Settings
from nightshift.spec import load_stream
from nightshift.stream.manifests.render import render
from nightshift.stream.manifests.render_request import StreamRequest, Variant

ROOT: Final = Path(__file__).parents[1]
DATA: Final = "acme"
CLUSTERS: Final = "acme-gpu"
NUMBERS: Final = {DATA: "100000000001", CLUSTERS: "100000000002"}
AIRFLOW: Final = f"nightshift-airflow@{DATA}.iam.gserviceaccount.com"
AIRFLOW_ID: Final = "110000000000000000001"
REGION: Final = "europe-west4"
CLUSTER: Final = full_name("container", "projects", CLUSTERS, "locations", REGION, "clusters", "nightshift")
RUNTIME: Final = f"gke:{CLUSTER.removeprefix('//container.googleapis.com/')}"
DATABASE: Final = full_name("alloydb", "projects", DATA, "locations", REGION, "clusters", "vectors")
NETWORK: Final = f"projects/{CLUSTERS}/global/networks/default"
METRICS_ADAPTER: Final = workload(CLUSTERS, NUMBERS[CLUSTERS], "custom-metrics", "custom-metrics-stackdriver-adapter")
TEXTS: Final = f"texts@{DATA}.iam.gserviceaccount.com"
"""The Google account as which the stream's subscribers act, because it logs in to the database."""
TEXTS_NAME: Final = full_name("iam", "projects", DATA, "serviceAccounts", TEXTS)
SINK_URL: Final = f"postgresql://texts%40{DATA}.iam@10.9.0.2/catalog"
AGENT: Final = f"serviceAccount:service-{NUMBERS[DATA]}@gcp-sa-pubsub.iam.gserviceaccount.com"
SUBSCRIBER: Final = f"serviceAccount:{TEXTS}"
SUBSCRIPTION: Final = full_name("pubsub", "projects", DATA, "subscriptions", "texts")
SUBSCRIPTION_OF_DEAD: Final = full_name("pubsub", "projects", DATA, "subscriptions", "texts-dead")
TOPIC: Final = full_name("pubsub", "projects", DATA, "topics", "texts")
DEAD: Final = full_name("pubsub", "projects", DATA, "topics", "texts-dead")
ENVIRONMENT: Final = {
    "NIGHTSHIFT_BUCKET": "runs",
    "NIGHTSHIFT_PROJECT": DATA,
    "NIGHTSHIFT_LOCATION": "EU",
    "NIGHTSHIFT_RUNTIME": RUNTIME,
    "NIGHTSHIFT_PRIORITY_CLASS": "nightshift-batch",
    "HF_HUB_OFFLINE": "1",
}
JOB: Final[dict[str, Any]] = {
    "job": "notes",
    "owner": "team",
    "start_date": "2026-11-01",
    "source": {"query": "SELECT name, text FROM `d.notes` WHERE day = @partition", "key": ["name"]},
    "task": "embedding",
    "request": {"input": "{{ text }}"},
    "model": {"name": "m", "uri": "hf://org/m", "revision": "main"},
    "engine": {"max_num_seqs": 8},
    "destination": {"table": "d.vectors", "column": "vector"},
    "deadline": "2h",
    "compute": {"profile": "gpu-l4-spot", "fallback": [], "workers": 4},
    "queue": "nightly",
}
STREAM: Final[dict[str, Any]] = {
    "job": "texts",
    "owner": "team",
    "source": {"subscription": "texts", "key": ["name"]},
    "task": "embedding",
    "request": {"input": "{{ text }}"},
    "model": {"name": "m", "uri": "hf://org/m", "revision": "main"},
    "engine": {"max_num_seqs": 8},
    "latency": {"target": "60s"},
    "sink": {"table": "vectors", "column": "vector"},
    "dead_letters": {"topic": "texts-dead"},
    "compute": {"profile": "gpu-l4-spot"},
    "scaling": {"messages_per_second": 10, "servers": {"max": 4}},
}
FILES: Final = (
    "base/airflow.yaml",
    "components/priority/priority-class.yaml",
    "components/queues/queue.yaml",
    "components/queues/airflow.yaml",
    "components/doctor/reader.yaml",
    "components/compute-classes-gpu/gpu-l4.yaml",
    "overlays/gke-gpu-spot/cluster-queue.yaml",
)
READS: Final = {
    CLUSTERS: ("container.clusterViewer", "compute.viewer", "cloudquotas.viewer"),
    DATA: ("pubsub.viewer", "iam.securityReviewer", "alloydb.viewer"),
}
"""What the doctor needs to ask everything, by project."""
READS_ALL: Final = tuple(role for roles in READS.values() for role in roles)
LOGIN: Final = ("alloydb.databaseUser", "serviceusage.serviceUsageConsumer")
DAY_S: Final = 86_400
QUOTAS: Final = {
    "PREEMPTIBLE-NVIDIA-L4-GPUS-per-project-region": 16,
    "NVIDIA-L4-GPUS-per-project-region": 16,
    "IN-USE-ADDRESSES-per-project-region": 32,
    "CPUS-per-project-region": 256,
    "SSD-TOTAL-GB-per-project-region": 4096,
    "GPUS-ALL-REGIONS-per-project": 16,
}


def object_name(found: Mapping[str, Any], namespace: str = "nightshift") -> str:
    """The FULL_NAME of an object of the cluster. namespace: of one that has none, if its kind has."""
    kind, metadata = found["kind"], found["metadata"]
    scope = "" if kind in CLUSTER_WIDE else metadata.get("namespace", namespace)
    return kubernetes.path(CLUSTER, kubernetes.plural(kind), metadata["name"], scope)


def apply(state: State, found: Fields) -> None:
    found.setdefault("metadata", {})
    state.put(kubernetes_type(found["apiVersion"], found["kind"]), object_name(found), found)


@dataclass
class Deployment:
    """state: what there is. folder: for the files of the job and the stream. job, stream: what they say."""

    folder: Path
    state: State = field(default_factory=State)
    environment: dict[str, str] = field(default_factory=lambda: dict(ENVIRONMENT))
    job: dict[str, Any] = field(default_factory=lambda: json.loads(json.dumps(JOB)))
    stream: dict[str, Any] = field(default_factory=lambda: json.loads(json.dumps(STREAM)))

    @property
    def job_file(self) -> Path:
        return self._written("notes.yaml", self.job)

    @property
    def stream_file(self) -> Path:
        return self._written("texts.yaml", self.stream)

    def _written(self, name: str, document: Mapping[str, Any]) -> Path:
        file = self.folder / name
        file.write_text(yaml.safe_dump(dict(document)))
        return file

    def of_cluster(self, kind: str, name: str) -> Fields:
        """An object of the cluster. kind: GROUP/KIND."""
        return self.state.of(kind)[next(each for each in self.state.of(kind) if each.endswith(f"/{name}"))]

    def remove(self, kind: str, name: str) -> None:
        """Of the cluster, every object of a kind whose name ends so."""
        for each in [each for each in self.state.of(kind) if each.endswith(f"/{name}")]:
            self.state.remove(kind, each)

    @property
    def cluster(self) -> Fields:
        return self.state.of(types.CLUSTER)[CLUSTER]

    def policy(self, kind: str, name: str) -> list[dict[str, Any]]:
        """The bindings of a resource."""
        found: list[dict[str, Any]] = self.state.of(kind)[name]["iamPolicy"]["bindings"]
        return found


class StateApi(JobSetApi):
    """The product's own client of the cluster, with the network cut out."""

    def __init__(self, state: State, user: str = AIRFLOW_ID, cluster: str = CLUSTER) -> None:
        self.api = KubernetesApi(state, cluster, user)
        self.patience_s = 0.0

    def _ask_once(self, method: str, path: str, what: str, query: Mapping[str, Any], body: Any, content: str) -> bytes:
        status, document = self.api.answer(path, body, str(query.get("labelSelector", "")))
        text = json.dumps(document)
        if status >= 400:
            raise failure(status, text, what)
        return text.encode()


def reply_of(state: State, method: str, url: str, caller: str = AIRFLOW) -> Reply:
    status, document = rest.answer(state, caller, method, url)
    return Reply(status, json.dumps(document).encode())


def healthy(folder: Path) -> Deployment:
    made = Deployment(folder)
    state = made.state
    state.seconds = DAY_S
    for project, number in NUMBERS.items():
        roles = [{"role": f"roles/{role}", "members": [f"serviceAccount:{AIRFLOW}"]} for role in READS[project]]
        if project == DATA:
            roles += [{"role": f"roles/{role}", "members": [SUBSCRIBER]} for role in LOGIN]
        roles.append({"role": "roles/monitoring.viewer", "members": [METRICS_ADAPTER]})
        fields = {"projectId": project, "projectNumber": number, "iamPolicy": {"bindings": roles}}
        state.put(types.PROJECT, full_name("cloudresourcemanager", "projects", project), fields)
        for service in rest.ROUTES:
            state.put(types.SERVICE, full_name("serviceusage", "projects", project, "services", service), {"state": "ENABLED"})
    _cluster(state)
    _pubsub(state)
    _database(state)
    _objects(made)
    return made


def _cluster(state: State) -> None:
    state.put(
        types.CLUSTER,
        CLUSTER,
        {
            "addonsConfig": {
                "httpLoadBalancing": {},
                "horizontalPodAutoscaling": {},
                "gcePersistentDiskCsiDriverConfig": {"enabled": True},
                "gcsFuseCsiDriverConfig": {"enabled": True},
            },
            "networkConfig": {
                "network": NETWORK,
                "datapathProvider": "ADVANCED_DATAPATH",
                "gatewayApiConfig": {"channel": "CHANNEL_STANDARD"},
            },
            "workloadIdentityConfig": {"workloadPool": f"{CLUSTERS}.svc.id.goog"},
            "controlPlaneEndpointsConfig": {"dnsEndpointConfig": {"allowExternalTraffic": True}},
            "monitoringConfig": {"managedPrometheusConfig": {"enabled": True}},
        },
    )
    state.put(
        types.NODE_POOL,
        f"{CLUSTER}/nodePools/default-pool",
        {"config": {"machineType": "e2-standard-4"}, "initialNodeCount": 1},
    )
    gpu = {"acceleratorType": "nvidia-l4", "acceleratorCount": "1"}
    spot = {"machineType": "g2-standard-8", "spot": True, "diskSizeGb": 170, "accelerators": [gpu]}
    scaling = {"enabled": True, "totalMaxNodeCount": 16}
    state.put(types.NODE_POOL, f"{CLUSTER}/nodePools/l4-spot", {"config": spot, "autoscaling": scaling, "initialNodeCount": 0})
    for quota, granted in QUOTAS.items():
        place = {"region": REGION} if quota.endswith("-region") else {}
        name = full_name("cloudquotas", "projects", CLUSTERS, "locations", "global", "quotaPreferences", quota)
        state.put(types.QUOTA, name, {"quotaId": quota, "dimensions": place, "quotaConfig": {"grantedValue": str(granted)}})


def _pubsub(state: State) -> None:
    def bound(*bindings: tuple[str, str]) -> Fields:
        return {"iamPolicy": {"bindings": [{"role": f"roles/pubsub.{role}", "members": [who]} for role, who in bindings]}}

    state.put(types.TOPIC, TOPIC, {})
    state.put(types.TOPIC, DEAD, bound(("publisher", AGENT), ("publisher", SUBSCRIBER)))
    policy = {"deadLetterTopic": DEAD.removeprefix("//pubsub.googleapis.com/"), "maxDeliveryAttempts": 50}
    own = {"topic": TOPIC.removeprefix("//pubsub.googleapis.com/"), "deadLetterPolicy": policy}
    state.put(types.SUBSCRIPTION, SUBSCRIPTION, {**own, **bound(("subscriber", AGENT), ("subscriber", SUBSCRIBER))})
    state.put(types.SUBSCRIPTION, SUBSCRIPTION_OF_DEAD, {"topic": DEAD.removeprefix("//pubsub.googleapis.com/")})


def _database(state: State) -> None:
    state.put(types.ALLOYDB, DATABASE, {"networkConfig": {"network": NETWORK}})
    flags = {"alloydb.iam_authentication": "on"}
    fields = {"instanceType": "PRIMARY", "ipAddress": "10.9.0.2", "databaseFlags": flags}
    state.put(types.ALLOYDB_INSTANCE, f"{DATABASE}/instances/primary", fields)
    state.put(types.ALLOYDB_USER, f"{DATABASE}/users/texts@{DATA}.iam", {"userType": "ALLOYDB_IAM_USER"})
    member = f"serviceAccount:{CLUSTERS}.svc.id.goog[nightshift/texts-subscriber]"
    policy = {"bindings": [{"role": "roles/iam.workloadIdentityUser", "members": [member]}]}
    state.put(types.SERVICE_ACCOUNT, TEXTS_NAME, {"email": TEXTS, "iamPolicy": policy})


def _objects(made: Deployment) -> None:
    cloud = cloud_of(made.state)
    for url in (JOBSET, KUEUE, ADAPTER):
        found = release(f"{url}v1")
        assert found
        documents, kinds = found
        for document in documents:
            apply(made.state, document)
        kubernetes.bring(cloud, CLUSTER, kinds)
    for file in FILES:
        for document in yaml.safe_load_all((ROOT / "k8s" / file).read_text()):
            for subjects in filter(None, (document.get("subjects"),)):
                subjects += [{"kind": "User", "name": name} for name in (AIRFLOW, AIRFLOW_ID)]
            if document["kind"].endswith("Binding"):
                document["metadata"].setdefault("namespace", "nightshift")
            apply(made.state, document)
    gateway = {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway"}
    apply(
        made.state, {**gateway, "metadata": {"name": "inference", "namespace": "gateways"}, "spec": {"gatewayClassName": "x"}}
    )
    deploy(made)


def deploy(made: Deployment, sink_url: str = SINK_URL) -> None:
    """The stream, as it is now, behind the gateway: what `nightshift render` prints, applied."""
    file, settings = made.stream_file, Settings.from_environment(made.environment)
    variant = Variant(engine_url="http://models.internal/texts", gateway="gateways/inference")
    for document in render(StreamRequest(load_stream(file), file.read_text(), settings, variant, sink_url)):
        apply(made.state, document)
