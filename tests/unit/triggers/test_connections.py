"""Which cluster a trigger's client talks to: that of its connection, whatever else the triggerer's process has open."""

from __future__ import annotations

import json
from pathlib import Path

import certifi
import pytest
from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.config import incluster_config

from nightshift.hooks.jobset import AsyncJobSetHook

pytestmark = pytest.mark.unit

AUTHORITIES = Path(certifi.where()).read_text()


def kubeconfig(server: str) -> str:
    return json.dumps(
        {
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "here"}}],
            "clusters": [{"name": "here", "cluster": {"server": server}}],
            "users": [{"name": "here", "user": {"token": f"token of {server}"}}],
        }
    )


async def test_each_connection_has_its_own_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        connection = {"conn_type": "kubernetes", "extra": {"kube_config": kubeconfig(f"https://{name}")}}
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(connection))

    async with AsyncJobSetHook(conn_id="one").get_conn() as one, AsyncJobSetHook(conn_id="two").get_conn() as two:
        assert [client.configuration.host for client in (one, two)] == ["https://one", "https://two"]
        assert one.configuration.api_key["BearerToken"] == "Bearer token of https://one"


async def test_a_kubeconfig_file_of_the_trigger_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(kubeconfig("https://file"))
    monkeypatch.setenv("AIRFLOW_CONN_EMPTY", json.dumps({"conn_type": "kubernetes"}))

    async with AsyncJobSetHook(conn_id="empty", config_file=str(tmp_path / "config")).get_conn() as client:
        assert client.configuration.host == "https://file"


async def test_in_a_cluster_it_is_that_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, text in {"TOKEN": "a token", "CERT": AUTHORITIES}.items():
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(incluster_config, f"SERVICE_{name}_FILENAME", str(tmp_path / name))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setenv("AIRFLOW_CONN_INSIDE", json.dumps({"conn_type": "kubernetes", "extra": {"in_cluster": True}}))
    monkeypatch.setattr(Configuration, "_default", None)

    async with AsyncJobSetHook(conn_id="inside").get_conn() as client:
        assert client.configuration.host == "https://10.0.0.1:443"
        assert client.configuration.ssl_ca_cert == str(tmp_path / "CERT")
        assert "a token" in client.configuration.api_key["BearerToken"]
