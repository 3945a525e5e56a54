"""What only a trigger knows of a night, sent to Airflow's own metrics (docs/operate/metrics.md, docs/adr/0024-run-metrics.md).

Airflow decides whether they go anywhere, and where: StatsD, Datadog or OpenTelemetry. A night never fails for their sake.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from nightshift.jobset.fleet.watch import NightNow

log = logging.getLogger(__name__)

PREFIX: Final = "nightshift.night."


class NightGauges:
    """Those of one run. prefix: of its folder, JOB/PARTITION/RUN."""

    def __init__(self, prefix: str) -> None:
        job, _, run = prefix.rstrip("/").split("/")[-3:]
        self._tags = {"nightshift_job": job, "nightshift_run": run}

    def seen(self, now: NightNow) -> None:
        """Sends what is known now."""
        values = {
            "rows": now.rows,
            "rows_committed": now.committed,
            "forecast_seconds": now.end_s,
            "deadline_seconds": now.left_s,
            "late": int(now.late),
            "workers_wanted": now.wanted,
            "workers_running": now.running,
        }
        send(values, self._tags)
        send({"cost": now.cost, "cost_forecast": now.cost_at_end}, {**self._tags, "currency": now.currency})

    def over(self) -> None:
        """This trigger watches no longer: a gauge keeps its last value, and an alert on it would never end."""
        send({"late": 0, "workers_wanted": 0, "workers_running": 0}, self._tags)


def send(values: Mapping[str, float | None], tags: Mapping[str, str], prefix: str = PREFIX) -> None:
    """As gauges; None and inf are left out."""
    try:
        stats = _stats()
        for name, value in values.items():
            if value is not None and math.isfinite(value):
                stats.gauge(prefix + name, value, tags=dict(tags))
    except Exception as error:
        log.debug("metrics not sent: %r", error)


@cache
def _stats() -> Any:
    """Airflow makes its SDK's metrics ready in the processes of tasks only."""
    from airflow.sdk.configuration import conf
    from airflow.sdk.observability import stats
    from airflow.sdk.observability.metrics import stats_utils

    stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=conf.getboolean("metrics", "legacy_names_on"))
    return stats
