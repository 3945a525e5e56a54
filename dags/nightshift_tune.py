"""Finds the settings under which a job's engine answers the most rows a second, by trials on engines of its own.

Nothing is opened or published, and no file is changed: the log ends with one sentence and a patch of the job's file. Each trial
is kept in the bucket, so a retry, or a DAG run with a larger budget, goes on with the next one (docs/use/before-the-night.md).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG, Param

from nightshift.operators.params import only_params
from nightshift.operators.tune import TuneOperator

with DAG(
    dag_id="nightshift_tune",
    description="Finds the settings under which a job's engine is fastest.",
    doc_md=__doc__,
    schedule=None,
    start_date=datetime(2026, 11, 1, tzinfo=UTC),
    catchup=False,
    # It runs only when triggered: a paused DAG would keep that request waiting.
    is_paused_upon_creation=False,
    # Two tunes of one job at once would measure each other.
    max_active_runs=1,
    params={
        "job": Param("", type="string", title="Job", description="Its name."),
        "budget": Param(
            "1h", type="string", title="Budget", description="How long all trials may take, or what they may cost: 30m, 4.50."
        ),
        "rows": Param(1000, type="integer", minimum=1, maximum=100_000, title="Rows", description="Of a trial."),
        "partition": Param(
            None,
            type=["null", "string"],
            title="Partition",
            description="The day, or the start of a period. If empty: the last one that is over.",
        ),
    },
    tags=["nightshift"],
) as dag:
    TuneOperator(
        task_id="tune",
        job="{{ params.job }}",
        budget="{{ params.budget }}",
        rows="{{ params.rows }}",
        partition="{{ params.partition or '' }}",
        jobs_folder=str(Path(__file__).parent / "jobs"),
        pre_execute=only_params,
        # A machine that is taken away again and again ends a try; the next one goes on with the next trial.
        retries=5,
        retry_delay=timedelta(minutes=5),
    )
