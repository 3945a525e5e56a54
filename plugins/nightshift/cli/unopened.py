"""Nights without a run (`nightshift.status.unopened`): the bucket has nothing of them. Airflow is asked, where it is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from nightshift.cli.airflow_rest import AirflowApi, NoAirflow, Refused, Unreachable
from nightshift.cli.follow import last_words
from nightshift.status.unopened import Newest, Unopened, unopened

MOST: Final = 20
"""DAGs whose newest DAG run is looked at."""
A_PAGE: Final = 100
NO_RUN: Final = "A night that fails in its task plan opens no run: Airflow's page of the DAG says why."
TIMEOUT_S: Final = 5.0
NO_ANSWER: Final = (KeyError, NoAirflow, Refused, TypeError, Unreachable, ValueError)


def words_of(job: str, environment: Mapping[str, str]) -> str:
    """A sentence if the last night of a job has no run; "" if it has, or if Airflow does not say."""
    try:
        api = _api(environment)
        found = _of(api, api.get(f"/dags/{job}/details"), look=True)
        return found.words if found else ""
    except Refused as error:
        gone = f"Airflow has no DAG {job}: its file was removed, or Airflow cannot read it. No night of it begins."
        return gone if error.status == 404 else ""
    except NO_ANSWER:
        return ""


def all_of(environment: Mapping[str, str]) -> list[Unopened]:
    """Of all jobs; empty if Airflow does not say."""
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
    except NO_ANSWER:
        return []


def _api(environment: Mapping[str, str]) -> AirflowApi:
    api = AirflowApi.from_environment(environment)
    api.timeout_s = TIMEOUT_S
    return api


def _of(api: AirflowApi, dag: Mapping[str, Any], *, look: bool) -> Unopened | None:
    """look: at the DAG's newest DAG run."""
    job = str(dag["dag_id"])
    newest = Newest(job, bool(dag.get("is_paused")), str(dag.get("next_dagrun_run_after") or ""))
    runs = api.get(f"/dags/{job}/dagRuns", order_by="-run_after", limit=1)["dag_runs"] if look else []
    if not runs:
        return unopened(newest, str)
    run_id, state = str(runs[0]["dag_run_id"]), str(runs[0]["state"])
    path = f"/dags/{job}/dagRuns/{run_id}"
    task = api.get(f"{path}/taskInstances/plan") if state == "failed" else {}
    at = str(runs[0].get("run_after") or "")
    newest = replace(newest, dag_run_id=run_id, state=state, at=at, plan=str(task.get("state") or ""))
    found = unopened(newest, lambda: last_words(api, path, "plan", task.get("try_number")))
    if found and found.dag_run_id:
        return replace(found, words=f"{found.words}\nAirflow's page: {api.page('dags', job, 'runs', run_id)}")
    return found
