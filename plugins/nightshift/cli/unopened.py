"""Nights without a run (`nightshift.status.unopened`): the bucket has nothing of them. Airflow is asked, where it is known."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from nightshift.cli.airflow_rest import AirflowApi, NoAirflow, NotNamed, Refused, Unreachable
from nightshift.cli.follow import last_words
from nightshift.status.unopened import Newest, Unopened, unopened

MOST: Final = 20
"""DAGs whose newest DAG run is looked at."""
A_PAGE: Final = 100
NO_RUN: Final = "A night that fails in its task plan opens no run: Airflow's page of the DAG says why."
TIMEOUT_S: Final = 5.0
NO_ANSWER: Final = (KeyError, NoAirflow, Refused, TypeError, Unreachable, ValueError)


def words_of(job: str, environment: Mapping[str, str]) -> str:
    """A sentence if the last night of a job has no run; "" if it has, or if Airflow does not say (told on stderr)."""
    try:
        api = _api(environment)
        found = _of(api, api.get(f"/dags/{job}/details"), look=True)
        return found.words if found else ""
    except NO_ANSWER as error:
        if isinstance(error, Refused) and error.status == 404:
            return f"Airflow has no DAG {job}: its file was removed, or Airflow cannot read it. No night of it begins."
        _not_said(error)
        return ""


def all_of(environment: Mapping[str, str]) -> list[Unopened]:
    """Of all jobs; empty if Airflow does not say, which is told on stderr."""
    try:
        api = _api(environment)
        looked_at = {
            str(each["dag_id"])
            for state in ("failed", "queued")
            for each in api.get("/dags", tags="nightshift", last_dag_run_state=state, limit=MOST)["dags"]
        }
        dags: list[dict[str, Any]] = []
        while page := api.get("/dags", tags="nightshift", order_by="dag_id", limit=A_PAGE, offset=len(dags))["dags"]:
            dags += page
            if len(page) < A_PAGE:
                break
        jobs = [each for each in dags if not str(each["dag_id"]).startswith("nightshift_")]
        return [found for each in jobs if (found := _of(api, each, look=str(each["dag_id"]) in looked_at))]
    except NO_ANSWER as error:
        _not_said(error)
        return []


def _not_said(error: Exception) -> None:
    """Where no Airflow is named, none is missed."""
    if not isinstance(error, NotNamed):
        told = str(error) if isinstance(error, NoAirflow | Refused | Unreachable) else f"its answer is unknown ({error!r})"
        print(f"Nights that opened no run may be missing here: {told}", file=sys.stderr)


def _api(environment: Mapping[str, str]) -> AirflowApi:
    api = AirflowApi.from_environment(environment)
    api.timeout_s = TIMEOUT_S
    return api


def _of(api: AirflowApi, dag: Mapping[str, Any], *, look: bool) -> Unopened | None:
    """look: at the DAG's newest DAG run."""
    job = str(dag["dag_id"])
    runs = api.get(f"/dags/{job}/dagRuns", order_by="-run_after", limit=1)["dag_runs"] if look else []
    run_id, state, at = (str(runs[0].get(name) or "") if runs else "" for name in ("dag_run_id", "state", "run_after"))
    path = f"/dags/{job}/dagRuns/{run_id}"
    task = api.get(f"{path}/taskInstances/plan") if state == "failed" else {}
    due_at, plan = str(dag.get("next_dagrun_run_after") or ""), str(task.get("state") or "")
    newest = Newest(job, bool(dag.get("is_paused")), due_at, run_id, state, at, plan)
    found = unopened(newest, lambda: last_words(api, path, "plan", task.get("try_number")))
    if found and found.dag_run_id:
        return replace(found, words=f"{found.words}\nAirflow's page: {api.page('dags', job, 'runs', run_id)}")
    return found
