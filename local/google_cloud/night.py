"""A night that Airflow starts: what it finds in the state of the cloud, and where its pods go."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import yaml

from local.google_cloud import access, kubernetes, nodes, registry
from local.google_cloud import state as types
from local.google_cloud.cloud import Cloud, Refused
from local.google_cloud.state import Fields, State, full_name

NIGHT: Final = "composer.googleapis.com/DagRun"
"""//composer.googleapis.com/dagRuns/JOBSET: problem ('' if its pods run), pods, nodes."""
_RUNTIME: Final = re.compile(r"gke:(projects/([^/]+)/locations/[^/]+/clusters/[^/]+)")


def outcomes(state: State) -> dict[str, str]:
    """Of each night that was started: why its pods do not run, or ''."""
    return {name.split("/")[-1]: str(fields["problem"]) for name, fields in state.of(NIGHT).items()}


def start(cloud: Cloud, environment: Fields, table: str, render: Callable[[], str]) -> None:
    """What the tasks of a run do. table: the job's destination.

    What goes wrong is the night's outcome: whoever triggered it sees only a queued run."""
    variables = environment["config"]["softwareConfig"]["envVariables"]
    airflow = environment["config"]["nodeConfig"]["serviceAccount"]
    try:
        match = _RUNTIME.fullmatch(variables.get("NIGHTSHIFT_RUNTIME", ""))
        cluster = full_name("container", *match[1].split("/")) if match else ""
        if match is None or cloud.state.get(types.CLUSTER, cluster) is None:
            raise Refused(f"NIGHTSHIFT_RUNTIME={variables.get('NIGHTSHIFT_RUNTIME')} names no cluster that exists")
        problem = next(_without_rights(cloud, variables, table, f"serviceAccount:{airflow}", match[2]), "")
        if not problem:
            [jobset] = [each for each in yaml.safe_load_all(render()) if each]
            kubernetes.apply(cloud, cluster, [jobset], dry_run=False)
            problem = admitted(cloud, cluster, jobset, variables["NIGHTSHIFT_BUCKET"])
    except Refused as error:
        problem = str(error)
    job = f"night-{len(cloud.state.of(NIGHT)) + 1}"
    cloud.state.put(NIGHT, full_name("composer", "dagRuns", job), {"problem": problem})


def _without_rights(cloud: Cloud, variables: dict[str, str], table: str, airflow: str, cluster_project: str) -> Iterator[str]:
    """What Airflow's account lacks before a JobSet is there."""
    bucket = cloud.state.get(types.BUCKET, full_name("storage", variables.get("NIGHTSHIFT_BUCKET", "")))
    if bucket is None:
        yield f"the bucket NIGHTSHIFT_BUCKET={variables.get('NIGHTSHIFT_BUCKET')} does not exist"
    for role in ("storage.objectUser", "storage.legacyBucketReader"):
        if role not in access.roles(bucket, airflow):
            yield f"{airflow} lacks roles/{role} on the bucket"
    if "bigquery.jobUser" not in access.roles(cloud.project(variables["NIGHTSHIFT_PROJECT"]), airflow):
        yield f"{airflow} lacks roles/bigquery.jobUser"
    for name in ("nightshift", table.split(".")[-2]):
        dataset = cloud.state.get(
            types.DATASET, full_name("bigquery", "projects", variables["NIGHTSHIFT_PROJECT"], "datasets", name)
        )
        if "bigquery.dataEditor" not in access.roles(dataset, airflow):
            yield f"{airflow} lacks roles/bigquery.dataEditor on the dataset {name}"
    if "container.clusterViewer" not in access.roles(cloud.project(cluster_project), airflow):
        yield f"{airflow} lacks roles/container.clusterViewer on {cluster_project}"


def admitted(cloud: Cloud, cluster: str, jobset: dict[str, Any], bucket: str) -> str:
    """Why the pods of a JobSet do not run, or ''."""
    namespace, spec = jobset["metadata"]["namespace"], jobset["spec"]["replicatedJobs"][0]
    pod = spec["template"]["spec"]["template"]
    template = pod["spec"]
    pods = spec.get("replicas", 1) * spec["template"]["spec"]["parallelism"]
    account = template["serviceAccountName"]
    if kubernetes.get(cloud, cluster, "serviceaccounts", account, namespace) is None:
        return f'pods "x" is forbidden: error looking up service account {namespace}/{account}: not found'
    queue = jobset["metadata"].get("labels", {}).get("kueue.x-k8s.io/queue-name")
    if queue and kubernetes.get(cloud, cluster, "localqueues", queue, namespace) is None:
        return f"the workload is inadmissible: LocalQueue {queue} doesn't exist"
    if problem := nodes.refusal(cloud, cluster, template, pods):
        return problem
    offer = next(nodes.offers(cloud, cluster, template))
    for container in (*template["initContainers"], *template["containers"]):
        if problem := registry.has_image(cloud, container["image"], offer.account):
            return f"ErrImagePull: {problem}"
    if problem := _no_mount(cloud.state.of(types.CLUSTER)[cluster], pod["metadata"].get("annotations", {})):
        return problem
    project = cluster.split("/")[4]
    worker = access.workload(project, cloud.number(project), namespace, account)
    held = access.roles(cloud.state.get(types.BUCKET, full_name("storage", bucket)), worker)
    lacking = {"storage.objectViewer", "storage.objectCreator"} - held
    return f"{worker} lacks {sorted(lacking)} on the bucket {bucket}" if lacking else ""


def _no_mount(cluster: Fields, annotations: dict[str, str]) -> str:
    """Why a bucket that a pod mounts gives it no weights: what GKE adds to the pod has 256 MiB unless the pod says otherwise
    (the defaults of its webhook, in GoogleCloudPlatform/gcs-fuse-csi-driver), and ``"0"`` is no limit."""
    if annotations.get("gke-gcsfuse/volumes") != "true":
        return ""
    if not cluster.get("addonsConfig", {}).get("gcsFuseCsiDriverConfig", {}).get("enabled"):
        return "FailedMount: driver name gcsfuse.csi.storage.gke.io not found in the list of registered CSI drivers"
    if annotations.get("gke-gcsfuse/memory-limit") != "0":
        return "the container gke-gcsfuse-sidecar is OOMKilled: it may take 256Mi, while it reads the weights"
    return ""
