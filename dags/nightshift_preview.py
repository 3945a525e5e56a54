"""Tries a job on some rows of its query: prompts, answers, tokens, dead letters, and what the whole night would take.

Nothing is opened or published. The result is kept in the bucket, below _previews/ (docs/use/before-the-night.md#preview).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG, Param

from nightshift.operators.params import only_params
from nightshift.operators.preview import PreviewOperator

with DAG(
    dag_id="nightshift_preview",
    description="Tries a job on some rows: prompts, answers, tokens, and what the night would take.",
    doc_md=__doc__,
    schedule=None,
    start_date=datetime(2026, 11, 1, tzinfo=UTC),
    catchup=False,
    # It runs only when triggered: a paused DAG would keep that request waiting.
    is_paused_upon_creation=False,
    max_active_runs=2,
    params={
        "job": Param("", type="string", title="Job", description="Its name."),
        "rows": Param(20, type="integer", minimum=1, maximum=200, title="Rows"),
        "partition": Param(
            None,
            type=["null", "string"],
            title="Partition",
            description="The day, or the start of a period. If empty: the last one that is over.",
        ),
        "against": Param(
            None, type=["null", "string"], title="Against", description="The name of another job, to compare answers with."
        ),
    },
    tags=["nightshift"],
) as dag:
    PreviewOperator(
        task_id="preview",
        job="{{ params.job }}",
        rows="{{ params.rows }}",
        partition="{{ params.partition or '' }}",
        against="{{ params.against or '' }}",
        jobs_folder=str(Path(__file__).parent / "jobs"),
        pre_execute=only_params,
        retries=1,
        retry_delay=timedelta(seconds=30),
    )
