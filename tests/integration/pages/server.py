"""A real API server of Airflow with the pages, with the versions of Cloud Composer's image: FAB's auth manager, and the wheel
alone, as there, and an address with a path. It has no scheduler: a DAG run that a page asks for stays queued."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from local import package
from local.environments import environment_dir
from local.ports import new_port
from tests.integration.emulators import ANONYMOUS_CONNECTION, Emulator

PATH: Final = "/team/airflow"
"""Of the server's address: as behind a proxy that several share."""
DAGS: Final = """
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Param, chain
for job in {jobs}:
    params = {{name: Param(None, type=["null", "string"]) for name in ("partition", "republish", "redo")}}
    with DAG(job, schedule=None, params=params, tags=["nightshift"]) as dag:
        chain(*(EmptyOperator(task_id=name) for name in ("plan", "extract", "infer", "seal", "publish", "audit")))
    globals()[job] = dag
with DAG("other", schedule=None) as other:
    EmptyOperator(task_id="nothing")
"""
READS: Final = [["can_read", "DAG Runs"], ["can_read", "Website"], ["can_read", "Task Instances"], ["menu_access", "DAGs"]]
"""What each user of the tests may do, besides what is about single DAGs."""


@dataclass
class Reply:
    status: int
    headers: Mapping[str, str]
    text: str


@dataclass
class ApiServer(Emulator):
    """url: its address with the path, without a slash at its end."""

    url: str
    variables: Mapping[str, str]

    def token(self, user: str) -> str:
        """Airflow's own, which a browser has as a cookie."""
        reply = self.get("/auth/token", body=json.dumps({"username": user, "password": user}), kind="application/json")
        assert reply.status == 201, reply.text
        return str(json.loads(reply.text)["access_token"])

    def get(
        self,
        path: str,
        cookie: str = "",
        *,
        body: str | None = None,
        kind: str = "application/x-www-form-urlencoded",
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """The reply to a GET, or to a POST of a body, whatever its status; a redirect is not followed. path: below the url."""
        sent = {"Content-Type": kind} if body is not None else {}
        sent |= {"Cookie": f"_token={cookie}"} if cookie else {}
        request = urllib.request.Request(
            self.url + path, body.encode() if body is not None else None, {**sent, **(headers or {})}
        )
        try:
            with _opener.open(request, timeout=120) as reply:
                return Reply(reply.status, dict(reply.headers), reply.read().decode())
        except urllib.error.HTTPError as error:
            return Reply(error.code, dict(error.headers), error.read().decode())


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


_opener = urllib.request.build_opener(_Stay)


def start_airflow(
    folder: Path,
    storage_url: str,
    bucket: str,
    *,
    jobs: Sequence[str],
    users: Sequence[Mapping[str, Any]],
    nights: Sequence[Mapping[str, Any]],
    environment: str = "composer",
) -> ApiServer:
    """The caller stops it. folder: new, for its database and logs."""
    python = environment_dir(environment) / "bin" / "python"
    port = new_port()
    url = f"http://127.0.0.1:{port}{PATH}"
    (folder / "dags").mkdir(parents=True)
    (folder / "dags" / "jobs.py").write_text(DAGS.format(jobs=list(jobs)))
    variables = {
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "HOME": str(folder),
        "AIRFLOW_HOME": str(folder),
        "PYTHONPATH": str(package.installed()),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        # A page asks no paused DAG for a run.
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder / "dags"),
        "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "600",
        "AIRFLOW__CORE__AUTH_MANAGER": "airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{folder}/airflow.db",
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API__SECRET_KEY": "of a test",
        "AIRFLOW__API_AUTH__JWT_SECRET": "of a test, and long enough for HS512: 64 bytes are what it takes.",
        "AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT": ANONYMOUS_CONNECTION,
        "STORAGE_EMULATOR_HOST": storage_url,
        "NIGHTSHIFT_BUCKET": bucket,
        "NIGHTSHIFT_PROJECT": "local",
    }
    prepare = [str(python), str(Path(__file__).with_name("prepare.py")), json.dumps(list(users)), json.dumps(list(nights))]
    done = subprocess.run(prepare, env=variables, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    server = ApiServer(
        command=(str(python), "-m", "airflow", "api-server", "--host", "127.0.0.1", "--port", str(port)),
        environment=dict(variables),
        health_url=f"{url}/api/v2/version",
        log=folder / "api-server.log",
        url=url,
        variables=variables,
    )
    server.start()
    return server
