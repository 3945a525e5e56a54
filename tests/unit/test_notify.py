"""Who is told about a job's runs: what a job file may say, and what its DAG has."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.definitions.callback import AsyncCallback, SyncCallback
from airflow.sdk.exceptions import AirflowFailException
from airflow.serialization.serialized_objects import DagSerialization

from nightshift.operators import notify
from nightshift.run.tolerance import ToleranceExceeded
from nightshift.spec import JobSpec, SpecErrors
from nightshift.spec.loading import load
from tests.builders import a_spec
from tests.unit.dags.conftest import JOB_FILE, Parse, parse
from tests.unit.notices import AsyncBlackboard, Blackboard

__all__ = ["parse"]

pytestmark = pytest.mark.unit

BOARD = "tests.unit.notices.Blackboard"


def told(event: str, notifier: str = BOARD, **arguments: Any) -> JobSpec:
    return a_spec(notify={event: {"notifier": notifier, "arguments": arguments or {"text": "oh"}}})


def job_text(lines: str) -> str:
    return f"{JOB_FILE.read_text()}\nnotify:\n{lines}\n"


class TestTheJobFile:
    def mistakes(self, folder: Path, lines: str) -> list[str]:
        file = folder / "job.yaml"
        file.write_text(job_text(lines))
        try:
            load(file)
        except SpecErrors as errors:
            return [f"{each.field}: {each.problem} {each.remedy}" for each in errors.errors]
        return []

    def test_a_notifier_for_each_event(self, tmp_path: Path) -> None:
        lines = "\n".join(
            f"  {event}: {{notifier: {BOARD}, arguments: {{text: 'run {{{{ run_id }}}}', list: [1, null, {{a: true}}]}}}}"
            for event in ("failed", "late", "too_many_dead_letters")
        )

        assert self.mistakes(tmp_path, lines) == []

    @pytest.mark.parametrize(
        ("lines", "said"),
        [
            (f"  fialed: {{notifier: {BOARD}}}", "notify.fialed: There is no key 'fialed'"),
            (f"  failed: {{notifier: {BOARD}, to: me}}", "notify.failed.to: There is no key 'to'"),
            ("  failed: {arguments: {to: me}}", "notify.failed.notifier: "),
            ("  failed: {notifier: SlackNotifier}", "notify.failed.notifier: 'SlackNotifier' is not the path of a class"),
            ("  failed: {notifier: a.b c}", "notify.failed.notifier: 'a.b c' is not the path of a class"),
            ("  failed: {notifier: a..b}", "notify.failed.notifier: 'a..b' is not the path of a class"),
            (f"  failed: {{notifier: {BOARD}, arguments: [to]}}", "notify.failed.arguments: "),
            (f"  failed: {{notifier: {BOARD}, arguments: {{context: 1}}}}", "'context' is not the name of an argument"),
            (f"  failed: {{notifier: {BOARD}, arguments: {{a-b: 1}}}}", "'a-b' is not the name of an argument"),
            (f"  failed: {{notifier: {BOARD}, arguments: {{at: 2026-11-24}}}}", "The value of at is not a text"),
        ],
    )
    def test_what_it_may_not_say(self, tmp_path: Path, lines: str, said: str) -> None:
        (message,) = self.mistakes(tmp_path, lines)

        assert said in message

    def test_it_changes_no_answers(self) -> None:
        assert told("failed").semantic() == a_spec().semantic()
        assert a_spec().under_terms_of(told("failed")).notify == told("failed").notify


class TestTheDag:
    LINES = f"""
  failed: {{notifier: {BOARD}, arguments: {{text: failed}}}}
  late: {{notifier: {BOARD}, arguments: {{text: late}}}}
"""

    def test_a_job_without_it_has_none(self, parse: Parse) -> None:
        dag = parse(job=JOB_FILE.read_text()).dags["package-embeddings"]

        assert (dag.deadline, dag.has_on_failure_callback) == (None, False)
        assert not any(task.has_on_failure_callback for task in dag.tasks)

    def test_it_has_a_callback_and_a_deadline(self, parse: Parse) -> None:
        dag = parse(job=job_text(self.LINES)).dags["package-embeddings"]

        callbacks: Any = dag.on_failure_callback
        assert [each.text for each in callbacks] == ["failed"]
        alerts: Any = dag.deadline
        (alert,) = alerts
        # From midnight, when it is queued: 02:00 by its cron, the job's hour, and half an hour.
        assert alert.interval == timedelta(hours=3, minutes=30)
        assert alert.callback == SyncCallback(BOARD, {"text": "late"})
        json.dumps(DagSerialization.to_dict(dag))

    def test_two_tasks_tell_of_dead_letters(self, parse: Parse) -> None:
        lines = f"  too_many_dead_letters: {{notifier: {BOARD}, arguments: {{text: dead}}}}"
        dag = parse(job=job_text(lines)).dags["package-embeddings"]

        assert [task.task_id for task in dag.tasks if task.on_failure_callback] == ["infer", "seal"]

    def test_a_notifier_that_is_not_installed_is_an_import_error_of_its_own(self, parse: Parse) -> None:
        other = job_text("  failed: {notifier: airflow.providers.absent.Notifier}").replace("package-embeddings", "other")
        bag = parse(good=JOB_FILE.read_text(), other=other.replace("catalog.package_embeddings", "catalog.other"))

        assert "package-embeddings" in bag.dags
        assert "other" not in bag.dags
        ((file, message),) = bag.import_errors.items()
        assert file.endswith("broken_jobs.py")
        assert (
            "dags/jobs/other.yaml: notify.failed: airflow.providers.absent.Notifier cannot be imported here: No module"
            in message
        )
        assert "Install its package wherever Airflow runs" in message


class TestNotifiers:
    @pytest.mark.parametrize(
        ("path", "said"),
        [
            ("tests.unit.notices.Whiteboard", "cannot be imported here"),
            ("tests.unit.notices.Any", "is not a notifier of Airflow"),
            (BOARD, "does not take these arguments"),
        ],
    )
    def test_what_cannot_be_made(self, path: str, said: str) -> None:
        with pytest.raises(notify.NoNotifier, match=said):
            notify.notifier_of(told("failed", path, colour="red").notify.failed)  # type: ignore[union-attr, arg-type]

    def test_one_that_can_wait_waits_in_the_triggerer(self) -> None:
        alert = notify.when_late(told("late", "tests.unit.notices.AsyncBlackboard"))

        assert alert is not None
        assert alert.callback == AsyncCallback("tests.unit.notices.AsyncBlackboard", {"text": "oh"})
        assert alert.interval == timedelta(hours=2) + notify.OVERHEAD

    async def test_it_is_called_as_airflow_calls_it(self) -> None:
        AsyncBlackboard.told.clear()
        await AsyncBlackboard("later")

        assert Blackboard.told == ["later"]

    @pytest.mark.parametrize(
        ("schedule", "hours"), [(None, 0), ("0 2 * * *", 2), ("30 4 1 * *", 4.5), ("0 3,9 * * mon", 3), ("0 5 29 2 *", 5)]
    )
    def test_a_scheduled_run_waits_from_midnight_for_its_cron(self, schedule: str | None, hours: float) -> None:
        assert notify.due_after(a_spec(schedule=schedule)) == timedelta(hours=hours)


class TestTooMany:
    @pytest.fixture(autouse=True)
    def _clean(self) -> None:
        Blackboard.told.clear()

    def ends(self, error: BaseException, task: object = None) -> list[str]:
        callbacks = notify.when_too_many_die(told("too_many_dead_letters"))
        assert callbacks is not None
        (callback,) = callbacks
        context: Any = {"exception": error, "task": task, "dag": None}
        callback(context)
        return list(Blackboard.told)

    def test_the_seals_refusal_is_told(self) -> None:
        error = AirflowFailException("9 dead letters")
        error.__cause__ = ToleranceExceeded("9 dead letters")

        assert self.ends(error) == ["oh"]

    @pytest.mark.parametrize(("too_many", "said"), [(True, ["oh"]), (False, [])])
    def test_drivers_that_stop_by_themselves_are_asked_for_by_the_ledger(self, too_many: bool, said: list[str]) -> None:
        task = SimpleNamespace(has_too_many_dead_letters=lambda: too_many)

        assert self.ends(AirflowFailException("exit code 78"), task) == said

    def test_any_other_failure_is_not(self) -> None:
        assert self.ends(RuntimeError("disk full")) == []
