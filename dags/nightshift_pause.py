"""Pauses a run, or resumes it. When it is paused, its workers save what they have finished and stop; committed chunks stay.

The run's deadline does not move (docs/operate/capacity.md).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, Param

from nightshift.operators.params import only_params
from nightshift.operators.pause import ACTIONS, PauseOperator

with DAG(
    dag_id="nightshift_pause",
    description="Suspends the JobSets of a run, or resumes them.",
    doc_md=__doc__,
    schedule=None,
    start_date=datetime(2026, 11, 1, tzinfo=UTC),
    catchup=False,
    # It runs only when triggered: a paused DAG would keep that request waiting.
    is_paused_upon_creation=False,
    max_active_runs=1,
    params={
        "run": Param(
            "",
            type="string",
            title="Run",
            description="JOB/PARTITION/RUN, or its URL, as the task plan logs it.",
        ),
        "action": Param("pause", type="string", enum=list(ACTIONS), title="Action"),
    },
    tags=["nightshift"],
) as dag:
    PauseOperator(
        task_id="pause",
        run="{{ params.run }}",
        action="{{ params.action }}",
        pre_execute=only_params,
        retries=5,
        retry_delay=timedelta(seconds=10),
    )
