"""All checks, in the order of the report; one that needs another stands after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from nightshift.doctor import (
    add_ons,
    alloydb,
    autoscaling,
    bucket,
    cluster,
    components,
    compute_quota,
    gateway,
    gke,
    identity,
    images,
    job,
    model,
    nodes,
    notifiers,
    priority,
    pubsub,
    queue,
    warehouse,
    workers,
)
from nightshift.doctor.context import Surroundings, Triggerer
from nightshift.doctor.findings import Failed, Finding, Ok, Report, Skipped
from nightshift.doctor.fixes import setting
from nightshift.doctor.runner import Check, examine
from nightshift.hooks.services import Connections
from nightshift.settings import Settings, SettingsError
from nightshift.spec import JobSpec, StreamSpec

SETTINGS: Final = "settings"
NIGHT: Final = "every task"
MODEL_LIMIT_S: Final = 120.0
"""Seconds: the Hub is asked five times before it counts as unavailable (`nightshift.run.models.hub_revision`)."""
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
    Check(gke.NAME, gke.there, "infer", needs=(components.AIRFLOW,)),
    Check(cluster.NAME, cluster.there, "infer", needs=(components.AIRFLOW,), explained_by=(gke.NAME,)),
    Check(add_ons.NAME, add_ons.add_ons, "infer, and streams", needs=(gke.NAME, cluster.NAME)),
    Check(cluster.JOBSET, cluster.jobset, "infer", needs=(cluster.NAME,)),
    Check(cluster.KUEUE, cluster.kueue, "infer of jobs with queue:", needs=(cluster.NAME,)),
    Check(cluster.RIGHTS_NAME, cluster.rights, "infer", needs=(cluster.NAME,)),
    Check(priority.NAME, priority.classes, priority.BREAKS, needs=(cluster.NAME,)),
    Check(priority.PODS, priority.pods, priority.BREAKS, needs=(cluster.NAME,), explained_by=(priority.NAME,)),
)


def _machines(of: str) -> tuple[Check, ...]:
    """What a job and a stream both need of the cluster. of: the check that reads the file."""
    return (
        Check(nodes.POOLS, nodes.pools, "infer, or the stream's servers", needs=(of, gke.NAME)),
        Check(nodes.CLASSES, nodes.classes, "infer, or the stream's servers", needs=(of, gke.NAME, cluster.NAME)),
        Check(
            compute_quota.NAME,
            compute_quota.quotas,
            "infer, or the stream's servers",
            needs=(of, gke.NAME),
            explained_by=(nodes.POOLS, nodes.CLASSES),
        ),
        Check(images.NAME, images.ask, "infer, or the stream's pods", needs=(identity.NAME,)),
        Check(model.NAME, model.ask, "plan and infer, or the stream's servers", needs=(of,), limit_s=MODEL_LIMIT_S),
    )


JOB_CHECKS: Final = (
    Check(warehouse.QUERY, warehouse.query, "plan", needs=(job.NAME, warehouse.JOBS, warehouse.LOCATION)),
    Check(queue.MANIFEST, queue.manifest, "infer", needs=(job.NAME,)),
    Check(queue.QUEUE, queue.queue, "infer", needs=(job.NAME, cluster.KUEUE)),
    Check(queue.QUOTA, queue.quotas, "infer", needs=(queue.MANIFEST, queue.QUEUE)),
    *_machines(job.NAME),
)
_OF_SUBSCRIPTION: Final = (job.STREAM, pubsub.SUBSCRIPTION)
_DEPLOYED: Final = (job.STREAM, cluster.NAME)
STREAM_CHECKS: Final = (
    Check(pubsub.SUBSCRIPTION, pubsub.subscription, "the stream", needs=(job.STREAM, identity.NAME)),
    Check(pubsub.RETENTION, pubsub.retention, "messages, in an outage", needs=_OF_SUBSCRIPTION),
    Check(pubsub.POLICY, pubsub.policy, "dead letters", needs=_OF_SUBSCRIPTION),
    Check(pubsub.AGENT, pubsub.agent, "the dead-letter policy", needs=(*_OF_SUBSCRIPTION, pubsub.POLICY)),
    Check(
        pubsub.TOPIC,
        pubsub.topic,
        "dead letters",
        needs=(job.STREAM, identity.NAME),
        explained_by=(pubsub.SUBSCRIPTION, pubsub.POLICY),
    ),
    Check(pubsub.RIGHTS, pubsub.rights, "the stream", needs=(job.STREAM, pubsub.TOPIC, cluster.NAME)),
    Check(alloydb.NAME, alloydb.states, alloydb.BREAKS, needs=(job.STREAM, identity.NAME, cluster.NAME)),
    Check(alloydb.NETWORK, alloydb.network, alloydb.BREAKS, needs=(alloydb.NAME, gke.NAME)),
    Check(alloydb.LOGIN, alloydb.login, alloydb.BREAKS, needs=(alloydb.NAME,)),
    Check(autoscaling.ADAPTER, autoscaling.adapter, autoscaling.BREAKS, needs=_DEPLOYED, explained_by=(add_ons.NAME,)),
    Check(
        autoscaling.NAME,
        autoscaling.health,
        autoscaling.BREAKS,
        needs=_DEPLOYED,
        explained_by=(add_ons.NAME, autoscaling.ADAPTER),
    ),
    Check(gateway.NAME, gateway.health, gateway.BREAKS, needs=_DEPLOYED, explained_by=(add_ons.NAME,)),
    Check(gateway.ROUTE, gateway.route, gateway.BREAKS, needs=_DEPLOYED, explained_by=(add_ons.NAME, gateway.NAME)),
    Check(gateway.POOLS, gateway.pools, gateway.BREAKS, needs=_DEPLOYED, explained_by=(add_ons.NAME, gateway.ROUTE)),
    *_machines(job.STREAM),
)


def diagnose(
    environment: Mapping[str, str],
    connect: Callable[[Settings], Connections],
    *,
    job_file: Path | None = None,
    triggerer: Triggerer | None = None,
) -> Report:
    """Asks everything of one deployment. connect: Airflow's connections for its settings; raising is a finding, too.

    job_file: of a job or a stream. environment: the process's variables; the clients read the same ones for themselves.
    triggerer: its answer, if it was asked.
    """
    finding, spec = job.asked(job_file)
    stream = spec if isinstance(spec, StreamSpec) else None
    read = Check(finding.check, lambda _: iter((finding,)), "its DAG")
    checks = (*CHECKS, read, *(STREAM_CHECKS if stream else JOB_CHECKS))
    try:
        settings = Settings.from_environment(environment)
    except SettingsError as error:
        wrong = Failed(SETTINGS, str(error), NIGHT, setting("NIGHTSHIFT_BUCKET", "BUCKET"))
        silent = [Skipped(check.name, f"{SETTINGS} is not ok", needs=SETTINGS) for check in checks if check is not read]
        return Report((wrong, finding, *silent))
    nightly = spec if isinstance(spec, JobSpec) else None
    here = Surroundings(settings, connect(settings), nightly, triggerer, dict(environment), stream=stream)
    return examine((Check(SETTINGS, _settings, NIGHT), *checks), here)


def _settings(here: Surroundings) -> Iterator[Finding]:
    of = here.settings
    yield Ok(
        SETTINGS,
        f"bucket {of.bucket}, project {of.project}, dataset {of.dataset}, location {of.location}, runtime {of.runtime}",
    )
