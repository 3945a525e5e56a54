"""Follows a DAG run of a job to its end: the states of its tasks, the rows of its run, and what came of it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from nightshift import exits
from nightshift.cli.airflow_rest import AirflowApi, Refused, Unreachable
from nightshift.cli.trouble import NoAccount, open_bucket
from nightshift.fields.text import minutes, n
from nightshift.run.names import RunRef
from nightshift.run.observed import endings, pods_kept, pods_now
from nightshift.run.observed.pods_now import JobSetNow, Stage
from nightshift.status.survey import Survey
from nightshift.store import StoreUnavailable

if TYPE_CHECKING:
    from obstore.store import ObjectStore

    from nightshift.status.report import Status

TASKS: Final = ("plan", "extract", "infer", "seal", "publish", "audit")
ENDED: Final = ("success", "failed", "upstream_failed", "skipped", "removed")
POLL_S: Final = 1.0
ROWS_EVERY_S: Final = 10.0
AWAY_S: Final = 300.0
"""How long Airflow may be away in between: it may be restarted, and the night goes on."""
LOG_LINES: Final = 8
READ_S: Final = 2.0


class Follower:
    """One DAG run. sleep: waits. partition: None for the last one.

    What it tells goes to stdout, a line for each event."""

    def __init__(
        self,
        api: AirflowApi,
        dag_id: str,
        run_id: str,
        environment: Mapping[str, str],
        sleep: Callable[[float], None],
        partition: str | None = None,
    ) -> None:
        self._api, self._sleep = api, sleep
        self._dag_id, self._partition = dag_id, partition
        self._path = f"/dags/{dag_id}/dagRuns/{run_id}"
        self._page = api.page("dags", dag_id, "runs", run_id)
        self._bucket = environment.get("NIGHTSHIFT_BUCKET")
        self._began = time.monotonic()
        self._shown: dict[str, str] = {}
        self._run: RunRef | None = None
        self._survey: Survey | None = None
        self._rows_at = 0.0
        self._rows_said = ""

    def to_the_end(self) -> int:
        """The exit code. Raises Refused, Unreachable, NoAirflow."""
        while True:
            state, tasks = self._patiently()
            if state in ("success", "failed"):
                return self._tell(state, tasks)
            self._sleep(POLL_S)

    def _patiently(self) -> tuple[str, dict[str, dict[str, Any]]]:
        began, said = time.monotonic(), False
        while True:
            try:
                return self._look()
            except Unreachable as error:
                if time.monotonic() - began > AWAY_S:
                    raise
                if not said:
                    said = True
                    self._say(f"{error}; trying again")
                self._sleep(POLL_S)

    def _look(self) -> tuple[str, dict[str, dict[str, Any]]]:
        state = str(self._api.get(self._path)["state"])
        found = self._api.get(f"{self._path}/taskInstances", limit=100)["task_instances"]
        tasks = {str(each["task_id"]): each for each in found}
        for name in TASKS:
            if name in tasks:
                self._show(name, tasks[name])
        if (tasks.get("infer", {}).get("state") or "") in ("running", "deferred"):
            self._show_rows()
        return state, tasks

    def _show(self, name: str, task: Mapping[str, Any]) -> None:
        state = str(task.get("state") or "waiting")
        # A deferred task is at work, in the triggerer or in pods; queued and scheduled last only moments.
        shown = {"deferred": "running", "up_for_retry": "failed, and is repeated", "success": "done"}.get(state, state)
        if self._shown.get(name) == shown or state not in (*ENDED, "running", "deferred", "up_for_retry"):
            return
        if shown == "running" and name != "infer":
            return  # They take seconds; their ends say enough.
        self._shown[name] = shown
        took = f" in {minutes(float(task['duration']))}" if state in ENDED and task.get("duration") else ""
        if state not in ("upstream_failed", "removed"):
            self._say(f"{name} {shown}{took}")
        if name == "plan" and state == "success":
            self._meet_run()

    def _meet_run(self) -> None:
        """Finds the run in the bucket. Without a bucket that can be read, tasks' states are all that is shown."""
        try:
            value = self._api.get(f"{self._path}/taskInstances/plan/xcomEntries/return_value", deserialize="true")["value"]
            self._run = RunRef.from_prefix(str(value["run_prefix"]))
        except (KeyError, Refused, TypeError, ValueError):
            return
        if (store := self._store) is not None and self._bucket:
            url = self._run.url(self._bucket)
            self._survey = Survey(store, self._run, url)
            self._say(f"the run is {self._run.prefix}")

    @cached_property
    def _store(self) -> ObjectStore | None:
        if not self._bucket:
            return None
        try:
            return open_bucket(f"gs://{self._bucket}")
        except (NoAccount, ValueError):
            return None

    def _show_rows(self) -> None:
        if self._survey is None or time.monotonic() < self._rows_at:
            return
        self._rows_at = time.monotonic() + ROWS_EVERY_S
        try:
            status = self._survey.refresh(READ_S)
            jobsets = self._pods(status)
        except Exception as error:  # The night goes on: that its rows cannot be counted from here is said once.
            self._say(f"its rows cannot be counted from here: {error}")
            self._survey = None
            return
        if (words := _rows(status, jobsets)) != self._rows_said:
            self._rows_said = words
            self._say(words)

    def _pods(self, status: Status) -> tuple[JobSetNow, ...]:
        """Where the run's pods are, while it has no row yet. Raises StoreUnavailable."""
        store = self._store
        return pods_kept.load(store, status.run) if store is not None and not status.rows_done else ()

    def _tell(self, state: str, tasks: Mapping[str, Mapping[str, Any]]) -> int:
        states = {name: str(task.get("state")) for name, task in tasks.items()}
        if state == "success" and states.get("plan") == "skipped":
            self._say(f"nothing to compute: {self._last_words('plan', tasks)}")
            return exits.DONE
        ending = self._ending()
        if state == "success":
            published = self._published()
            if published and not int(published["predictions"]) + int(published["dead_letters"]):
                print(no_rows(str(published["partition"]), str(published["table"])), file=sys.stderr)
                return exits.DONE
            self._say(f"published{_counts(published)}")
            self._where_dead(ending)
            return exits.DONE
        failed = next((name for name in (*TASKS, *states) if states.get(name) == "failed"), None)
        words = ending.error if ending is not None and ending.state == endings.FAILED and ending.error else ""
        if not words and failed:
            words = self._last_words(failed, tasks)
        print(f"failed: {failed or 'no task says why'}{': ' + words if words else ''}", file=sys.stderr)
        self._where_dead(ending)
        for command in again(words, self._dag_id, self._run.partition if self._run else self._partition):
            print(f"To do that from here: {command}", file=sys.stderr)
        print(f"Its logs: {self._page}", file=sys.stderr)
        return exits.FAILED

    def _ending(self) -> endings.Ending | None:
        store = self._store
        if self._run is None or store is None:
            return None
        try:
            return endings.latest(store, self._run)
        except StoreUnavailable:
            return None

    def _published(self) -> dict[str, Any] | None:
        """What the task publish has returned: table, partition, predictions, dead_letters."""
        try:
            value = self._api.get(f"{self._path}/taskInstances/publish/xcomEntries/return_value", deserialize="true")["value"]
            named = {name: str(value[name]) for name in ("table", "partition")}
            return {**named, **{name: int(value[name]) for name in ("predictions", "dead_letters")}}
        except (KeyError, Refused, TypeError, ValueError):
            return None

    def _where_dead(self, ending: endings.Ending | None) -> None:
        if ending is None or not ending.dead_letters:
            return
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in ending.dead_reasons.items())
        assert self._run is not None
        count = n(ending.dead_letters, "dead letter")
        self._say(f"{count} ({reasons}): nightshift status {self._run.job}/{self._run.partition} --dead-letters")

    def _last_words(self, task: str, tasks: Mapping[str, Mapping[str, Any]]) -> str:
        return last_words(self._api, self._path, task, tasks[task].get("try_number"))

    def _say(self, text: str) -> None:
        print(f"{minutes(time.monotonic() - self._began):>7}  {text}", flush=True)


def _counts(published: Mapping[str, Any] | None) -> str:
    if published is None:
        return ""
    predictions, dead = n(published["predictions"], "prediction"), n(published["dead_letters"], "dead letter")
    return f" {predictions} in {published['table']}, partition {published['partition']}, {dead}"


def no_rows(partition: str, table: str) -> str:
    """A night without rows succeeds: its warning, in the words that a preview has for the same."""
    return (
        f"Warning: the query has no rows for {partition}: published an empty partition of {table}. If you meant another day, "
        "name another --partition; if the source is late, run this one again once it has rows."
    )


def again(words: str, job: str, partition: str | None) -> list[str]:
    """The commands that do what a failed task's message says to trigger the DAG with. partition: None for the last one."""
    of = f"nightshift run {job}" + (f" --partition {partition}" if partition else "")
    if "rigger the DAG with redo" in words:
        which = [value for value in ("corrected", "dead_letters") if value in words.partition("with redo")[2]]
        return [f"{of} --redo {value}" for value in which or ["dead_letters"]]
    if "rigger the DAG with fresh" in words or "rigger with fresh" in words:
        return [f"{of} --fresh"]
    return [of] if "rigger the DAG again" in words else []


def last_words(api: AirflowApi, path: str, task: str, tried: Any) -> str:
    """The end of a task's log: of its errors, else its last lines. path: of the DAG run; tried: the number of its last try."""
    try:
        content = api.get(f"{path}/taskInstances/{task}/logs/{int(tried or 1)}", full_content="true").get("content", [])
    except (Refused, Unreachable):
        return "its log cannot be read"
    return words_of(content)


def words_of(content: Any) -> str:
    """What a log says last: the value of its last error, else its last lines. content: of Airflow's reply."""
    if not isinstance(content, list):
        return "\n".join(str(content).strip().splitlines()[-LOG_LINES:])
    for entry in reversed(content):
        details = entry.get("error_detail") if isinstance(entry, dict) else None
        if details:
            return str(details[-1].get("exc_value") or details[-1].get("exc_type"))
    lines = [str(entry.get("event", "")) if isinstance(entry, dict) else str(entry) for entry in content]
    return "\n".join(line for line in lines if line.strip() and not line.startswith("::"))[-2_000:]


def waiting(jobsets: Sequence[JobSetNow]) -> str:
    """What the pods of a run wait for before it has its first row, as far as the task infer has written it."""
    if not jobsets:
        return "no pod is there yet"
    held = [(each.why or "paused") if each.stage is Stage.PAUSED else pods_now.waiting(each) for each in jobsets]
    return "; ".join(filter(None, held)) or "the first rows are computed"


def _rows(status: Status, jobsets: Sequence[JobSetNow]) -> str:
    if not status.planned:
        return "the rows are being exported"
    if not status.rows_total:
        return "the query has no rows"
    if not status.rows_done:
        return f"0 of {n(status.rows_total, 'row')}: {waiting(jobsets)}"
    speed = ""
    if status.paused is not None:
        speed = f", paused by {status.paused['by']}"
    elif status.rate:
        speed = f", {status.rate:,.0f} rows/s, {minutes((status.rows_total - status.rows_done) / status.rate)} left"
    dead = f", {n(status.dead_letters, 'dead letter')}" if status.dead_letters else ""
    return f"{status.rows_done:,} of {n(status.rows_total, 'row')}{speed}{dead}"
