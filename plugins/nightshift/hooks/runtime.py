"""The runtime that runs a deployment's JobSets, according to its settings, over Airflow's connections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.exceptions import AirflowFailException

from nightshift.settings import GKE_CLUSTER, GKE_FORM

if TYPE_CHECKING:
    from nightshift.jobset.kubernetes.api import JobSetApi
    from nightshift.jobset.runtime import Runtime
    from nightshift.settings import Settings


KUBECONFIG: Final = "kubeconfig"
"""In the folder of the local runtime: where its API is."""


class NoSuchRuntime(AirflowFailException):
    """NIGHTSHIFT_RUNTIME names a runtime that does not exist, or another one than that of a JobSet."""


@dataclass(frozen=True)
class ReachedRuntime:
    """api: the cluster's. connection: the arguments with which a hook, or a trigger, reaches it."""

    runtime: Runtime
    api: JobSetApi
    connection: Mapping[str, Any]

    @property
    def is_gke(self) -> bool:
        """Whether it is reached over GKE's API, not over a connection to a cluster."""
        return "cluster_url" in self.connection


def runtime_for(settings: Settings) -> ReachedRuntime:
    """Raises NoSuchRuntime."""
    if settings.runtime == "kubernetes":
        return _kubernetes(settings, {"kubernetes_conn_id": settings.kubernetes_conn_id})
    if settings.local_folder:
        return _kubernetes(settings, {"config_file": f"{settings.local_folder}/{KUBECONFIG}"})
    if found := GKE_CLUSTER.fullmatch(settings.runtime):
        return _gke(settings, found.groupdict())
    raise NoSuchRuntime(f"NIGHTSHIFT_RUNTIME is {settings.runtime!r}. Write 'kubernetes', '{GKE_FORM}' or 'local:FOLDER'.")


def _kubernetes(settings: Settings, connection: dict[str, Any]) -> ReachedRuntime:
    """connection: the trigger's arguments."""
    from nightshift.hooks.jobset import JobSetHook
    from nightshift.jobset.kubernetes.runtime import KubernetesRuntime

    hook = JobSetHook(conn_id=connection.get("kubernetes_conn_id"), config_file=connection.get("config_file"))
    return ReachedRuntime(KubernetesRuntime(hook, settings.namespace), hook, connection)


def _gke(settings: Settings, cluster: dict[str, Any]) -> ReachedRuntime:
    """Uses the DNS endpoint, which needs neither a public address nor a network shared with the workers."""
    from airflow.providers.google.cloud.hooks.kubernetes_engine import GKEHook
    from airflow.providers.google.cloud.operators.kubernetes_engine import GKEClusterAuthDetails

    from nightshift.hooks.kubernetes_engine import GKEJobSetHook
    from nightshift.jobset.kubernetes.runtime import KubernetesRuntime

    finder = GKEClusterAuthDetails(
        cluster_name=cluster["cluster_name"],
        project_id=cluster["project_id"],
        use_internal_ip=False,
        use_dns_endpoint=True,
        cluster_hook=GKEHook(gcp_conn_id=settings.gcp_conn_id, location=cluster["location"]),
    )
    url, authority = finder.fetch_cluster_info()
    connection: dict[str, Any] = {
        "cluster_url": url,
        "ssl_ca_cert": authority,
        "use_dns_endpoint": True,
        "gcp_conn_id": settings.gcp_conn_id,
    }
    hook = GKEJobSetHook(**connection)
    return ReachedRuntime(KubernetesRuntime(hook, settings.namespace), hook, connection)
