"""The example of the JobSet operator runs to its end on a real cluster, as it stands, by Airflow's own command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from local.environments import ROOT
from tests.cluster.kube import IMAGE, Namespace

pytestmark = pytest.mark.cluster


def test_it_runs(namespace: Namespace, tmp_path: Path) -> None:
    connection = {"conn_type": "kubernetes", "extra": {"kube_config_path": str(namespace.cluster.kubeconfig)}}
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "plugins"),
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "docs" / "examples"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path}/airflow.db",
        "AIRFLOW_CONN_KUBERNETES_DEFAULT": json.dumps(connection),
    }
    airflow = str(Path(sys.executable).with_name("airflow"))
    subprocess.run([airflow, "db", "migrate"], env=environment, check=True, capture_output=True)
    conf = json.dumps({"image": IMAGE, "namespace": namespace.name})

    ran = subprocess.run(
        [airflow, "dags", "test", "jobset-example", "--conf", conf], env=environment, capture_output=True, text=True
    )

    told = ran.stdout + ran.stderr
    assert ran.returncode == 0, told[-4000:]
    assert "state=success" in told, told[-4000:]
    for index in (0, 1):
        assert any(f"worker-0-{index}-" in line and "pi is about 3.14" in line for line in told.splitlines()), told[-4000:]
    namespace.wait_until("the end of the JobSet", lambda: not namespace.get("jobsets"))
