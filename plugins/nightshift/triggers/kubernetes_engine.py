"""Follows JobSets on GKE, in the triggerer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nightshift.triggers.jobset import WAITING, KubernetesJobSetTrigger, arguments

if TYPE_CHECKING:
    from nightshift.hooks.kubernetes_engine import GKEAsyncJobSetHook
    from nightshift.jobset.kubernetes.aio import AsyncJobSetApi


class GKEJobSetTrigger(KubernetesJobSetTrigger):
    """
    :class:`~nightshift.triggers.jobset.KubernetesJobSetTrigger` for a GKE cluster.

    :param cluster_url: the address of the cluster's API.
    :param ssl_ca_cert: its certificate authority in base64.
    :param use_dns_endpoint: whether the address is the DNS endpoint, which has a public certificate.
    :param gcp_conn_id: the Google Cloud connection.
    :param impersonation_chain: service accounts to impersonate.
    """

    def __init__(
        self,
        *,
        cluster_url: str,
        ssl_ca_cert: str,
        use_dns_endpoint: bool = False,
        gcp_conn_id: str = "google_cloud_default",
        impersonation_chain: str | Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.cluster_url = cluster_url
        self.ssl_ca_cert = ssl_ca_cert
        self.use_dns_endpoint = use_dns_endpoint
        self.gcp_conn_id = gcp_conn_id
        self.impersonation_chain = impersonation_chain

    def serialize(self) -> tuple[str, dict[str, Any]]:
        own = ("cluster_url", "ssl_ca_cert", "use_dns_endpoint", "gcp_conn_id", "impersonation_chain")
        return "nightshift.triggers.kubernetes_engine.GKEJobSetTrigger", arguments(self, *WAITING, *own)

    @cached_property
    def gke_hook(self) -> GKEAsyncJobSetHook:
        from nightshift.hooks.kubernetes_engine import GKEAsyncJobSetHook

        return GKEAsyncJobSetHook(
            cluster_url=self.cluster_url,
            ssl_ca_cert=self.ssl_ca_cert,
            use_dns_endpoint=self.use_dns_endpoint,
            gcp_conn_id=self.gcp_conn_id,
            impersonation_chain=self.impersonation_chain,
        )

    def connect(self) -> AbstractAsyncContextManager[AsyncJobSetApi]:
        return self.gke_hook.jobsets(self.namespace)
