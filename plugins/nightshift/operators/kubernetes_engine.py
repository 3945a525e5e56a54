"""Runs a JobSet on Google Kubernetes Engine, with the Google provider's credentials."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from airflow.providers.google.cloud.links.base import BaseGoogleLink
from airflow.providers.google.cloud.operators.kubernetes_engine import GKEOperatorMixin
from airflow.providers.google.common.hooks.base_google import PROVIDE_PROJECT_ID

from nightshift.jobset.fleet.work import Waited
from nightshift.operators.jobset import KubernetesJobSetOperator
from nightshift.triggers.kubernetes_engine import GKEJobSetTrigger

if TYPE_CHECKING:
    from airflow.triggers.base import BaseTrigger

    from nightshift.hooks.kubernetes_engine import GKEJobSetHook


CONNECTION_FIELDS: Final = ("kubernetes_conn_id", "config_file", "cluster_context", "in_cluster")
"""The parameters that find a cluster in another way."""


class GKEJobSetLink(BaseGoogleLink):
    """Opens the Cloud console's page of the JobSet's first Job: its pods, their logs and events. JobSets have no page there."""

    name = "Kubernetes Engine JobSet"
    key = "kubernetes_jobset_conf"
    format_str = "/kubernetes/job/{location}/{cluster_name}/{namespace}/{name}-{replicated_job}-0/details?project={project_id}"


class GKEStartJobSetOperator(GKEOperatorMixin, KubernetesJobSetOperator):
    """
    :class:`~nightshift.operators.jobset.KubernetesJobSetOperator` for a GKE cluster.

    .. code-block:: python

        GKEStartJobSetOperator(
            task_id="train",
            project_id="acme",
            location="europe-west4",
            cluster_name="accelerators",
            use_dns_endpoint=True,
            namespace="research",
            jobset="jobsets/train.yaml",
        )

    :param location: the cluster's zone or region (templated).
    :param cluster_name: the cluster (templated).
    :param project_id: its project; by default the connection's (templated).
    :param use_internal_ip: connect to its private address (templated).
    :param use_dns_endpoint: connect to its DNS endpoint, which needs no network access to the cluster (templated).
    :param gcp_conn_id: the :ref:`Google Cloud connection <howto/connection:gcp>` (templated).
    :param impersonation_chain: service accounts to impersonate (templated).
    """

    template_fields: Sequence[str] = (
        *(name for name in KubernetesJobSetOperator.template_fields if name not in CONNECTION_FIELDS),
        *GKEOperatorMixin.template_fields,
    )
    operator_extra_links = (GKEJobSetLink(),)

    def __init__(
        self,
        *,
        location: str,
        cluster_name: str,
        project_id: str = PROVIDE_PROJECT_ID,
        use_internal_ip: bool = False,
        use_dns_endpoint: bool = False,
        gcp_conn_id: str = "google_cloud_default",
        impersonation_chain: str | Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        for theirs in CONNECTION_FIELDS:
            if theirs in kwargs:
                raise ValueError(f"{theirs} has no meaning for GKEStartJobSetOperator, which finds the cluster by name.")
        super().__init__(**kwargs)
        self.location = location
        self.cluster_name = cluster_name
        self.project_id = project_id
        self.use_internal_ip = use_internal_ip
        self.use_dns_endpoint = use_dns_endpoint
        self.gcp_conn_id = gcp_conn_id
        self.impersonation_chain = impersonation_chain

    @cached_property
    def hook(self) -> GKEJobSetHook:
        from nightshift.hooks.kubernetes_engine import GKEJobSetHook

        return GKEJobSetHook(
            gcp_conn_id=self.gcp_conn_id,
            impersonation_chain=self.impersonation_chain,
            cluster_url=self.cluster_url,
            ssl_ca_cert=self.ssl_ca_cert,
            enable_tcp_keepalive=True,
            use_dns_endpoint=self.use_dns_endpoint,
        )

    def waiter(self, waited: list[Waited], deadline: float) -> BaseTrigger:
        GKEJobSetLink.persist(
            context=self._context,
            project_id=self.project_id,
            location=self.location,
            cluster_name=self.cluster_name,
            namespace=self.target_namespace,
            name=waited[-1].name,
            replicated_job=self.template["spec"]["replicatedJobs"][0]["name"],
        )
        return GKEJobSetTrigger(
            **self._followed(waited, deadline),
            cluster_url=self.cluster_url,
            ssl_ca_cert=self.ssl_ca_cert,
            use_dns_endpoint=self.use_dns_endpoint,
            gcp_conn_id=self.gcp_conn_id,
            impersonation_chain=self.impersonation_chain,
        )
