"""Where a deployment's JobSets run, according to its settings, and what waits for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from nightshift.settings import GKE_CLUSTER, GKE_FORM

if TYPE_CHECKING:
    from airflow.triggers.base import BaseTrigger

    from nightshift.jobset.kubernetes.api import JobSetApi
    from nightshift.jobset.runtime import Runtime
    from nightshift.settings import Settings


@dataclass(frozen=True)
class Deployment:
    """runtime: for the task. trigger: makes what waits; takes jobsets, deadline, owner, get_logs and limits as keywords.

    has_profiles: whether compute profiles make a difference there. api: the cluster's; None for the local runtime.
    """

    runtime: Runtime
    trigger: Callable[..., BaseTrigger]
    has_profiles: bool = True
    api: JobSetApi | None = None


def deployment_for(settings: Settings) -> Deployment:
    """Raises AirflowFailException for a runtime that does not exist."""
    from nightshift.jobset.local.client import local_runtime
    from nightshift.triggers.local import LocalJobSetTrigger

    if local := local_runtime(settings):
        return Deployment(local, LocalJobSetTrigger, has_profiles=False)
    if settings.runtime == "kubernetes":
        return _kubernetes(settings)
    if found := GKE_CLUSTER.fullmatch(settings.runtime):
        return _gke(settings, found.groupdict())
    raise AirflowFailException(
        f"NIGHTSHIFT_RUNTIME is {settings.runtime!r}. Write 'kubernetes', '{GKE_FORM}' or 'local:FOLDER'."
    )


def _kubernetes(settings: Settings) -> Deployment:
    from nightshift.hooks.jobset import JobSetHook
    from nightshift.jobset.kubernetes.runtime import KubernetesRuntime
    from nightshift.triggers.jobset import KubernetesJobSetTrigger

    hook = JobSetHook(conn_id=settings.kubernetes_conn_id)
    trigger = partial(KubernetesJobSetTrigger, namespace=settings.namespace, kubernetes_conn_id=settings.kubernetes_conn_id)
    return Deployment(KubernetesRuntime(hook, settings.namespace), trigger, api=hook)


def _gke(settings: Settings, cluster: dict[str, Any]) -> Deployment:
    """Uses the DNS endpoint, which needs neither a public address nor a network shared with the workers."""
    from airflow.providers.google.cloud.hooks.kubernetes_engine import GKEHook
    from airflow.providers.google.cloud.operators.kubernetes_engine import GKEClusterAuthDetails

    from nightshift.hooks.kubernetes_engine import GKEJobSetHook
    from nightshift.jobset.kubernetes.runtime import KubernetesRuntime
    from nightshift.triggers.kubernetes_engine import GKEJobSetTrigger

    finder = GKEClusterAuthDetails(
        cluster_name=cluster["cluster_name"],
        project_id=cluster["project_id"],
        use_internal_ip=False,
        use_dns_endpoint=True,
        cluster_hook=GKEHook(gcp_conn_id=settings.gcp_conn_id, location=cluster["location"]),
    )
    url, authority = finder.fetch_cluster_info()
    reach: dict[str, Any] = {
        "cluster_url": url,
        "ssl_ca_cert": authority,
        "use_dns_endpoint": True,
        "gcp_conn_id": settings.gcp_conn_id,
    }
    trigger = partial(GKEJobSetTrigger, namespace=settings.namespace, **reach)
    hook = GKEJobSetHook(**reach)
    return Deployment(KubernetesRuntime(hook, settings.namespace), trigger, api=hook)
