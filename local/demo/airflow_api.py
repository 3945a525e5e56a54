"""Airflow's REST API (v2), as far as the demo needs it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import requests

TIMEOUT_S = 20


class AirflowApi:
    """Talks to an api-server as one user; fetches a new token when the old one is no longer accepted."""

    def __init__(self, url: str, user: str, password: str) -> None:
        self._url = url.rstrip("/")
        self._login = {"username": user, "password": password}
        self._session = requests.Session()

    def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """One call below /api/v2. Raises requests.HTTPError with the server's words, requests.ConnectionError."""
        for first in (True, False):
            reply = self._session.request(method, f"{self._url}/api/v2{path}", json=body, timeout=TIMEOUT_S)
            if reply.status_code != 401 or not first:
                break
            token = self._session.post(f"{self._url}/auth/token", json=self._login, timeout=TIMEOUT_S)
            token.raise_for_status()
            self._session.headers["Authorization"] = f"Bearer {token.json()['access_token']}"
        if not reply.ok:
            raise requests.HTTPError(f"{method} {path}: {reply.status_code} {reply.text[:500]}", response=reply)
        return dict(reply.json()) if reply.content else {}

    def wait_for_dag(self, dag_id: str, budget_s: float = 180, still_up: Callable[[], object] = lambda: None) -> None:
        """Waits until Airflow answers and knows the DAG. Raises TimeoutError, with Airflow's import errors if it answers,
        requests.HTTPError if the request is refused, and whatever `still_up` raises, which it calls all the time."""
        deadline = time.monotonic() + budget_s
        while True:
            still_up()
            try:
                self.request("GET", f"/dags/{dag_id}")
                return
            except requests.RequestException as error:
                unknown = _status(error) == 404
                if refused(error) and not unknown:
                    raise
                last = error
            if time.monotonic() > deadline:
                if not unknown:
                    raise TimeoutError(f"Airflow has not answered for {budget_s:.0f} s: {last}")
                raise TimeoutError(f"Airflow does not know the DAG {dag_id}. Import errors: {self.import_errors() or 'none'}")
            time.sleep(1)

    def import_errors(self) -> list[str]:
        found = self.request("GET", "/importErrors")["import_errors"]
        return [f"{item['filename']}: {item['stack_trace'].strip().splitlines()[-1]}" for item in found]

    def dag_runs(self, dag_id: str) -> list[dict[str, Any]]:
        """The newest hundred runs, newest first."""
        runs: list[dict[str, Any]] = self.request("GET", f"/dags/{dag_id}/dagRuns?order_by=-run_after&limit=100")["dag_runs"]
        return runs

    def dag_run(self, dag_id: str, run_id: str) -> dict[str, Any]:
        return self.request("GET", f"/dags/{dag_id}/dagRuns/{run_id}")

    def trigger(self, dag_id: str, run_id: str, conf: dict[str, Any]) -> dict[str, Any]:
        body = {"dag_run_id": run_id, "logical_date": None, "conf": conf}
        return self.request("POST", f"/dags/{dag_id}/dagRuns", body)

    def task_instances(self, dag_id: str, run_id: str) -> dict[str, dict[str, Any]]:
        """By task id."""
        found = self.request("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"]
        return {item["task_id"]: item for item in found}

    def xcom(self, dag_id: str, run_id: str, task_id: str) -> Any:
        """The return value of a task; None if it has none."""
        try:
            path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/return_value?deserialize=true"
            return self.request("GET", path)["value"]
        except requests.HTTPError as error:
            if error.response is not None and error.response.status_code == 404:
                return None
            raise

    def log(self, dag_id: str, run_id: str, task_id: str, attempt: int) -> list[str]:
        """The lines of a task's log, each followed by its error, if any."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{attempt}?full_content=true"
        content = self.request("GET", path).get("content", [])
        if isinstance(content, str):
            return content.splitlines()
        lines = []
        for entry in content:
            lines.append(str(entry.get("event", entry)))
            lines += [f"{error['exc_type']}: {error['exc_value']}" for error in entry.get("error_detail") or []]
        return lines


def refused(error: Exception) -> bool:
    """Whether a server answered that the request itself is wrong, so that repeating it is pointless."""
    status = _status(error)
    return status is not None and status < 500


def _status(error: Exception) -> int | None:
    """The HTTP status of an error."""
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return error.response.status_code
    return None
