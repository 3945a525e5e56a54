"""JobSets on GKE, with the Google provider's credentials."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from airflow.providers.google.cloud.hooks.kubernetes_engine import GKEKubernetesAsyncHook, GKEKubernetesHook

from nightshift.jobset.cluster.aio import AsyncJobSetApi
from nightshift.jobset.cluster.api import JobSetApi


class GKEJobSetHook(JobSetApi, GKEKubernetesHook):
    """
    :class:`~nightshift.hooks.jobset.JobSetHook` for a GKE cluster.

    .. seealso::
        Parameters are those of
        :class:`~airflow.providers.google.cloud.hooks.kubernetes_engine.GKEKubernetesHook`.
    """


class GKEAsyncJobSetHook(GKEKubernetesAsyncHook):
    """:class:`~nightshift.hooks.jobset.AsyncJobSetHook` for a GKE cluster. A token lasts an hour, a client no longer."""

    @asynccontextmanager
    async def jobsets(self, namespace: str) -> AsyncIterator[AsyncJobSetApi]:
        async with self.get_conn() as client:
            yield AsyncJobSetApi(client, namespace)
