"""One DAG run from trigger to end, with its progress on the way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeVar

import requests
from obstore.exceptions import BaseError
from obstore.store import ObjectStore

from local.demo.airflow_api import AirflowApi, refused
from nightshift.run.ledger import Ledger
from nightshift.run.names import RunRef
from nightshift.run.plan import Plan, load_plan
from nightshift.store import ObjectStorage, StoreUnavailable

Answer = TypeVar("Answer")

TASKS: Final = ("plan", "extract", "infer", "seal", "publish", "audit")
ENDED: Final = ("success", "failed", "upstream_failed", "skipped", "removed")
POLL_S: Final = 0.5
PROGRESS_S: Final = 3.0
UNREACHABLE_S: Final = 180.0
"""How long a part of the stack may be away before the demo gives up. The supervisor restarts dead parts."""
LOG_LINES: Final = 15


class NightFailed(Exception):
    """The DAG run failed; the message names the task and shows the end of its log."""


@dataclass
class Night:
    """The result of a DAG run. seconds: by task, from the end of the previous task to its own."""

    run: RunRef
    rows_before: int
    rows_after: int
    seconds: dict[str, float] = field(default_factory=dict)


def spend(
    api: AirflowApi,
    store: ObjectStore,
    dag_id: str,
    partition: str,
    *,
    fresh: bool,
    since: datetime,
    say: Callable[[str], None],
    still_up: Callable[[], object],
) -> Night:
    """Runs the DAG for `partition`, or follows its run that was already under way at `since`. Raises NightFailed.

    If a part of the stack does not answer, waits for it as long as `still_up`, which is called all the time, does not raise.
    """
    patient = _Patience(still_up)
    run_id = patient(_follow_or_trigger, api, dag_id, partition, fresh, since, say)
    return _Watch(api, store, dag_id, run_id, say, patient).to_the_end()


class _Patience:
    """Asks again while a part of the stack does not answer: the supervisor restarts dead parts."""

    def __init__(self, still_up: Callable[[], object]) -> None:
        self._still_up = still_up

    def __call__(self, ask: Callable[..., Answer], *arguments: Any) -> Answer:
        """The answer. Raises NightFailed after `UNREACHABLE_S` without one, requests.HTTPError if the request is refused,
        and whatever `still_up` raises."""
        deadline = time.monotonic() + UNREACHABLE_S
        while True:
            self._still_up()
            try:
                return ask(*arguments)
            except (requests.RequestException, StoreUnavailable, BaseError, OSError) as error:
                if refused(error):
                    raise
                if time.monotonic() > deadline:
                    raise NightFailed(f"the stack has not answered for {UNREACHABLE_S:.0f} s: {error}") from error
                time.sleep(POLL_S)


def _follow_or_trigger(
    api: AirflowApi, dag_id: str, partition: str, fresh: bool, since: datetime, say: Callable[[str], None]
) -> str:
    for run in api.dag_runs(dag_id):
        conf = run.get("conf") or {}
        # If a fresh night was interrupted, continue it instead of starting another.
        wanted = conf.get("partition") == partition and (not fresh or conf.get("fresh"))
        # On a slow machine Airflow may finish it before its API answers.
        under_way = run["state"] in ("queued", "running") or (run["state"] == "success" and _moment(run["end_date"]) >= since)
        if wanted and under_way:
            say(f"continuing the DAG run {run['dag_run_id']}, which was interrupted")
            return str(run["dag_run_id"])
    run_id = f"demo__{partition}__{datetime.now().strftime('%Y%m%dT%H%M%S')}"
    api.trigger(dag_id, run_id, {"partition": partition, "fresh": fresh})
    say(f"triggered the DAG {dag_id} for partition {partition}")
    return run_id


class _Watch:
    """Prints each task's states and, during infer, the number of committed rows."""

    def __init__(
        self,
        api: AirflowApi,
        store: ObjectStore,
        dag_id: str,
        run_id: str,
        say: Callable[[str], None],
        patient: _Patience,
    ) -> None:
        self._api = api
        self._patient = patient
        self._store = store
        self._dag_id = dag_id
        self._run_id = run_id
        self._say = say
        self._shown: dict[str, str] = {}
        self._run: RunRef | None = None
        self._plan: Plan | None = None
        self._rows_before = 0
        self._rows_shown = -1
        self._first_rows_at: tuple[float, int] | None = None
        self._next_progress = 0.0

    def to_the_end(self) -> Night:
        while True:
            state, tasks = self._patient(self._look)
            if state == "failed":
                raise NightFailed(self._patient(self._why, tasks))
            if state == "success":
                return self._patient(self._night, tasks)
            time.sleep(POLL_S)

    def _look(self) -> tuple[str, dict[str, dict[str, Any]]]:
        state = self._api.dag_run(self._dag_id, self._run_id)["state"]
        tasks = self._api.task_instances(self._dag_id, self._run_id)
        for name in TASKS:
            if name in tasks:
                self._show_task(name, tasks[name])
        if self._run is None and tasks.get("plan", {}).get("state") == "success":
            self._meet_run()
        if (tasks.get("infer", {}).get("state") or "") in ("running", "deferred") and time.monotonic() >= self._next_progress:
            self._next_progress = time.monotonic() + PROGRESS_S
            self._show_progress()
        return state, tasks

    def _show_task(self, name: str, task: dict[str, Any]) -> None:
        state = task["state"] or "waiting"
        # A deferred task is at work, in the triggerer or in the pods; queued and scheduled last only moments.
        shown = {"deferred": "running", "up_for_retry": "will be repeated"}.get(state, state)
        if shown not in ("running", "will be repeated", *ENDED) or self._shown.get(name) == shown:
            return
        self._shown[name] = shown
        took = f"{task['duration']:.1f} s" if shown in ENDED and task.get("duration") else ""
        self._say(f"{name:<8} {shown:<8} {took}".rstrip())

    def _meet_run(self) -> None:
        said = self._api.xcom(self._dag_id, self._run_id, "plan")
        self._run = RunRef.from_prefix(said["run_prefix"])
        self._plan = load_plan(self._store, self._run)
        self._rows_before = self._rows()
        self._say(f"the run is gs://nightshift/{self._run.prefix}")

    def _rows(self) -> int:
        """Rows of committed chunks, from the ledger alone."""
        assert self._run is not None
        self._plan = self._plan or load_plan(self._store, self._run)
        if self._plan is None:
            return 0
        plan = self._plan
        committed = asyncio.run(Ledger(ObjectStorage(self._store), self._run, plan).committed())
        return sum(len(plan.chunk_range(chunk)) for chunk in committed)

    def _show_progress(self) -> None:
        if self._run is None:
            return
        rows = self._rows()
        if self._plan is None or rows == self._rows_shown:
            return
        self._rows_shown = rows
        total = self._plan.rows
        if rows == total:
            self._say(f"infer    all {total} rows are committed")
            return
        if rows <= self._rows_before:
            already = f"{rows} of {total} rows are committed already, " if rows else ""
            self._say(f"infer    {already}{self._plan.workers} workers start: the engine loads the model, about a minute")
            return
        now = time.monotonic()
        if self._first_rows_at is None:
            self._first_rows_at = (now, rows)
            self._say(f"infer    {rows} of {total} rows")
            return
        since, before = self._first_rows_at
        rate = (rows - before) / (now - since)
        left = f"{(total - rows) / rate:.0f} s left" if rate else ""
        self._say(f"infer    {rows} of {total} rows, {rate:.0f} rows/s, {left}")

    def _night(self, tasks: dict[str, dict[str, Any]]) -> Night:
        if self._run is None:
            self._meet_run()
        assert self._run is not None
        night = Night(self._run, self._rows_before, self._rows())
        before = _moment(self._api.dag_run(self._dag_id, self._run_id)["start_date"])
        for name in TASKS:
            end = _moment(tasks[name]["end_date"])
            night.seconds[name] = (end - before).total_seconds()
            before = end
        return night

    def _why(self, tasks: dict[str, dict[str, Any]]) -> str:
        failed = next((name for name in TASKS if tasks.get(name, {}).get("state") == "failed"), None)
        if failed is None:
            return "the DAG run failed, though none of its tasks did: look at it in Airflow's UI"
        lines = self._api.log(self._dag_id, self._run_id, failed, tasks[failed]["try_number"])
        return f"the task {failed} failed; the end of its log:\n" + "\n".join(f"    {line}" for line in lines[-LOG_LINES:])


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)
