"""Publishes dead letters of a stream again: trigger it when you have fixed what made them fail.

The form asks for the stream, and for which of its dead letters. They go unchanged to the topic of the stream's subscription,
and are answered like any message. Each is marked in the table of dead letters, and not published again (docs/use/streams.md).

The DAG exists if there are stream files in dags/streams/. The task reads the file when it runs.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG, Param

from nightshift.operators.params import only_params
from nightshift.operators.redrive import RedriveOperator
from nightshift.spec.folder import job_files

FOLDER = Path(__file__).parent / "streams"
STREAMS = [file.stem for file in job_files(FOLDER)] if FOLDER.is_dir() else []

if STREAMS:
    with DAG(
        dag_id="nightshift_redrive",
        description="Publishes dead letters of a stream again.",
        doc_md=__doc__,
        schedule=None,
        start_date=datetime(2026, 11, 1, tzinfo=UTC),
        catchup=False,
        # It runs only when triggered: a paused DAG would keep that request waiting.
        is_paused_upon_creation=False,
        max_active_runs=1,
        # So that a list and a number reach the task as what they are.
        render_template_as_native_obj=True,
        params={
            "stream": Param(STREAMS[0], type="string", enum=STREAMS, title="Stream"),
            "reasons": Param(
                None,
                type=["null", "array"],
                items={"type": "string"},
                title="Reasons",
                description="One per line, as in the column reason, for example too_long. If empty: all reasons.",
            ),
            "since": Param(
                None,
                type=["null", "string"],
                format="date-time",
                title="Since",
                description="Only those that died then or later.",
            ),
            "until": Param(
                None, type=["null", "string"], format="date-time", title="Until", description="Only those that died before."
            ),
            "most": Param(
                1000, type="integer", minimum=1, title="At most", description="How many to publish: those that died first."
            ),
            "topic": Param(
                None,
                type=["null", "string"],
                title="Topic",
                description="Another topic, for example that of a stream with other limits. If empty: the stream's own. All "
                "other subscriptions of the topic get the messages too.",
            ),
            "dry_run": Param(
                False,
                type=["null", "boolean"],  # without null, the form marks it as required
                title="Dry run",
                description="Only count them, by reason.",
            ),
        },
        tags=["nightshift"],
    ) as dag:
        RedriveOperator(
            task_id="redrive",
            stream="{{ params.stream }}",
            reasons="{{ params.reasons }}",
            since="{{ params.since }}",
            until="{{ params.until }}",
            most="{{ params.most }}",
            topic="{{ params.topic }}",
            only_count="{{ params.dry_run or False }}",
            streams_folder=str(FOLDER),
            pre_execute=only_params,
            retries=5,
            retry_delay=timedelta(seconds=30),
        )
