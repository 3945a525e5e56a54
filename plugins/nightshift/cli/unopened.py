"""Nights that failed before they opened a run: the bucket has nothing of them, so Airflow is asked, where it is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from nightshift.cli.airflow_rest import AirflowApi, NoAirflow, Refused, Unreachable
from nightshift.cli.follow import last_words

MOST: Final = 20
"""DAGs that are asked after."""
NO_RUN: Final = "A night that fails in its task plan opens no run: Airflow's page of the DAG says why."
TIMEOUT_S: Final = 5.0
NO_ANSWER: Final = (KeyError, NoAirflow, Refused, TypeError, Unreachable, ValueError)


def words_of(job: str, environment: Mapping[str, str]) -> str:
    """A sentence if the last DAG run of a job failed in its task plan; "" if it did not, or if Airflow does not say."""
    try:
        return _words(_api(environment), job)
    except NO_ANSWER:
        return ""


def all_words(environment: Mapping[str, str]) -> Iterator[str]:
    """`words_of` each job whose last DAG run failed, by name."""
    try:
        api = _api(environment)
        dags = api.get("/dags", tags="nightshift", last_dag_run_state="failed", limit=MOST)["dags"]
        yield from filter(None, [_words(api, str(each["dag_id"])) for each in dags])
    except NO_ANSWER:
        return


def _api(environment: Mapping[str, str]) -> AirflowApi:
    api = AirflowApi.from_environment(environment)
    api.timeout_s = TIMEOUT_S
    return api


def _words(api: AirflowApi, job: str) -> str:
    runs = api.get(f"/dags/{job}/dagRuns", order_by="-run_after", limit=1)["dag_runs"]
    if not runs or runs[0]["state"] != "failed":
        return ""
    run_id = str(runs[0]["dag_run_id"])
    task = api.get(f"/dags/{job}/dagRuns/{run_id}/taskInstances/plan")
    if task["state"] != "failed":
        return ""
    why = last_words(api, f"/dags/{job}/dagRuns/{run_id}", "plan", task.get("try_number"))
    page = api.page("dags", job, "runs", run_id)
    return f"The last night of {job} opened no run, because its task plan failed: {why}\nIts logs: {page}"
