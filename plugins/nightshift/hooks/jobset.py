"""JobSets over Airflow's Kubernetes connections."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from airflow.providers.cncf.kubernetes.hooks.kubernetes import AsyncKubernetesHook, KubernetesHook
from kubernetes_asyncio.client import ApiClient, Configuration
from kubernetes_asyncio.config import load_incluster_config

from nightshift.jobset.kubernetes.aio import AsyncJobSetApi
from nightshift.jobset.kubernetes.api import JobSetApi
from nightshift.jobset.kubernetes.shared_client import UNLIMITED, shared


class JobSetHook(JobSetApi, KubernetesHook):
    """
    Creates, reads, patches and deletes JobSets, and reads their pods and logs, on a Kubernetes connection's cluster.

    Every request has a time limit. If the cluster does not answer, requests are retried for two minutes (``patience_s``), then
    :class:`~nightshift.jobset.runtime.RuntimeUnavailable` is raised; the JobSet's state is then unknown.

    .. seealso::
        Parameters are those of
        :class:`~airflow.providers.cncf.kubernetes.hooks.kubernetes.KubernetesHook`.
    """


class AsyncJobSetHook(AsyncKubernetesHook):
    """
    The same cluster for triggers: ``async with hook.jobsets(namespace) as api`` gives an
    :class:`~nightshift.jobset.kubernetes.aio.AsyncJobSetApi`. All open ones in a process share their connections, and
    credentials that are at most 15 minutes older than the ``with``.

    :param config_file: path of a kubeconfig; overrides the connection's.
    """

    def jobsets(self, namespace: str) -> AbstractAsyncContextManager[AsyncJobSetApi]:
        cluster = ("kubernetes", self.conn_id, self.config_file, self.cluster_context, self.in_cluster)
        return shared(cluster, self.get_conn, namespace)

    @asynccontextmanager
    async def get_conn(self) -> AsyncGenerator[ApiClient, None]:
        """A client of this connection's cluster.

        Provider 10.14, which Cloud Composer ships, ignores the connection and makes every client with the configuration of the
        process; so the client is made here.
        """
        await self._load_config()
        async with ApiClient(configuration=self.client_configuration) as client:
            yield client

    async def _load_config(self) -> None:
        if self.client_configuration is None:
            self.client_configuration = Configuration()
            self.client_configuration.connection_pool_maxsize = UNLIMITED
        await super()._load_config()  # type: ignore[no-untyped-call]
        if self._is_in_cluster:
            # The same provider sets only the process's.
            load_incluster_config(client_configuration=self.client_configuration)  # type: ignore[no-untyped-call]

    async def _get_field(self, field_name: str) -> Any:
        # The provider's asynchronous hook knows a kubeconfig's path only from the connection.
        if field_name == "kube_config_path" and self.config_file:
            return self.config_file
        return await super()._get_field(field_name)  # type: ignore[no-untyped-call]
