"""Waiting, for the tests of the stack. None of the times is asserted: they only bound how long a broken stack is waited for."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from local.stack import Stack

PATIENCE_S = 180.0
# A loaded machine takes minutes to start Airflow.
AIRFLOW_PATIENCE_S = 1200.0


def wait_until(fact: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not fact():
        assert time.monotonic() < deadline, f"not within {patience_s:.0f} s: {what}"
        time.sleep(0.2)


def alive(pid: int) -> bool:
    """Whether the process exists and is more than a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Airflow:
    """The API of a stack's Airflow, as its user."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        login = stack.airflow()
        self._token = ""
        self._token = str(self("/auth/token", {"username": login["user"], "password": login["password"]})["access_token"])

    def __call__(self, path: str, body: Any = None, method: str | None = None) -> Any:
        """The reply to a GET, or to a body that is sent by POST or another method."""
        headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {self._token}"} if self._token else {})
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._stack.airflow()["url"] + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=AIRFLOW_PATIENCE_S) as reply:
            return json.load(reply)

    def wait_for_dag(self, dag: str) -> None:
        def seen() -> bool:
            try:
                return bool(self(f"/api/v2/dags/{dag}"))
            except urllib.error.HTTPError:
                return False

        wait_until(seen, f"Airflow has read the DAG {dag}", AIRFLOW_PATIENCE_S)
