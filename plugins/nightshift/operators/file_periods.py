"""From the asset's events to periods: which one a DAG run that files have started is for, and which runs compute the others.

Airflow makes one run for all events that it finds together, and may forget to make one for an event that comes while an
earlier one waits for its run: the queue keeps the earlier one's time (`AssetManager._queue_dagruns`), and a run takes only the
events up to that time. But all such events are there before the run begins. So a run takes the newest period of its events,
and starts a run for each other one that has none, the forgotten ones included.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException, AirflowSkipException

from nightshift.operators.failures import Entry, NightFailed
from nightshift.spec import periods
from nightshift.triggers.files import LOOK_BACK

if TYPE_CHECKING:
    from airflow.sdk import Context


def began_by_files(context: Context) -> bool:
    """Whether an asset's event has started the DAG run, and no param sets its period."""
    return context["dag_run"].run_type == "asset_triggered" and not context["params"].get("partition")


@dataclass(frozen=True)
class Named:
    """The periods that a run's events name. own: the run's own. others: oldest first; some may have runs already.

    dropped: those that cannot have files yet, or are before the job's first partition.
    """

    own: str
    others: list[str]
    dropped: list[str]


def periods_of_events(context: Context, every: str, start_date: date) -> Named:
    """The newest period of its events is the run's own. One that is not over when the run begins is an error in the event, and
    takes no other one's place.

    The task has the asset as its inlet. Raises NightFailed if no event names a period, and AirflowSkipException if
    none is left.
    """
    own = [event for events in context["triggering_asset_events"].values() for event in events]
    dag_run = context["dag_run"]
    since = max((event.timestamp for event in own), default=dag_run.run_after)
    later = context["inlet_events"][0].after(since.isoformat())
    forgotten = [event for event in later if dag_run.start_date is None or event.timestamp <= dag_run.start_date]
    named = set(_named(own, every))
    if not named:
        raise NightFailed(
            f"The asset's event names no period of {every}: a user or another system has made it. Trigger the DAG with the "
            'param partition instead, or give the event the extra {"payload": {"partition": "2026-11-19T0710"}}.',
            Entry.WRONG_PARAM,
        )
    everything = named | set(_named(forgotten, every))
    # The clock of the events may be ahead of this one.
    now = max([dag_run.start_date or datetime.now(UTC), *(event.timestamp for event in (*own, *forgotten))])
    first = datetime.combine(start_date, time(), UTC)
    bounds = {name: periods.bounds(name, every) for name in everything}
    usable = sorted(name for name, (start, end) in bounds.items() if start >= first and end <= now)
    dropped = sorted(everything - set(usable))
    if not usable:
        raise AirflowSkipException(
            f"The asset's events name only periods that are not over yet, or before the job's start_date, {start_date}: "
            f"{', '.join(dropped[:5])}. Trigger the DAG with the param partition instead."
        )
    newest = max(named.intersection(usable) or usable)
    return Named(newest, [name for name in usable if name != newest], dropped)


def within_reach(names: Iterable[str], newest: str) -> list[str]:
    """Those recent enough for the watcher to make up for."""
    oldest = periods.bounds(newest, None)[0] - LOOK_BACK
    return [name for name in names if periods.bounds(name, None)[0] >= oldest]


def start_run(dag_id: str, partition: str) -> str:
    """Starts the DAG's run of a period; its id. There is at most one run of this id, however often it is started.

    Raises AirflowException.
    """
    from airflow.sdk.exceptions import ErrorType
    from airflow.sdk.execution_time.comms import ErrorResponse, TriggerDagRun
    from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

    run_id = f"files__{partition}"
    note = "Its files arrived while earlier periods had no run yet."
    reply = SUPERVISOR_COMMS.send(TriggerDagRun(dag_id=dag_id, run_id=run_id, conf={"partition": partition}, note=note))
    if isinstance(reply, ErrorResponse) and reply.error != ErrorType.DAGRUN_ALREADY_EXISTS:
        raise AirflowException(f"Airflow did not start the run {run_id} of {dag_id}: {reply.error.value} {reply.detail}")
    return run_id


def _named(events: Iterable[Any], every: str) -> Iterable[str]:
    for event in events:
        payload = event.extra.get("payload")
        partition = payload.get("partition") if isinstance(payload, dict) else None
        try:
            yield periods.read(str(partition), every)
        except periods.NoPartition:
            continue
