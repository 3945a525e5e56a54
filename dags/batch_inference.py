"""One DAG for each job file in dags/jobs/: plan -> extract -> infer -> seal -> publish -> audit; audit_failure if it fails.

Broken job files are left out here; broken_jobs.py shows them as an import error. Airflow keeps one import error per file,
and drops every DAG of such a file, so one file cannot both raise and serve.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, time, timedelta
from pathlib import Path

from airflow.sdk import DAG, Asset, CronDataIntervalTimetable, Param, get_parsing_context
from airflow.sdk.bases.operator import chain

from nightshift.operators.assets import files_asset, table_asset
from nightshift.operators.audit import AuditFailureOperator, AuditOperator
from nightshift.operators.dag_docs import dag_docs
from nightshift.operators.due_time import nightly
from nightshift.operators.extract import ExtractOperator
from nightshift.operators.infer import InferOperator
from nightshift.operators.notify import (
    mistakes,
    when_answers_are_doubtful,
    when_empty,
    when_failed,
    when_late,
    when_too_many_die,
)
from nightshift.operators.plan import PlanOperator
from nightshift.operators.publish import PublishOperator
from nightshift.operators.seal import SealOperator
from nightshift.settings import Settings
from nightshift.spec import JobSpec, load_all, load_job
from nightshift.spec.file_cache import Memory
from nightshift.spec.model import SETTLE
from nightshift.spec.periods import cron

DAGS = Path(__file__).parent
DAY = Param(
    None,
    type=["null", "string"],
    format="date",
    title="Partition",
    description="Day to compute, in UTC. Default: yesterday (scheduled runs: the day that just ended). A logical date that is "
    "a midnight in UTC means that day; other dates in the past, such as a local midnight, are refused.",
)
PERIOD = Param(
    None,
    type=["null", "string"],
    title="Partition",
    description="Start of the period to compute, in UTC: 2026-11-19T07:10. Default: the last one that ended (runs started by "
    "files: theirs). A logical date at which a period begins means that one.",
)
PARAMS = {
    "fresh": Param(
        False,
        type=["null", "boolean"],  # without null, the form marks it as required
        title="Fresh",
        description="Compute all rows again, even if the day is published: a new run replaces the old one.",
    ),
    "republish": Param(
        None,
        type=["null", "string"],
        title="Republish",
        description="Id of a finished run of the day, from the audit table: publish it again in place of a newer run.",
    ),
    "redo": Param(
        None,
        type=["null", "string"],
        enum=[None, "dead_letters", "corrected"],
        # How the form shows the values; without it, the empty one is "null".
        values_display={
            "null": "no",
            "dead_letters": "dead_letters: the same rows once more",
            "corrected": "corrected: the source's rows and the job as they are now",
        },
        title="Redo",
        description="Compute only the rows without an answer, of the day or of the night that failed; keep its predictions. "
        "dead_letters: the same rows once more, as after an engine's failure. corrected: after you have corrected rows in the "
        "source, or the prompt: the rows as the source has them now, found by source.key.",
    ),
}


def watched(spec: JobSpec) -> list[Asset]:
    """The files whose appearance starts the runs of the job, if there are such."""
    source = spec.source
    if spec.every is None or source.watch is None:
        return []
    return [files_asset(source.watch, every=spec.every, settle=source.settle or SETTLE)]


def schedule_of(spec: JobSpec) -> list[Asset] | CronDataIntervalTimetable | None:
    """A run for each period or day, from the moment when it is over. Of a day, the task plan waits for the job's own time.

    If the job watches a folder, only periods with files have one.
    """
    if files := watched(spec):
        return files
    if spec.every:
        return CronDataIntervalTimetable(cron(spec.every), timezone="UTC")
    return nightly(spec.schedule) if spec.schedule else None


def build(spec: JobSpec, settings: Settings, file: Path) -> DAG:
    """The DAG of the job in this file. Raises SettingsError if the job's name would give its pods another's account."""
    settings.account_of(spec.job)
    # Also an inlet of plan: Airflow refuses a task whose asset another DAG names otherwise, and this is before any cost.
    table = table_asset(spec, settings.project)
    with DAG(
        dag_id=spec.job,
        description=spec.description,
        doc_md=dag_docs(spec, file),
        # Else Airflow also takes one of which only a part could be made.
        auto_register=False,
        schedule=schedule_of(spec),
        start_date=datetime.combine(spec.start_date, time(), UTC),
        # For past days, use a backfill. Automatic catch-up could rent a hundred accelerators on the first evening.
        catchup=False,
        # Partitions are independent. Three at once keep accelerators busy while another one extracts or publishes.
        max_active_runs=3,
        params={"partition": PERIOD if spec.every else DAY, **PARAMS},
        tags=["nightshift", *spec.tags],
        on_failure_callback=when_failed(spec),
        deadline=when_late(spec),
        default_args={
            "owner": spec.owner,
            "retries": 5,
            "retry_delay": timedelta(seconds=30),
            "retry_exponential_backoff": 2.0,
            "max_retry_delay": timedelta(minutes=10),
        },
    ) as dag:
        tasks = (
            PlanOperator(
                task_id="plan",
                spec=spec.model_dump(mode="json"),
                inlets=[*watched(spec), table],
                on_failure_callback=when_empty(spec),
                on_success_callback=when_empty(spec),
            ),
            ExtractOperator(task_id="extract"),
            InferOperator(task_id="infer", job=spec.model_dump(mode="json"), on_failure_callback=when_too_many_die(spec)),
            SealOperator(
                task_id="seal",
                on_failure_callback=when_too_many_die(spec),
                on_success_callback=when_answers_are_doubtful(spec),
            ),
            PublishOperator(task_id="publish", outlets=[table]),
        )
        chain(*tasks, AuditOperator(task_id="audit"))
        # Beside the task audit, not behind it: a DAG run ends as its last tasks do, and one that failed has to end as failed.
        names = [task.task_id for task in tasks]
        chain(list(tasks), AuditFailureOperator(task_id="audit_failure", spec=spec.model_dump(mode="json"), tasks=names))
    return dag


def serve(jobs: Mapping[Path, JobSpec]) -> dict[Path, str]:
    """Gives Airflow the DAG of each job; returns why it could not make some."""
    unmade = {}
    for path, job in jobs.items():
        try:
            globals()[job.job] = build(job, Settings.from_environment(), path)
        except Exception as error:  # One job must not take away the DAGs of all others.
            unmade[path] = f"Airflow cannot make its DAG: {type(error).__name__}: {error}"
    return unmade


if wanted := get_parsing_context().dag_id:
    # A task's process needs its own job alone.
    serve(load_job(DAGS / "jobs", wanted))
else:
    memory = Memory.of(DAGS / "jobs")
    jobs = load_all(DAGS / "jobs", memory=memory)[0]
    untold = mistakes(jobs, DAGS, Settings.from_environment().notifiers)
    memory.note(serve({path: job for path, job in jobs.items() if path not in untold}))
