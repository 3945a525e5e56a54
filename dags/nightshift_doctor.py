"""Whether this deployment is ready for a run: trigger it after each change of settings, roles, cluster or package.

Its one task logs a line for each thing that a run needs, and fails if one is wrong (docs/operate/doctor.md). Parsing this
file reads no setting, so that the task can name a missing one.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from airflow.sdk import DAG, Param

from nightshift.operators.doctor import DoctorOperator
from nightshift.operators.params import only_params

with DAG(
    dag_id="nightshift_doctor",
    description="Checks everything that a night needs, and says what is wrong, what that affects, and what fixes it.",
    doc_md=__doc__,
    schedule=None,
    start_date=datetime(2026, 11, 1, tzinfo=UTC),
    catchup=False,
    # It runs only when triggered: a paused DAG would keep that request waiting.
    is_paused_upon_creation=False,
    max_active_runs=1,
    params={
        "job": Param(
            None,
            type=["null", "string"],
            title="Job or stream",
            description="Its name, or the path of its file: also checks what it needs, from the query or the subscription to "
            "the machines and the model.",
        )
    },
    tags=["nightshift"],
) as dag:
    DoctorOperator(
        task_id="examine",
        job="{{ params.job or '' }}",
        jobs_folder=str(Path(__file__).parent / "jobs"),
        streams_folder=str(Path(__file__).parent / "streams"),
        pre_execute=only_params,
        retries=0,
    )
