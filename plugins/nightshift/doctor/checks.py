"""All checks, in the order of the report; one that needs another stands after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from nightshift.doctor import (
    bucket,
    cluster,
    components,
    identity,
    images,
    job,
    model,
    notifiers,
    queue,
    warehouse,
    workers,
)
from nightshift.doctor.context import Connections, Surroundings, Triggerer
from nightshift.doctor.findings import Failed, Finding, Ok, Report, Skipped
from nightshift.doctor.fixes import setting
from nightshift.doctor.runner import Check, examine
from nightshift.settings import Settings, SettingsError

SETTINGS: Final = "settings"
NIGHT: Final = "every task"
MODEL_LIMIT_S: Final = 120.0
"""Seconds: the Hub is asked five times before it counts as unavailable (`nightshift.run.hub_revision`)."""
TABLE_LIMIT_S: Final = 120.0
"""Seconds: two of its four steps are queries."""

CHECKS: Final = (
    Check(components.AIRFLOW, components.airflow, NIGHT),
    Check(components.PLUGIN, components.plugin, NIGHT, needs=(components.AIRFLOW,)),
    Check(components.PROVIDER, components.provider, NIGHT, needs=(components.AIRFLOW,)),
    Check(components.TRIGGERER, components.triggerer, NIGHT),
    Check(notifiers.NAME, notifiers.ask, notifiers.BREAKS, needs=(components.AIRFLOW,)),
    Check(identity.NAME, identity.ask, identity.BREAKS, needs=(components.AIRFLOW,)),
    Check(bucket.NAME, bucket.there, NIGHT, needs=(identity.NAME,)),
    Check(bucket.PERMISSIONS, bucket.permissions, NIGHT, needs=(bucket.NAME,)),
    Check(bucket.STORE, bucket.first_writer_wins, NIGHT, needs=(bucket.NAME,)),
    Check(workers.NAME, workers.rights, workers.BREAKS, needs=(bucket.NAME,)),
    Check(warehouse.DATASET, warehouse.dataset, "publish and audit", needs=(identity.NAME,)),
    Check(warehouse.LOCATION, warehouse.location, "extract and publish", needs=(bucket.NAME, warehouse.DATASET)),
    Check(warehouse.JOBS, warehouse.jobs, "plan, extract and publish", needs=(identity.NAME,)),
    Check(
        warehouse.TABLES,
        warehouse.tables,
        "publish and audit",
        needs=(warehouse.DATASET, warehouse.LOCATION, warehouse.JOBS),
        limit_s=TABLE_LIMIT_S,
    ),
    Check(cluster.NAME, cluster.there, "infer", needs=(components.AIRFLOW,)),
    Check(cluster.JOBSET, cluster.jobset, "infer", needs=(cluster.NAME,)),
    Check(cluster.KUEUE, cluster.kueue, "infer of jobs with queue:", needs=(cluster.NAME,)),
    Check(cluster.RIGHTS_NAME, cluster.rights, "infer", needs=(cluster.NAME,)),
)
JOB_CHECKS: Final = (
    Check(warehouse.QUERY, warehouse.query, "plan", needs=(job.NAME, warehouse.JOBS, warehouse.LOCATION)),
    Check(queue.MANIFEST, queue.manifest, "infer", needs=(job.NAME,)),
    Check(queue.QUEUE, queue.queue, "infer", needs=(job.NAME, cluster.KUEUE)),
    Check(queue.QUOTA, queue.quotas, "infer", needs=(queue.MANIFEST, queue.QUEUE)),
    Check(images.NAME, images.ask, "infer", needs=(identity.NAME,)),
    Check(model.NAME, model.ask, "plan and infer", needs=(job.NAME,), limit_s=MODEL_LIMIT_S),
)


def diagnose(
    environment: Mapping[str, str],
    connect: Callable[[Settings], Connections],
    *,
    job_file: Path | None = None,
    triggerer: Triggerer | None = None,
) -> Report:
    """Asks everything of one deployment. connect: Airflow's connections for its settings; raising is a finding, too.

    environment: the process's variables; the clients read the same ones for themselves. triggerer: its answer, if it was asked.
    """
    finding, spec = job.asked(job_file)
    read = Check(job.NAME, lambda _: iter((finding,)), "its DAG")
    checks = (*CHECKS, read, *JOB_CHECKS)
    try:
        settings = Settings.from_environment(environment)
    except SettingsError as error:
        wrong = Failed(SETTINGS, str(error), NIGHT, setting("NIGHTSHIFT_BUCKET", "BUCKET"))
        silent = [Skipped(check.name, f"{SETTINGS} is not ok", needs=SETTINGS) for check in checks if check is not read]
        return Report((wrong, finding, *silent))
    here = Surroundings(settings, connect(settings), spec, triggerer, dict(environment))
    return examine((Check(SETTINGS, _settings, NIGHT), *checks), here)


def _settings(here: Surroundings) -> Iterator[Finding]:
    of = here.settings
    yield Ok(
        SETTINGS,
        f"bucket {of.bucket}, project {of.project}, dataset {of.dataset}, location {of.location}, runtime {of.runtime}",
    )
