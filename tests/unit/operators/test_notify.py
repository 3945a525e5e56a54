"""Who is told about a job's runs: what a job file may say, what its operator names, and what is told when something is due."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.definitions.callback import AsyncCallback
from airflow.sdk.exceptions import AirflowFailException
from airflow.serialization.serialized_objects import DagSerialization

from nightshift.hooks import notifiers as isolation
from nightshift.hooks.notifiers import NotNotified
from nightshift.operators import notices, notify
from nightshift.operators.notices import Notice
from nightshift.run.tolerance import ToleranceExceeded
from nightshift.spec import JobSpec, SpecErrors, notifiers
from nightshift.spec.loading import load
from tests.builders import a_spec
from tests.unit.dags.conftest import JOB_FILE, Parse, parse
from tests.unit.notices import Blackboard, Hanging

__all__ = ["parse"]

pytestmark = pytest.mark.unit

BOARD = "tests.unit.notices.Blackboard"
OPERATORS = """
board:
  notifier: tests.unit.notices.Blackboard
  arguments: {text: "{{ event }} of {{ dag_id }}", colour: red}
  jobs_may_set: [text]
closed:
  notifier: tests.unit.notices.Blackboard
async: {notifier: tests.unit.notices.AsyncBlackboard, arguments: {text: later}}
leaving: {notifier: tests.unit.notices.Leaving}
hanging: {notifier: tests.unit.notices.Hanging}
absent: {notifier: airflow.providers.absent.Notifier}
command: {notifier: nightshift.cli.__main__.Notifier}
plain: {notifier: tests.unit.notices.Any}
"""


@pytest.fixture(autouse=True)
def operators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The operator's file of a deployment."""
    file = tmp_path / "notifiers.yaml"
    file.write_text(OPERATORS)
    for name, value in {"NOTIFIERS": str(file), "BUCKET": "b", "PROJECT": "p"}.items():
        monkeypatch.setenv(f"NIGHTSHIFT_{name}", value)
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/x/")
    Blackboard.told.clear()
    Blackboard.contexts.clear()
    return file


def told(event: str, notifier: str = "board", **arguments: Any) -> JobSpec:
    return a_spec(notify={event: {"notifier": notifier, "arguments": arguments}})


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
            f"  {event}: {{notifier: board, arguments: {{text: 'run {{{{ run_id }}}}', list: [1, null, {{a: true}}]}}}}"
            for event in ("failed", "late", "too_many_dead_letters", "doubtful_answers")
        )

        assert self.mistakes(tmp_path, lines) == []

    @pytest.mark.parametrize(
        ("lines", "said"),
        [
            ("  fialed: {notifier: board}", "notify.fialed: There is no key 'fialed'"),
            ("  failed: {notifier: board, to: me}", "notify.failed.to: There is no key 'to'"),
            ("  failed: {arguments: {to: me}}", "notify.failed.notifier: "),
            ("  failed: {notifier: The Board}", "notify.failed.notifier: 'The Board' is not the name of a notifier"),
            ("  failed: {notifier: SlackNotifier}", "notify.failed.notifier: 'SlackNotifier' is not the name of a notifier"),
            ("  failed: {notifier: a..b}", "notify.failed.notifier: 'a..b' is not the name of a notifier"),
            ("  failed: {notifier: board, arguments: [to]}", "notify.failed.arguments: "),
            ("  failed: {notifier: board, arguments: {context: 1}}", "'context' is not the name of an argument"),
            ("  failed: {notifier: board, arguments: {a-b: 1}}", "'a-b' is not the name of an argument"),
            ("  failed: {notifier: board, arguments: {at: 2026-11-24}}", "The value of at is not a text"),
            ("  failed: {notifier: board, arguments: {text: '{{ conn.x.extra }}'}}", "'{{ conn.x.extra }}' is not filled in"),
            ("  failed: {notifier: board, arguments: {text: [{a: '{{ var.value.x }}'}]}}", "is not filled in"),
            ("  failed: {notifier: board, arguments: {text: '{% include \"/etc/passwd\" %}'}}", "is not filled in"),
            ("  failed: {notifier: board, arguments: {text: '{{ dag.dag_id }}'}}", "Did you mean {{ dag_id }}?"),
            ("  failed: {notifier: board, arguments: {text: '{{ runid }}'}}", "Did you mean {{ run_id }}?"),
        ],
    )
    def test_what_it_may_not_say(self, tmp_path: Path, lines: str, said: str) -> None:
        (message,) = self.mistakes(tmp_path, lines)

        assert said in message

    def test_a_class_is_refused_with_what_takes_its_place(self, tmp_path: Path) -> None:
        lines = "  failed: {notifier: a.b.SlackWebhookNotifier, arguments: {channel: '#x', text: '{{ dag.dag_id }} failed'}}"
        (message,) = self.mistakes(tmp_path, lines)

        assert "'a.b.SlackWebhookNotifier' is a class, and only the operator of the deployment names classes" in message
        written = message.partition("Write ")[2]
        assert written.startswith("{notifier: slack-webhook} here")
        entry = written.partition("NIGHTSHIFT_NOTIFIERS names: ")[2]
        (tmp_path / "new.yaml").write_text(entry)
        named = notifiers.read(tmp_path / "new.yaml").named["slack-webhook"]
        assert (named.notifier, named.arguments) == (
            "a.b.SlackWebhookNotifier",
            {"channel": "#x", "text": "{{ dag_id }} failed"},
        )

    def test_a_stored_job_of_0_2_0_may_name_a_class(self) -> None:
        """The runs that it opened are finished; the class is not made."""
        assert told("failed", BOARD, text="{{ dag.dag_id }}").notify is not None

    def test_braces_without_end_take_no_time(self, tmp_path: Path) -> None:
        text = "{{ " * 30_000

        (first, *_) = self.mistakes(tmp_path, f"  failed: {{notifier: board, arguments: {{text: '{text}'}}}}")
        assert "is not filled in" in first

    def test_it_changes_no_answers(self) -> None:
        assert told("failed").semantic() == a_spec().semantic()
        assert a_spec().under_terms_of(told("failed")).notify == told("failed").notify


class TestTheOperatorsFile:
    def refusal(self, file: Path, text: str | bytes) -> str:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(notifiers.NotifiersError) as caught:
            notifiers.read(file)
        return str(caught.value)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("- a", "It is not a mapping"),
            ("a: [", "This is not valid YAML"),
            (b"a: \xff", "The file cannot be read"),
            ("Board: {notifier: a.B}", "Board: It is not a name"),
            ("board: {notifier: B}", "board.notifier: 'B' is not the path of a class"),
            ("board: {notifer: a.B}", "board.notifer: "),
            ("board: {notifier: a.B}\nboard: {notifier: a.C}", "The key 'board' appears twice"),
            ("board: {notifier: a.B, jobs_may_set: [files]}", "'files' cannot be left to jobs"),
            ("board: {notifier: a.B, jobs_may_set: [template]}", "'template' cannot be left to jobs"),
            ("board: {notifier: a.B, jobs_may_set: [smtp_conn_id]}", "'smtp_conn_id' cannot be left to jobs"),
            ("board: {notifier: a.B, jobs_may_set: [local_path]}", "'local_path' cannot be left to jobs"),
            ("board: {notifier: a.B, arguments: {text: '{{ var.value.x }}'}}", "board.arguments.text: '{{ var.value.x }}'"),
            ("board: {notifier: a.B, arguments: {files: ['/x/{{ error }}']}}", "of a file or a connection is fixed"),
        ],
    )
    def test_what_it_may_not_say(self, operators: Path, text: str | bytes, said: str) -> None:
        assert said in self.refusal(operators, text)

    def test_a_pipe_or_a_device_is_not_read(self) -> None:
        with pytest.raises(notifiers.NotifiersError, match="It is a pipe or a device"):
            notifiers.read("/dev/zero")

    def test_it_is_not_read_from_the_folder_that_it_binds(self, operators: Path) -> None:
        link = operators.parent / "link"
        link.symlink_to(operators.parent)

        with pytest.raises(notifiers.NotifiersError, match="in the folder of jobs"):
            notifiers.read(link / operators.name, jobs=operators.parent)
        assert notifiers.read(operators, jobs=operators.parent / "jobs").named

    @pytest.mark.parametrize(
        ("spec", "said"),
        [
            (told("failed", "bord"), "names no notifier 'bord'. Did you mean 'board'?"),
            (told("failed", BOARD), "names no notifier"),
            (told("failed", colour="blue"), "has not left the argument 'colour' of board to jobs. Jobs may set text"),
            (told("failed", "closed", text="x"), "has not left the argument 'text' of closed to jobs. Jobs may set none"),
        ],
    )
    def test_what_a_job_may_not_refer_to(self, operators: Path, spec: JobSpec, said: str) -> None:
        (lines,) = notify.mistakes({Path("/d/jobs/a.yaml"): spec}, Path("/d"), str(operators)).values()

        assert said in lines[0]
        assert lines[0].startswith("jobs/a.yaml: notify.failed: ")

    def test_a_deployment_without_the_file_says_so(self) -> None:
        (lines,) = notify.mistakes({Path("/d/jobs/a.yaml"): told("late")}, Path("/d"), "").values()

        assert "Let its operator set NIGHTSHIFT_NOTIFIERS to the path of a YAML file that names board" in lines[0]

    def test_a_broken_one_costs_only_jobs_that_refer_to_it(self, operators: Path) -> None:
        operators.write_text("a: [")
        jobs = {Path("/d/a.yaml"): a_spec(), Path("/d/b.yaml"): told("late")}

        assert list(notify.mistakes(jobs, Path("/d"), str(operators))) == [Path("/d/b.yaml")]


class TestTheDag:
    LINES = """
  failed: {notifier: board, arguments: {text: failed}}
  late: {notifier: board}
"""

    def tellers(self, dag: Any) -> list[str]:
        """Its tasks that tell of dead letters."""
        return [
            task.task_id for task in dag.tasks if any(isinstance(each, notify.TooMany) for each in task.on_failure_callback)
        ]

    def test_a_job_without_it_has_none(self, parse: Parse) -> None:
        dag = parse(job=JOB_FILE.read_text()).dags["package-embeddings"]

        assert (dag.deadline, dag.has_on_failure_callback) == (None, False)
        assert self.tellers(dag) == []

    def test_it_has_a_callback_and_a_deadline(self, parse: Parse) -> None:
        dag = parse(job=job_text(self.LINES)).dags["package-embeddings"]

        callbacks: Any = dag.on_failure_callback
        assert callbacks == [Notice("package-embeddings", "failed", "board", {"text": "failed"})]
        alerts: Any = dag.deadline
        (alert,) = alerts
        # From midnight, when it is queued: 02:00 by its cron, the job's hour, and half an hour.
        assert alert.interval == timedelta(hours=3, minutes=30).total_seconds()
        assert alert.callback.path == AsyncCallback(notices.tell_late).path
        assert Notice(**json.loads(alert.callback.kwargs["notice"])) == Notice("package-embeddings", "late", "board")
        json.dumps(DagSerialization.to_dict(dag))

    def test_two_tasks_tell_of_dead_letters(self, parse: Parse) -> None:
        lines = "  too_many_dead_letters: {notifier: board, arguments: {text: dead}}"
        dag = parse(job=job_text(lines)).dags["package-embeddings"]

        assert self.tellers(dag) == ["infer", "seal"]

    @pytest.mark.parametrize("named", ["absent", "command", "leaving", "hanging"])
    def test_nothing_of_a_notifier_runs_when_it_is_parsed(self, parse: Parse, named: str) -> None:
        """`nightshift.cli.__main__` ends its process when it is imported."""
        events = "\n".join(
            f"  {event}: {{notifier: {named}}}" for event in ("failed", "late", "too_many_dead_letters", "doubtful_answers")
        )
        bag = parse(job=job_text(events))

        assert "package-embeddings" in bag.dags
        assert bag.import_errors == {}

    def test_a_name_that_the_operator_does_not_know_is_an_import_error_of_its_own(self, parse: Parse) -> None:
        other = job_text("  failed: {notifier: bord}").replace("package-embeddings", "other")
        bag = parse(good=JOB_FILE.read_text(), other=other.replace("catalog.package_embeddings", "catalog.other"))

        assert "package-embeddings" in bag.dags
        assert "other" not in bag.dags
        ((file, message),) = bag.import_errors.items()
        assert file.endswith("broken_jobs.py")
        assert "dags/jobs/other.yaml: notify.failed: " in message
        assert "names no notifier 'bord'. Did you mean 'board'?" in message

    @pytest.mark.parametrize(
        ("schedule", "hours"), [(None, 0), ("0 2 * * *", 2), ("30 4 1 * *", 4.5), ("0 3 * * mon", 3), ("0 5 29 2 *", 5)]
    )
    def test_a_scheduled_run_waits_from_midnight_for_its_cron(self, schedule: str | None, hours: float) -> None:
        assert notify.due_after(a_spec(schedule=schedule)) == timedelta(hours=hours)


class Secret(dict[str, str]):
    """Airflow's `conn`: it gives whatever it is asked for."""

    def __getattr__(self, name: str) -> str:
        return "a private key"


def context(**more: Any) -> dict[str, Any]:
    """What Airflow gives a callback."""
    run = {"dag_id": "j", "dag_run_id": "scheduled__x", "logical_date": "2026-11-20T00:00:00+00:00", "conf": {}}
    return {"conn": Secret(), "var": Secret(), "dag_run": run, "reason": "task_failure", **more}


class TestWhenItIsDue:
    def tell(self, spec: JobSpec, given: Mapping[str, Any] | None = None) -> str:
        callbacks = notify.when_failed(spec)
        assert callbacks is not None
        given_context: Any = given or context()
        callbacks[0](given_context)
        return Blackboard.told[-1]

    def test_texts_are_filled_in(self) -> None:
        text = "{{dag_id}}|{{ run_id }}|{{ partition }}|{{ task_id }}|{{ event }}|{{ error }}|{{ url }}"

        page = f"https://airflow.example/x/dags/{a_spec().job}/runs/scheduled__x"
        said = f"{a_spec().job}|scheduled__x|2026-11-20||failed|task_failure|{page}"
        assert self.tell(told("failed", text=text)) == said
        assert self.tell(told("failed")) == f"failed of {a_spec().job}"

    def test_the_first_task_that_failed_says_why(self) -> None:
        """Airflow gives the callback of a DAG no exception, and the last task: one that could not go on after the first."""
        kept = {"seal": "8 of 20 rows are dead letters.\nRaise the tolerance.", "audit_failure": "BigQuery is away."}

        class LastTask:
            task_id = "audit_failure"

            def xcom_pull(self, *, task_ids: str, key: str) -> Any:
                assert key == "error"
                return kept.get(task_ids, [])  # as Airflow's own does if there is none

        dag = SimpleNamespace(tasks=[SimpleNamespace(task_id=name) for name in ("plan", "seal", "audit_failure")])
        text = "{{ task_id }}: {{ error }}"

        said = self.tell(told("failed", text=text), context(dag=dag, ti=LastTask()))
        assert said == "seal: 8 of 20 rows are dead letters. Raise the tolerance."
        doubtful = notify.when_answers_are_doubtful(told("doubtful_answers", text=text))
        assert doubtful is not None
        given: Any = context(dag=dag, ti=LastTask(), task=SimpleNamespace(doubts=lambda: "All answers are cut."))
        doubtful[0](given)
        assert Blackboard.told[-1] == "audit_failure: All answers are cut.", "what a task said before is no part of others"

    def test_what_a_task_said_may_be_out_of_reach(self) -> None:
        def unreachable(**_: Any) -> None:
            raise ConnectionError

        dag = SimpleNamespace(tasks=[SimpleNamespace(task_id="plan")])
        ti = SimpleNamespace(task_id="plan", xcom_pull=unreachable)

        assert self.tell(told("failed", text="{{ error }}"), context(dag=dag, ti=ti)) == "task_failure"

    def test_neither_a_template_nor_a_file_nor_a_context_of_airflow(self) -> None:
        """What an error brings is not looked at again, and a text that ends like a file's name is a text."""
        error = RuntimeError("{{ conn.x.extra }} {{ var.value.y }} {{ run_id }} {% raw %}")
        assert self.tell(told("failed", text="{{ error }}"), context(exception=error)) == str(error)
        assert self.tell(told("failed", text="/etc/hosts.txt")) == "/etc/hosts.txt"
        assert set(Blackboard.contexts[-1]) == {"dag_id", "run_id", "partition", "task_id", "event", "error", "url"}
        assert all(isinstance(value, str) for value in Blackboard.contexts[-1].values())

    @pytest.mark.parametrize(
        ("spec", "run", "partition"),
        [
            ({}, {"logical_date": "2026-11-20T09:00:00+00:00"}, "2026-11-19"),
            ({}, {"conf": {"partition": "2026-11-03"}}, "2026-11-03"),
            ({}, {"conf": {"partition": "nonsense"}}, ""),
            ({}, {"conf": ["x"]}, ""),
            ({}, {"logical_date": None, "run_after": None}, ""),
            ({}, None, ""),
            ({"every": "10m", "schedule": None}, {"logical_date": "2026-11-20T09:10:00+00:00"}, "2026-11-20T0910"),
            ({"every": "10m", "schedule": None}, {"conf": {"partition": "2026-11-03T0710"}}, "2026-11-03T0710"),
        ],
    )
    def test_the_partition(self, spec: dict[str, Any], run: dict[str, Any] | None, partition: str) -> None:
        notice = Notice("j", "failed", "board", {}, spec.get("every"))
        whole = context()["dag_run"] | run if run is not None else None

        assert notice.places(context(dag_run=whole))["partition"] == partition

    def test_an_error_is_one_short_line_and_no_html(self, operators: Path) -> None:
        operators.write_text("page: {notifier: tests.unit.notices.Page, arguments: {html_content: '<p>{{ error }}'}}")
        self.tell(told("failed", "page"), context(exception=ValueError("<script>\n" + "x" * 9000)))

        assert Blackboard.told[-1].startswith("<p>&lt;script&gt; xxx")
        assert len(Blackboard.told[-1]) < 600

    @pytest.mark.parametrize(
        ("named", "said"),
        [
            ("leaving", "SystemExit: 3"),
            ("command", "SystemExit"),
            ("absent", "airflow.providers.absent.Notifier cannot be imported here: No module"),
            ("plain", "is not a notifier of Airflow"),
            ("unknown", "names no notifier 'unknown'"),
        ],
    )
    def test_what_goes_wrong_is_an_error_that_airflow_catches(self, named: str, said: str) -> None:
        with pytest.raises(NotNotified, match=said):
            self.tell(told("failed", named))

    def test_arguments_that_the_class_does_not_have(self, operators: Path) -> None:
        operators.write_text(f"board: {{notifier: {BOARD}, arguments: {{size: 3}}}}")
        with pytest.raises(NotNotified, match="unexpected keyword argument 'size'"):
            self.tell(told("failed"))

    def test_one_that_hangs_holds_nothing_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(isolation, "LIMIT_S", 0.2)
        with pytest.raises(NotNotified, match="has not ended within"):
            self.tell(told("failed", "hanging"))

    def test_a_signal_reaches_airflow_meanwhile(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its own shutdown is not the notifier's to catch."""
        Hanging.begun.clear()

        def interrupt() -> None:
            # Not earlier: outside of what is tested, nothing catches it.
            Hanging.begun.wait()
            os.kill(os.getpid(), signal.SIGTERM)

        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                self.tell(told("failed", "hanging"))
        finally:
            thread.join()
            signal.signal(signal.SIGTERM, before)

    @pytest.mark.parametrize(
        ("state", "said"),
        [
            ("running", "It is not over at its deadline"),
            ("queued", "It has not begun at its deadline"),
            ("failed", "It has failed, and was not published before its deadline"),
            ("success", "It has ended, but after its deadline"),
        ],
    )
    async def test_a_late_run_is_told_by_the_triggerer(self, state: str, said: str) -> None:
        alert = notify.when_late(told("late", text="{{ partition }}: {{ error }} {{ url }}"))
        assert alert is not None
        deadline = {"id": "1", "deadline_time": "2026-11-21T03:30Z"}
        run = {**context()["dag_run"], "state": state}
        await notices.tell_late(**alert.callback.kwargs, context={"dag_run": run, "deadline": deadline})

        page = f"https://airflow.example/x/dags/{a_spec().job}/runs/scheduled__x"
        assert Blackboard.told == [f"2026-11-20: {said}, 2026-11-21T03:30Z {page}"]

    async def test_one_that_can_only_be_awaited(self) -> None:
        alert = notify.when_late(told("late", "async"))
        assert alert is not None
        await notices.tell_late(**alert.callback.kwargs)

        assert Blackboard.told == ["later"]

    async def test_one_that_leaves_does_not_end_the_triggerer(self) -> None:
        alert = notify.when_late(told("late", "leaving"))
        assert alert is not None
        with pytest.raises(NotNotified, match="SystemExit"):
            await notices.tell_late(**alert.callback.kwargs)


class TestDoubtful:
    @pytest.mark.parametrize("words", ["", "Look at some prompts: 20 of 20 answers are empty."])
    def test_only_answers_that_are_doubtful_are_told_with_what_to_do(self, words: str) -> None:
        callbacks = notify.when_answers_are_doubtful(told("doubtful_answers", text="{{ event }}: {{ error }}"))
        assert callbacks is not None
        (callback,) = callbacks
        given: Any = {"task": SimpleNamespace(doubts=lambda: words), "dag": None}
        callback(given)

        assert Blackboard.told == ([f"doubtful_answers: {words}"] if words else [])

    def test_the_task_seal_tells_of_them(self, parse: Parse) -> None:
        dag = parse(job=job_text("  doubtful_answers: {notifier: board, arguments: {text: odd}}")).dags["package-embeddings"]

        assert [task.task_id for task in dag.tasks if getattr(task, "on_success_callback", None)] == ["seal"]


class TestEmpty:
    @pytest.mark.parametrize("words", ["", "The query has no rows for 2026-11-20, and source.empty is fail."])
    def test_a_night_without_rows_is_told_however_the_task_plan_ends(self, words: str) -> None:
        callbacks = notify.when_empty(told("empty", text="{{ event }}: {{ error }}"))
        assert callbacks is not None
        (callback,) = callbacks
        given: Any = {"task": SimpleNamespace(empty=words), "dag": None, "exception": AirflowFailException("another error")}
        callback(given)

        assert Blackboard.told == ([f"empty: {words}"] if words else [])

    def test_the_task_plan_tells_of_it_and_only_publish_fires_the_asset(self, parse: Parse) -> None:
        dag = parse(job=job_text("  empty: {notifier: board, arguments: {text: odd}}")).dags["package-embeddings"]
        plan: Any
        plan, publish = dag.task_dict["plan"], dag.task_dict["publish"]

        for callbacks in (plan.on_success_callback, plan.on_failure_callback):
            assert [each.about for each in callbacks if isinstance(each, notify.Said)] == ["empty"]
        assert plan.on_retry_callback in (None, [])
        assert [task.task_id for task in dag.tasks if getattr(task, "outlets", None)] == ["publish"]
        assert "plan" in publish.get_flat_relative_ids(upstream=True)
        assert {task.trigger_rule for task in dag.tasks if task.task_id not in ("audit", "audit_failure")} == {"all_success"}


class TestTooMany:
    def ends(self, error: BaseException, task: object = None) -> list[str]:
        callbacks = notify.when_too_many_die(told("too_many_dead_letters", text="oh"))
        assert callbacks is not None
        (callback,) = callbacks
        given: Any = {"exception": error, "task": task, "dag": None}
        callback(given)
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
