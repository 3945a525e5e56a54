"""Tasks that release 0.2.0 deferred: the triggers that lie in Airflow's database are made again here, and run to their event.

The keywords are those that its operators wrote with their defaults, in the order in which it wrote them.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from airflow._shared.module_loading import import_string

from nightshift.hooks.kubernetes_engine import GKEAsyncJobSetHook
from nightshift.triggers.polling import poll
from nightshift.warehouse import JobState

pytestmark = pytest.mark.unit

NAME = "train-0123456789"
DEADLINE = 4102444800.5
OWNER = "0193e1f2-0000-7000-8000-000000000001"
FOLLOWED: dict[str, Any] = {
    "jobsets": [{"name": NAME, "uid": "1b4e28ba-2fa1-11d2-883f-0016d3cca427"}],
    "namespace": "research",
    "deadline": DEADLINE,
    "startup_timeout": 600.0,
    "min_running": 1,
    "disruptions": None,
    "get_logs": True,
    "owner": OWNER,
    "kill_policy": "delete",
    "look": None,
    "before": None,
}
KUBERNETES = {
    **FOLLOWED,
    "kubernetes_conn_id": "kubernetes_default",
    "config_file": None,
    "cluster_context": None,
    "in_cluster": None,
}
GKE = {
    **FOLLOWED,
    "startup_timeout": None,
    "cluster_url": "https://gke-0.europe-west4.gke.goog",
    "ssl_ca_cert": "YQ==",
    "use_dns_endpoint": True,
    "gcp_conn_id": "google_cloud_default",
    "impersonation_chain": None,
}
LOCAL = {
    "jobsets": [{"name": NAME, "uid": ""}],
    "deadline": DEADLINE,
    "owner": OWNER,
    "get_logs": True,
    "poll_interval": 2.0,
    "look": None,
    "before": None,
}
BIGQUERY = {"job_ids": ["job_a", "job_b"], "deadline": DEADLINE, "poll_interval": 2.0}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No trigger waits for Airflow's scheduler here."""
    assert poll.__kwdefaults__ is not None
    monkeypatch.setitem(poll.__kwdefaults__, "settle_s", 0)
    monkeypatch.setattr("nightshift.triggers.jobset.SETTLE_S", 0)


async def event_of(path: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The only one, after a trip through JSON."""
    trigger = import_string(path)(**json.loads(json.dumps(kwargs)))
    [event] = [fired.payload async for fired in trigger.run()]
    return dict(json.loads(json.dumps(event)))


@asynccontextmanager
async def an_api_server() -> AsyncIterator[tuple[str, list[str]]]:
    """One that has no JobSet any more; its address, and the paths it was asked for."""
    asked: list[str] = []

    async def nothing(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})

    application = web.Application()
    application.router.add_get("/{path:.*}", nothing)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    finally:
        await runner.cleanup()


async def test_kubernetes(monkeypatch: pytest.MonkeyPatch) -> None:
    async with an_api_server() as (address, asked):
        config = {
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "here"}}],
            "clusters": [{"name": "here", "cluster": {"server": address}}],
            "users": [{"name": "here", "user": {"token": "x"}}],
        }
        connection = {"conn_type": "kubernetes", "extra": {"kube_config": json.dumps(config)}}
        monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", json.dumps(connection))
        event = await event_of("nightshift.triggers.jobset.KubernetesJobSetTrigger", KUBERNETES)

    assert (event["name"], event["ending"]) == (NAME, "lost")
    assert "/apis/jobset.x-k8s.io/v1alpha2/namespaces/research/jobsets" in asked


async def test_gke(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a token of ours and another address: there is no Google Cloud here."""

    async def token(_: Any) -> Any:
        async def get() -> str:
            return "x"

        return SimpleNamespace(get=get)

    monkeypatch.setattr(GKEAsyncJobSetHook, "get_token", token)
    async with an_api_server() as (address, asked):
        event = await event_of("nightshift.triggers.kubernetes_engine.GKEJobSetTrigger", {**GKE, "cluster_url": address})

    assert (event["name"], event["ending"]) == (NAME, "lost")
    assert asked


async def test_local(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its task looks itself, and goes on as on any cluster."""
    monkeypatch.setattr("nightshift.triggers.local.SETTLE_S", 0)
    event = await event_of("nightshift.triggers.local.LocalJobSetTrigger", LOCAL)

    assert (event["name"], event["ending"]) == (NAME, "look")


async def test_bigquery(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for the client, which needs Google's credentials; tests/integration/warehouse has the emulator's."""
    monkeypatch.setenv("NIGHTSHIFT_PROJECT", "acme")
    monkeypatch.setenv("NIGHTSHIFT_BUCKET", "runs")
    warehouse = SimpleNamespace(job=lambda job_id: JobState(job_id=job_id, done=True))
    monkeypatch.setattr("nightshift.hooks.warehouse.warehouse_for", lambda *_, **__: warehouse)
    event = await event_of("nightshift.triggers.bigquery.BigQueryJobsTrigger", BIGQUERY)

    assert [job["job_id"] for job in event["jobs"]] == ["job_a", "job_b"]
    assert event["problem"] is None
