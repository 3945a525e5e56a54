"""JobSets on GKE, with the Google provider's credentials."""

from __future__ import annotations

import json
from contextlib import AbstractAsyncContextManager
from typing import Any

from airflow.providers.google.cloud.hooks.kubernetes_engine import GKEKubernetesAsyncHook, GKEKubernetesHook
from kubernetes_asyncio.client import Configuration

from nightshift.jobset.kubernetes.aio import AsyncJobSetApi
from nightshift.jobset.kubernetes.api import JobSetApi
from nightshift.jobset.kubernetes.shared_client import UNLIMITED, shared


class GKEJobSetHook(JobSetApi, GKEKubernetesHook):
    """
    :class:`~nightshift.hooks.jobset.JobSetHook` for a GKE cluster.

    .. seealso::
        Parameters are those of
        :class:`~airflow.providers.google.cloud.hooks.kubernetes_engine.GKEKubernetesHook`.
    """


class GKEAsyncJobSetHook(GKEKubernetesAsyncHook):
    """
    :class:`~nightshift.hooks.jobset.AsyncJobSetHook` for a GKE cluster. A token lasts an hour, and no client longer.

    .. seealso::
        Parameters are those of
        :class:`~airflow.providers.google.cloud.hooks.kubernetes_engine.GKEKubernetesAsyncHook`.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._cluster = ("gke", json.dumps(kwargs, sort_keys=True))

    def jobsets(self, namespace: str) -> AbstractAsyncContextManager[AsyncJobSetApi]:
        return shared(self._cluster, self.get_conn, namespace)

    def _get_config(self) -> Configuration:
        configuration = super()._get_config()
        configuration.connection_pool_maxsize = UNLIMITED
        return configuration
