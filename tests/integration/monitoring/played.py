"""What only Google's clusters and services export, played: a page whose lines a test sets.

Names and labels are those of the vendors' pages (docs/operate/alerts.md has the sources). Nothing else in the test is played.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aiohttp import web

from tests.integration.driver.serving import ThreadedServer

HEALTHY: Final[Mapping[str, float]] = {
    # GKE's kube state metrics: POD, DEPLOYMENT, JOBSET.
    'kube_pod_status_phase{namespace="nightshift",pod="night-worker-0-0-aaaaa",phase="Running"}': 1,
    'kube_pod_status_phase{namespace="nightshift",pod="night-worker-0-0-aaaaa",phase="Pending"}': 0,
    'kube_pod_status_phase{namespace="nightshift",pod="starved-worker-0-0-bbbbb",phase="Running"}': 1,
    'kube_pod_status_phase{namespace="nightshift",pod="starved-worker-0-0-bbbbb",phase="Pending"}': 0,
    'kube_deployment_spec_replicas{namespace="nightshift",deployment="texts-subscriber"}': 1,
    'kube_deployment_status_replicas_available{namespace="nightshift",deployment="texts-subscriber"}': 1,
    'kube_deployment_spec_replicas{namespace="nightshift",deployment="texts-server"}': 1,
    'kube_deployment_status_replicas_available{namespace="nightshift",deployment="texts-server"}': 1,
    'kube_jobset_suspended_replicas{namespace="nightshift",jobset_name="queued",replicated_job_name="worker"}': 0,
    'kube_jobset_restarts{namespace="nightshift",jobset_name="night"}': 1,
    # GKE's DCGM metrics.
    'DCGM_FI_DEV_GPU_UTIL{namespace="nightshift",pod="night-worker-0-0-aaaaa",gpu="0",modelName="NVIDIA L4"}': 93,
    'DCGM_FI_DEV_FB_USED{namespace="nightshift",pod="night-worker-0-0-aaaaa",gpu="0",modelName="NVIDIA L4"}': 20000,
    'DCGM_FI_DEV_FB_FREE{namespace="nightshift",pod="night-worker-0-0-aaaaa",gpu="0",modelName="NVIDIA L4"}': 2500,
    # Airflow's own metrics, behind a collector; Composer's.
    "airflow_nightshift_doctor_failed": 0,
    'composer_googleapis_com:workflow_run_count{monitored_resource="cloud_composer_workflow",workflow_name="nightshift_doctor",'
    'state="failed"}': 0,
}
ILL: Final[Mapping[str, float]] = {
    'kube_pod_status_phase{namespace="nightshift",pod="starved-worker-0-0-bbbbb",phase="Running"}': 0,
    'kube_pod_status_phase{namespace="nightshift",pod="starved-worker-0-0-bbbbb",phase="Pending"}': 1,
    'kube_deployment_status_replicas_available{namespace="nightshift",deployment="texts-server"}': 0,
    'kube_jobset_suspended_replicas{namespace="nightshift",jobset_name="queued",replicated_job_name="worker"}': 1,
    "airflow_nightshift_doctor_failed": 2,
}


class Played(ThreadedServer):
    """``/metrics`` with `lines`: samples and their values."""

    def __init__(self) -> None:
        super().__init__(0)
        self.lines = dict(HEALTHY)

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/metrics", self._metrics)]

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(text="".join(f"{sample} {value}\n" for sample, value in self.lines.items()))
