"""The cluster: whether it answers, which APIs it serves, and what Airflow's account may do in the namespace."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from nightshift.doctor import fixes
from nightshift.doctor.context import Surroundings
from nightshift.doctor.findings import Failed, Finding, Ok, Skipped
from nightshift.jobset.kubernetes import rest
from nightshift.jobset.kubernetes.rbac import RIGHTS
from nightshift.jobset.labels import JOBSET_API_VERSION, KUEUE_API_VERSION
from nightshift.jobset.runtime import JobSetNotFound
from nightshift.settings import GKE_CLUSTER, GKE_FORM, Settings

if TYPE_CHECKING:
    from nightshift.jobset.kubernetes.api import JobSetApi

NAME: Final = "cluster"
JOBSET: Final = "jobset api"
KUEUE: Final = "kueue api"
RIGHTS_NAME: Final = "rights"
JOBSET_MANIFESTS: Final = "https://github.com/kubernetes-sigs/jobset/releases/download/v0.12.0/manifests.yaml"
KUEUE_MANIFESTS: Final = "https://github.com/kubernetes-sigs/kueue/releases/download/v0.19.2/manifests.yaml"


def there(here: Surroundings) -> Iterator[Finding]:
    try:
        api = here.connections.cluster()
        if api is None:
            yield Skipped(NAME, f"JobSets run on the local runtime ({here.settings.runtime}), which needs no cluster")
            return
        version, user = api.read("/version")["gitVersion"], api.whoami()
    except Exception as error:  # Whatever keeps Airflow from the cluster, on any of three ways to it, is the finding.
        yield Failed(NAME, f"Airflow does not reach it ({type(error).__name__}: {error})", "infer", _reach(here.settings))
        return
    yield Ok(NAME, f"Kubernetes {version}, which authenticates Airflow as {user}; namespace {here.settings.namespace}")


def _reach(settings: Settings) -> str:
    """The command that shows what is wrong with the way to the cluster."""
    if settings.runtime == "kubernetes":
        return f"airflow connections get {settings.kubernetes_conn_id}"
    if found := GKE_CLUSTER.fullmatch(settings.runtime):
        place = f"--location={found['location']} --project={found['project_id']}"
        return f"gcloud container clusters describe {found['cluster_name']} {place}"
    return fixes.setting("NIGHTSHIFT_RUNTIME", GKE_FORM)


def jobset(here: Surroundings) -> Iterator[Finding]:
    fix = f"kubectl apply --server-side -f {JOBSET_MANIFESTS}"
    yield _served(here.cluster, JOBSET, JOBSET_API_VERSION, ("jobsets",), "infer: it cannot create a JobSet", fix)


def kueue(here: Surroundings) -> Iterator[Finding]:
    """Only a job with ``queue:`` needs it."""
    api = here.cluster
    wanted = here.job is not None and bool(here.job.queue)
    if not wanted and _versions(api, KUEUE_API_VERSION) is None:
        why = f"the job {here.job.job} names no queue" if here.job else "only jobs with queue: need it, and no job was named"
        yield Skipped(KUEUE, f"Kueue is not installed, and {why}")
        return
    fix = f"kubectl apply --server-side -f {KUEUE_MANIFESTS}"
    resources = ("localqueues", "clusterqueues", "resourceflavors", "workloads")
    yield _served(api, KUEUE, KUEUE_API_VERSION, resources, "infer of every job with queue:", fix)


def rights(here: Surroundings) -> Iterator[Finding]:
    """A finding for each verb. The rights to Kueue's objects are asked even where it is not installed, as they are granted."""
    api, namespace = here.cluster, here.settings.namespace
    user = api.whoami()
    for right in RIGHTS:
        if api.may(namespace, right):
            yield Ok(str(right), f"in namespace {namespace}")
        else:
            fix = (
                f"kubectl apply --namespace={namespace} -f k8s/base/airflow.yaml && kubectl create rolebinding "
                f"nightshift-airflow-account --namespace={namespace} --role=nightshift-airflow --user={shlex.quote(user)}"
            )
            yield Failed(str(right), f"{user} may not do this in namespace {namespace}", "infer", fix)


def _served(api: JobSetApi, name: str, api_version: str, resources: tuple[str, ...], breaks: str, fix: str) -> Finding:
    try:
        there = {each["name"] for each in api.read(f"/apis/{api_version}")["resources"]}
    except JobSetNotFound:
        versions = _versions(api, api_version)
        group = api_version.partition("/")[0]
        wrong = f"{group} is not served" if versions is None else f"{group} is served as {', '.join(versions)}"
        return Failed(name, f"{wrong}, and nightshift needs {api_version}", breaks, fix)
    if missing := [each for each in resources if each not in there]:
        return Failed(name, f"{api_version} is served without {', '.join(missing)}", breaks, fix)
    return Ok(name, f"{api_version}: {', '.join(resources)}")


def _versions(api: JobSetApi, api_version: str) -> list[str] | None:
    """The served versions of the group; None if the group is not served."""
    try:
        return [str(each["version"]) for each in api.read(rest.group(api_version))["versions"]]
    except JobSetNotFound:
        return None
