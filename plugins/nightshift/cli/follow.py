"""Follows a DAG run of a job to its end, and says what came of it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from nightshift import exits
from nightshift.cli.airflow_rest import AirflowApi, Refused, Unreachable
from nightshift.cli.status_watch import Watch
from nightshift.cli.target import Target
from nightshift.cli.trouble import NoAccount, open_bucket
from nightshift.fields.text import n
from nightshift.run.names import RunRef
from nightshift.run.observed import endings
from nightshift.store import StoreUnavailable

if TYPE_CHECKING:
    from obstore.store import ObjectStore

TASKS: Final = ("plan", "extract", "infer", "seal", "publish", "audit")
POLL_S: Final = 1.0
LOOK_EVERY_S: Final = 10.0
AWAY_S: Final = 300.0
"""How long Airflow may be away in between: it may be restarted, and the night goes on."""
LOG_LINES: Final = 8


class Follower:
    """One DAG run: shows its run as `nightshift status --watch` does, until Airflow says that the DAG run is over.

    sleep: waits. partition: None for the last one.
    """

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
        self._run: RunRef | None = None
        self._watch: Watch | None = None
        self._look_at = 0.0

    def to_the_end(self) -> int:
        """The exit code. Raises Refused, Unreachable, NoAirflow."""
        away_since: float | None = None
        while True:
            try:
                state, away_since = str(self._api.get(self._path)["state"]), None
            except Unreachable as error:
                if away_since is None:
                    away_since = time.monotonic()
                    print(f"{error}; trying again", file=sys.stderr)
                if time.monotonic() - away_since > AWAY_S:
                    raise
                state = "away"
            if self._run is None:
                self._meet_run()
            if state in ("success", "failed"):
                found = self._api.get(f"{self._path}/taskInstances", limit=100)["task_instances"]
                return self._tell(state, {str(each["task_id"]): each for each in found})
            if self._watch is not None and time.monotonic() >= self._look_at:
                self._show(self._watch)
            self._sleep(POLL_S)

    def _meet_run(self) -> None:
        """Finds the run in the bucket, once the task plan has opened it. Without a bucket that can be read, only the end of the
        DAG run is said."""
        try:
            value = self._api.get(f"{self._path}/taskInstances/plan/xcomEntries/return_value", deserialize="true")["value"]
            self._run = RunRef.from_prefix(str(value["run_prefix"]))
        except (KeyError, Refused, TypeError, Unreachable, ValueError):
            return
        if (store := self._store) is not None and self._bucket:
            self._watch = Watch(Target(store, self._run, self._run.url(self._bucket)), None)

    @cached_property
    def _store(self) -> ObjectStore | None:
        if not self._bucket:
            return None
        try:
            return open_bucket(f"gs://{self._bucket}")
        except (NoAccount, ValueError):
            return None

    def _show(self, watch: Watch) -> None:
        self._look_at = time.monotonic() + LOOK_EVERY_S
        try:
            watch.look()
        except Exception as error:  # The night goes on: that its rows cannot be counted from here is said once.
            print(f"its rows cannot be counted from here: {error}", file=sys.stderr)
            self._watch = None

    def _tell(self, state: str, tasks: Mapping[str, Mapping[str, Any]]) -> int:
        states = {name: str(task.get("state")) for name, task in tasks.items()}
        if state == "success" and states.get("plan") == "skipped":
            print(f"nothing to compute: {self._last_words('plan', tasks)}")
            return exits.DONE
        ending = self._ending()
        if state == "success":
            published = self._published()
            if published and not int(published["predictions"]) + int(published["dead_letters"]):
                print(no_rows(str(published["partition"]), str(published["table"])), file=sys.stderr)
                return exits.DONE
            print(f"published{_counts(published)}")
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
        print(f"{count} ({reasons}): nightshift status {self._run.job}/{self._run.partition} --dead-letters")

    def _last_words(self, task: str, tasks: Mapping[str, Mapping[str, Any]]) -> str:
        return last_words(self._api, self._path, task, tasks[task].get("try_number"))


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
