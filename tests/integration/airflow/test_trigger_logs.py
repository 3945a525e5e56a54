"""What a trigger logs right before it fires, in Airflow's own triggerer: its two real processes, without a database.

The parent process reads the log 4 KiB at a time, and asks the database several times between two reads. As soon as it hears
that a trigger is done it forgets where that trigger's lines belong, read or not.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from airflow.executors.workloads.trigger import RunTrigger
from airflow.jobs.triggerer_job_runner import TriggerLoggingFactory, TriggerRunnerSupervisor
from airflow.models.trigger import Trigger

from nightshift.jobset.kubernetes.follow import Followed
from nightshift.triggers.jobset import KubernetesJobSetTrigger

pytestmark = [pytest.mark.integration, pytest.mark.gate]

LINES: Final = 100
"""About what a pod writes in an outage of a minute; 40 KiB on their way to the parent."""
DATABASE_S: Final = 0.2
"""How long the parent's queries take between two reads, on a busy machine."""
PATIENCE_S: Final = 600.0
NOBODY: Final[Any] = None
"""The task: it is asked for only where logs are copied to a bucket."""


class Burst:
    """A follower that has been without its cluster: all the lines come at once, and the JobSet's end with them."""

    signature = ""

    def __init__(self, sink: Callable[[str, str, str], None]) -> None:
        self._sink = sink

    async def run(self) -> Followed:
        for number in range(LINES):
            self._sink("pod", "driver", f"line {number}")
        return Followed("finished")

    def counts(self) -> Any:
        from nightshift.jobset.kubernetes.follow import JobSetCounts

        return JobSetCounts(wanted=1, running=0, short_s=0.0, held_s=0.0, disruptions=0, worked_s=0.0)


class BurstTrigger(KubernetesJobSetTrigger):
    """The product's own but for the cluster, which this test has none of."""

    def _follower(self, jobset: dict[str, Any]) -> Any:
        return Burst(self._sink(jobset["name"]))


class Parent(TriggerRunnerSupervisor):
    """Without a database, whose time it takes."""

    def load_triggers(self) -> None:
        time.sleep(DATABASE_S)

    def on_trigger_event(self, trigger_id: int, event: Any) -> None:
        self.fired = event

    def clean_unused(self) -> None:
        pass

    def heartbeat(self) -> None:
        pass

    def emit_metrics(self) -> None:
        pass


def test_the_last_lines_before_a_trigger_fires_are_in_the_tasks_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The child is forked from here.
    monkeypatch.setattr("nightshift.triggers.jobset.SETTLE_S", 0)
    log = tmp_path / "attempt=1.log"
    parent = Parent.start(job=None, capacity=10, queues=None)
    try:
        parent.logger_cache[1] = TriggerLoggingFactory(log_path=str(log), ti=NOBODY)
        kwargs = {"jobsets": [{"name": "night", "uid": "u"}], "namespace": "here", "deadline": time.time() + 600}
        path = f"{BurstTrigger.__module__}.{BurstTrigger.__name__}"
        parent.creating_triggers.append(RunTrigger(id=1, classpath=path, encrypted_kwargs=Trigger.encrypt_kwargs(kwargs)))

        end = time.monotonic() + PATIENCE_S
        while 1 in parent.logger_cache:
            assert time.monotonic() < end, "the trigger has not come to its end"
            parent.run_once()
    finally:
        parent.kill(force=True)

    said = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    assert [line for line in said if line.startswith("[pod driver]")] == [f"[pod driver] line {n}" for n in range(LINES)]
