"""What bounds the workers of a run from outside: the deployment's limit, and the quota that Kueue gives the job's queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nightshift.fields.text import n
from nightshift.profiles.limits import Limits

if TYPE_CHECKING:
    from nightshift.jobset.kubernetes.api import JobSetApi
    from nightshift.settings import Settings
    from nightshift.spec import JobSpec


def limits_of(
    spec: JobSpec,
    settings: Settings,
    partition: str,
    connect: Callable[[], JobSetApi | None],
    info: Callable[[str], None],
    warn: Callable[[str], None],
) -> Limits:
    """Asks Kueue, if the job names a queue. info, warn: take one sentence about it.

    connect: to the cluster; returns None for the local runtime, where queues have no effect, and may raise anything:
    ImportError where Airflow is missing.

    A plan can do without the quota, so whatever keeps Airflow from it is only a warning: a missing right or queue, or a
    cluster that does not answer for `nightshift.hooks.deployment.PATIENCE_S`.
    """
    limits = Limits(settings.workers_max)
    if not spec.queue:
        return limits
    try:
        found = _ask(spec, settings, partition, connect)
    except _Unknown as error:
        warn(f"The quota of queue {spec.queue!r} is unknown; planning continues without it: {error}")
        return limits
    if found is None:
        return limits
    name, quotas = found
    own, unit = quotas[spec.compute.profile], "accelerator" if spec.compute.worker().machine else "worker"
    given = "what its cohort lends, without a limit" if own is None else n(own, unit)
    info(f"Quota: ClusterQueue {name!r} allows {spec.compute.profile} {given}")
    return Limits(settings.workers_max, own, quotas)


class _Unknown(Exception):
    """Why the quota is unknown, and what would help."""


def _ask(
    spec: JobSpec, settings: Settings, partition: str, connect: Callable[[], JobSetApi | None]
) -> tuple[str, dict[str, int | None]] | None:
    """The ClusterQueue, and its quotas by profile; None on the local runtime. Raises _Unknown."""
    from nightshift.jobset.runtime import RequestRefused

    try:
        # The cluster's client comes with Airflow, and `nightshift plan` also runs without Airflow.
        from nightshift.jobset.kubernetes import kueue

        if (api := connect()) is None:
            return None
        way = kueue.read_way(api, settings.namespace, spec.queue or "")
        return way.name, kueue.quotas(spec, settings, partition, way)
    except ImportError as error:
        raise _Unknown(f"reading it needs Airflow, which is not installed here ({error})") from error
    except RequestRefused as error:
        raise _Unknown(f"Airflow's account may not read it ({error}); to allow it: kubectl apply -f {kueue.READERS}") from error
    except kueue.NotUsable as error:
        raise _Unknown(f"{error}; to fix it: {error.fix}") from error
    except Exception as error:  # Whatever keeps Airflow from the cluster, on any of three ways to it.
        raise _Unknown(f"{type(error).__name__}: {error}") from error
