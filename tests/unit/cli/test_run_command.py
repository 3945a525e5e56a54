"""`nightshift run` against an Airflow of a few lines, over HTTP: what it asks, what it says, and its exit codes."""

from __future__ import annotations

import io
import json
import threading
import urllib.request
from collections.abc import Callable, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import google.auth
import pytest
from obstore.store import MemoryStore

from nightshift import exits
from nightshift.cli import airflow_rest, main
from nightshift.cli import run as command
from nightshift.cli.airflow_rest import AirflowApi, NoAirflow
from nightshift.cli.follow import again, words_of
from nightshift.cli.trouble import EMULATORS
from nightshift.operators.dag_docs import dag_docs
from nightshift.run import tolerance
from nightshift.run.names import RunRef
from nightshift.run.observed import endings
from nightshift.run.observed.endings import Ending, record
from nightshift.spec import load
from nightshift.store import open_store
from tests.chat_run import OPENED, a_chat_run

pytestmark = pytest.mark.unit

JOB = """\
job: tickets
owner: support
start_date: 2026-11-01
source: {query: "SELECT id, text FROM `d.t` WHERE day = @partition", key: [id]}
task: embedding
request: {input: "{{ text }}"}
model: {name: m, uri: hf://org/m, revision: r1}
engine: {max_num_seqs: 8}
destination: {table: d.out, column: vector}
deadline: 2h
compute: {profile: cpu}
"""
RUN = RunRef("tickets", "2026-11-20", "0" * 16)


class Airflow(ThreadingHTTPServer):
    """dags: by name, after how many questions it is there. states: of the DAG run and its tasks, one look after the other."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.dags: dict[str, int] = {"tickets": 0}
        self.paused = False
        self.due: str | None = None
        self.began = "2026-11-20T03:00:00Z"
        self.page = ""
        self.fileloc = "/elsewhere/dags/batch_inference.py"
        self.errors: list[dict[str, Any]] = []
        self.states: list[tuple[str, dict[str, str]]] = [("success", {"plan": "success", "publish": "success"})]
        self.published = {"table": "p.d.out", "partition": "2026-11-20", "predictions": 11, "dead_letters": 1}
        self.triggered: list[dict[str, Any]] = []
        self.log: Any = []
        self.tokens = 0
        self.refuse: tuple[int, Any] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        path, _, query = path.removeprefix("/api/v2").partition("?")
        if path == "/auth/token":
            self.tokens += 1
            return (201, {"access_token": "t"}) if body["password"] == "right" else (401, {"detail": "Invalid credentials"})
        if path == "/dags":
            of_dag = {"fileloc": self.fileloc, "is_paused": self.paused, "next_dagrun_run_after": self.due}
            last = self.states[0][0]
            wanted = last in parse_qs(query).get("last_dag_run_state", [last])
            return 200, {"dags": [{"dag_id": name, **of_dag} for name in self.dags if wanted]}
        if path == "/importErrors":
            return 200, {"import_errors": self.errors}
        _, _, name, *rest = path.split("/")
        if rest == ["details"]:
            return self._dag(name)
        if method == "POST" and self.refuse:
            return self.refuse
        if method == "POST":
            self.triggered.append(body)
            return 200, {}
        return 200, self._of_run(rest)

    def _dag(self, name: str) -> tuple[int, Any]:
        if self.dags.get(name, 1) > 0:
            if name in self.dags:
                self.dags[name] -= 1
            return 404, {"detail": "not found"}
        found = {"dag_id": name, "is_paused": self.paused, "doc_md": self.page, "fileloc": self.fileloc}
        return 200, {**found, "next_dagrun_run_after": self.due}

    def _of_run(self, rest: list[str]) -> Any:
        match rest[-1]:
            case "dagRuns":
                return {"dag_runs": [{"dag_run_id": "night", "state": self.states[0][0], "run_after": self.began}]}
            case "plan":
                return {"state": self.states[0][1]["plan"], "try_number": 1}
            case "return_value":
                return {"value": {"run_prefix": RUN.prefix} if "plan" in rest else self.published}
            case "taskInstances":
                _, tasks = self.states[0]
                found = [{"task_id": task, "state": state, "duration": 1.0, "try_number": 1} for task, state in tasks.items()]
                return {"task_instances": found}
            case _ if "logs" in rest:
                return {"content": self.log}
            case _:
                return {"state": (self.states.pop(0) if len(self.states) > 1 else self.states[0])[0]}


class _Handler(BaseHTTPRequestHandler):
    server: Airflow

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, found = self.server.answer(self.command, self.path, json.loads(body or b"null"))
        content = json.dumps(found).encode()
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "http://127.0.0.1:1/")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def airflow() -> Iterator[Airflow]:
    server = Airflow()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


Asked = Callable[..., int]


@pytest.fixture
def ask(airflow: Airflow, tmp_path: Path) -> Asked:
    def asked(job: str = "tickets", *, environment: dict[str, str] | None = None, **options: Any) -> int:
        given = {"partition": "2026-11-20", "wait": False, "fresh": False, "redo": None, "republish": None, **options}
        found = {"NIGHTSHIFT_AIRFLOW_URL": airflow.url, "NIGHTSHIFT_AIRFLOW_TOKEN": "t"} if environment is None else environment
        return command.run(command.Options(job, **given), found, lambda _: None)

    return asked


def test_a_run_is_triggered_with_what_was_asked(airflow: Airflow, ask: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(redo="corrected") == exits.DONE

    (body,) = airflow.triggered
    assert (body["conf"], body["logical_date"]) == ({"partition": "2026-11-20", "redo": "corrected"}, None)
    assert f"{airflow.url}/dags/tickets/runs/nightshift__2026-11-20__" in capsys.readouterr().out


class TestNightsWithoutARun:
    """A night that failed in its task plan has left nothing in the bucket."""

    @pytest.fixture(autouse=True)
    def bucket(self, airflow: Airflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        store = open_store(f"file://{tmp_path}")
        for module in ("trouble", "target"):
            monkeypatch.setattr(f"nightshift.cli.{module}.open_bucket", lambda url: store)
        for name, value in {"BUCKET": "b", "AIRFLOW_URL": airflow.url, "AIRFLOW_TOKEN": "t"}.items():
            monkeypatch.setenv(f"NIGHTSHIFT_{name}", value)
        airflow.states = [("failed", {"plan": "failed"})]
        airflow.log = [{"error_detail": [{"exc_value": "no such table"}]}]

    def test_status_and_runs_say_that_and_why(self, airflow: Airflow, capsys: pytest.CaptureFixture[str]) -> None:
        said = "The last night of tickets failed in its task plan: no such table"

        assert main(["status", "tickets"]) == exits.BAD_INPUT
        assert capsys.readouterr().err.startswith(said)
        assert main(["runs"]) == exits.DONE
        _, row, *why = capsys.readouterr().out.splitlines()
        assert row.split() == ["tickets", "-", "-", "failed", "2026-11-20", "03:00"]
        assert why == [f"  ! {said}", f"    Airflow's page: {airflow.url}/dags/tickets/runs/night"]
        assert main(["runs", "--json"]) == exits.DONE
        [night] = json.loads(capsys.readouterr().out)["without_run"]
        assert (night["job"], night["kind"], night["dag_run_id"]) == ("tickets", "failed", "night")

    def test_it_stands_among_the_runs_that_need_somebody_by_its_time(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        store = open_store(f"file://{tmp_path}")
        for hour, digest in ((-40, "a" * 16), (0, "b" * 16), (-30, "c" * 16)):
            run = a_chat_run(store, digest=digest, opened_at=OPENED + timedelta(hours=hour)).run
            if digest != "c" * 16:
                endings.record(store, run, endings.Ending("failed", "2200-01-01T00:00:00Z", "x", "infer", "No."))

        assert main(["runs"]) == exits.DONE

        rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("tickets")]
        assert [(row[2][:1], row[3]) for row in rows] == [("b", "failed"), ("-", "failed"), ("a", "failed"), ("c", "open")]

    @pytest.mark.parametrize(
        ("facts", "kind", "words"),
        [
            ({"paused": True, "due": "2999-01-01T00:00:00Z"}, "paused", "is paused in Airflow: no night of it begins until"),
            ({"paused": True, "states": [("queued", {})]}, "paused", "is paused in Airflow"),
            ({"states": [("queued", {})]}, "waiting", "no task of it has begun. Is Airflow's scheduler at work?"),
            ({"due": "2026-11-20T03:00:00Z"}, "overdue", "that was due at 2026-11-20T03:00:00Z has not begun"),
            ({"states": [("queued", {})], "began": "2999-01-01T00:00:00Z"}, None, ""),
            ({"paused": True}, None, ""),
            ({"due": "2999-01-01T00:00:00Z"}, None, ""),
        ],
    )
    def test_a_night_that_never_began_is_said(
        self, airflow: Airflow, capsys: pytest.CaptureFixture[str], facts: dict[str, Any], kind: str | None, words: str
    ) -> None:
        airflow.states = [("success", {"plan": "success"})]
        for name, value in facts.items():
            setattr(airflow, name, value)

        main(["runs", "--json"])
        assert [each["kind"] for each in json.loads(capsys.readouterr().out)["without_run"]] == ([kind] if kind else [])
        main(["runs"])
        assert words in capsys.readouterr().out
        main(["status", "tickets"])
        assert words in capsys.readouterr().err

    def test_a_dag_that_is_gone_is_said(self, tmp_path: Path, airflow: Airflow, capsys: pytest.CaptureFixture[str]) -> None:
        run = a_chat_run(open_store(f"file://{tmp_path}")).run
        airflow.dags.clear()

        assert main(["status", run.job]) == exits.DONE
        assert "Airflow has no DAG tickets: its file was removed, or Airflow cannot read it." in capsys.readouterr().err

    def test_a_job_with_an_older_run_is_told_of_its_last_night(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run = a_chat_run(open_store(f"file://{tmp_path}")).run

        assert main(["status", run.job]) == exits.DONE
        told = capsys.readouterr()
        assert run.prefix in told.out
        assert f"The last night of {run.job} failed in its task plan" in told.err
        assert main(["status", f"{run.job}/{run.partition}"]) == exits.DONE
        assert "failed in its task plan" not in capsys.readouterr().err

    def test_another_failure_has_a_run_and_without_airflow_the_place_is_named(
        self, airflow: Airflow, capsys: pytest.CaptureFixture[str]
    ) -> None:
        airflow.states = [("failed", {"plan": "success", "seal": "failed"})]

        assert main(["runs"]) == exits.DONE
        assert "failed in its task plan" not in capsys.readouterr().out
        airflow.shutdown()
        airflow.server_close()
        assert main(["status", "tickets"]) == exits.BAD_INPUT
        told = capsys.readouterr().err
        assert "opens no run: Airflow's page of the DAG says why" in told
        assert "Nights that opened no run may be missing here: Airflow does not answer" in told
        assert main(["runs"]) == exits.DONE
        assert "Nights that opened no run may be missing here: Airflow does not answer" in capsys.readouterr().err

    def test_where_no_airflow_is_named_none_is_missed(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.delenv("NIGHTSHIFT_AIRFLOW_URL")

        assert main(["runs"]) == exits.DONE
        assert capsys.readouterr().err == ""


def test_a_slip_in_the_name_says_what_may_have_been_meant(ask: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask("tikets") == exits.BAD_INPUT
    assert "Airflow has no DAG tikets. Did you mean tickets?" in capsys.readouterr().err


def test_a_new_file_is_waited_for_in_words(
    airflow: Airflow, ask: Asked, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tickets.yaml").write_text(JOB)
    airflow.dags["tickets"] = 3

    assert ask(str(tmp_path / "tickets.yaml")) == exits.DONE

    out = capsys.readouterr().out
    assert out.count("waiting until Airflow has read") == 1
    assert len(airflow.triggered) == 1


class TestWhichFile:
    """A file is what runs, or it is refused: Airflow would run the job of this name that it has."""

    @pytest.fixture
    def jobs(self, airflow: Airflow, tmp_path: Path) -> Path:
        """Airflow's folder of jobs, on this machine, with the job."""
        folder = tmp_path / "dags" / "jobs"
        folder.mkdir(parents=True)
        airflow.fileloc = str(folder.parent / "batch_inference.py")
        (folder / "tickets.yaml").write_text(JOB)
        airflow.page = dag_docs(load(folder / "tickets.yaml"), folder / "tickets.yaml")
        return folder

    def test_that_airflow_has_runs(self, airflow: Airflow, ask: Asked, jobs: Path, tmp_path: Path) -> None:
        (tmp_path / "copy.yaml").write_text(f"# The same.\n{JOB}")

        assert [ask(str(path)) for path in (jobs / "tickets.yaml", tmp_path / "copy.yaml")] == [exits.DONE] * 2

    def test_a_changed_copy_is_refused_at_once(
        self, airflow: Airflow, ask: Asked, jobs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "bad.yaml").write_text(JOB.replace("d.t", "d.gone"))

        assert ask(str(tmp_path / "bad.yaml")) == exits.BAD_INPUT

        said = capsys.readouterr()
        assert f"its job tickets is {jobs / 'tickets.yaml'}, and that says something else" in said.err
        assert "move the file there, or run what is there by its name: nightshift run tickets." in said.err
        assert (airflow.triggered, said.out) == ([], "")

    def test_a_new_job_elsewhere_is_refused_at_once(
        self, airflow: Airflow, ask: Asked, jobs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "new.yaml").write_text(JOB.replace("job: tickets", "job: letters"))
        airflow.dags["letters"] = 1000

        assert ask(str(tmp_path / "new.yaml")) == exits.BAD_INPUT
        assert f"is not in Airflow's folder of jobs, {jobs}." in capsys.readouterr().err

    def test_an_edited_file_is_waited_for(
        self, airflow: Airflow, ask: Asked, jobs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (jobs / "tickets.yaml").write_text(JOB.replace("d.t", "d.other"))
        monkeypatch.setattr(command, "READ_S", 2.0)

        assert ask(str(jobs / "tickets.yaml")) == exits.BAD_INPUT
        assert "a DAG tickets that says something else" in capsys.readouterr().err
        airflow.page = dag_docs(load(jobs / "tickets.yaml"), jobs / "tickets.yaml")
        assert ask(str(jobs / "tickets.yaml")) == exits.DONE
        assert len(airflow.triggered) == 1

    def test_of_an_airflow_elsewhere_the_content_decides(self, airflow: Airflow, ask: Asked, jobs: Path) -> None:
        airflow.fileloc = "/elsewhere/dags/batch_inference.py"

        assert ask(str(jobs / "tickets.yaml")) == exits.DONE
        (jobs / "tickets.yaml").write_text(JOB.replace("d.t", "d.other"))
        assert ask(str(jobs / "tickets.yaml")) == exits.BAD_INPUT


def test_what_airflow_cannot_read_is_said(
    airflow: Airflow, ask: Asked, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tickets.yaml").write_text(JOB)
    airflow.dags = {}
    airflow.errors = [{"stack_trace": "Traceback\ndags/jobs/tickets.yaml:7: job: The name is already used."}]

    assert ask(str(tmp_path / "tickets.yaml")) == exits.BAD_INPUT
    assert "dags/jobs/tickets.yaml:7: job: The name is already used." in capsys.readouterr().err


def test_a_file_with_mistakes_asks_airflow_nothing(
    airflow: Airflow, ask: Asked, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tickets.yaml").write_text(JOB.replace("{{ text }}", "{{ txt }}"))

    assert ask(str(tmp_path / "tickets.yaml")) == exits.BAD_INPUT
    assert "Did you mean 'text'?" in capsys.readouterr().err
    assert ask(str(tmp_path / "gone.yaml")) == exits.BAD_INPUT
    assert airflow.triggered == []


def test_a_model_that_no_engine_here_will_find_triggers_nothing(
    airflow: Airflow, ask: Asked, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tickets.yaml").write_text(JOB)
    local = {"NIGHTSHIFT_RUNTIME": "local:/state", "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    where = {"NIGHTSHIFT_AIRFLOW_URL": airflow.url, "NIGHTSHIFT_AIRFLOW_TOKEN": "t"}

    assert ask(str(tmp_path / "tickets.yaml"), environment=local | where) == exits.BAD_INPUT
    assert "The engine will not find hf://org/m" in capsys.readouterr().err
    assert airflow.triggered == []


def test_the_wait_watches_the_run_and_says_what_was_published(
    airflow: Airflow, ask: Asked, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = a_chat_run(MemoryStore(), job="tickets", partition="2026-11-20", digest=RUN.digest)
    run.commit(0)
    monkeypatch.setattr("nightshift.cli.follow.open_bucket", lambda url: run.store)
    airflow.states = [
        ("queued", {}),
        ("running", {"plan": "success", "infer": "deferred"}),
        ("running", {"plan": "success", "infer": "deferred"}),
        ("success", dict.fromkeys(("plan", "infer", "publish", "audit"), "success")),
    ]
    environment = {"NIGHTSHIFT_AIRFLOW_URL": airflow.url, "NIGHTSHIFT_AIRFLOW_TOKEN": "t", "NIGHTSHIFT_BUCKET": "b"}

    assert ask(wait=True, environment=environment) == exits.DONE

    out = capsys.readouterr().out
    assert f"{RUN.prefix}  chat by m\n" in out
    assert "25.0%  10 of 40 rows" in out
    assert "published 11 predictions in p.d.out, partition 2026-11-20, 1 dead letter" in out


def test_without_a_bucket_the_wait_says_the_end(airflow: Airflow, ask: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    airflow.states = [("running", {}), ("success", dict.fromkeys(("plan", "infer", "publish", "audit"), "success"))]

    assert ask(wait=True) == exits.DONE
    assert "published 11 predictions in p.d.out, partition 2026-11-20, 1 dead letter" in capsys.readouterr().out


def test_a_failed_night_says_which_task_and_its_words_and_where_the_dead_letters_are(
    airflow: Airflow,
    ask: Asked,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = open_store(f"file://{tmp_path}")
    monkeypatch.setattr("nightshift.cli.follow.open_bucket", lambda url: store)
    record(
        store,
        RUN,
        Ending(
            "failed",
            "2026-11-21T02:00:00Z",
            "r",
            "seal",
            f"1 of 12 rows is a dead letter {tolerance.what_to_do('0', {})}",
            1,
            {"bad_input": 1},
            12,
        ),
    )
    airflow.states = [("failed", {"plan": "success", "seal": "failed", "publish": "upstream_failed"})]
    environment = {"NIGHTSHIFT_AIRFLOW_URL": airflow.url, "NIGHTSHIFT_AIRFLOW_TOKEN": "t", "NIGHTSHIFT_BUCKET": "b"}

    assert ask(wait=True, environment=environment) == exits.FAILED

    said = capsys.readouterr()
    assert "failed: seal: 1 of 12 rows is a dead letter (" in said.err
    assert "1 dead letter (1 bad_input): nightshift status tickets/2026-11-20 --dead-letters" in said.out
    assert "To do that from here: nightshift run tickets --partition 2026-11-20 --redo corrected\n" in said.err


def test_a_day_without_rows_is_published_with_a_warning_and_not_as_a_good_night(
    airflow: Airflow, ask: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    airflow.published |= {"predictions": 0, "dead_letters": 0, "partition": "2026-11-25"}

    assert ask(wait=True) == exits.DONE

    said = capsys.readouterr()
    assert "Warning: the query has no rows for 2026-11-25: published an empty partition of p.d.out." in said.err
    assert "published 0" not in said.out


@pytest.mark.parametrize(
    ("words", "commands"),
    [
        (tolerance.what_to_do("0", {"too_long": 3}), ["--redo corrected", "--redo dead_letters"]),
        ("Remove the cause, then trigger the DAG with fresh.", ["--fresh"]),
        ("Put them back and trigger the DAG with redo: corrected again.", ["--redo corrected"]),
        ("Trigger the DAG again.", [""]),
        ("no such table", []),
    ],
)
def test_what_airflow_is_to_be_triggered_with_is_a_line_to_paste(words: str, commands: list[str]) -> None:
    assert again(words, "tickets", "2026-11-20") == [
        f"nightshift run tickets --partition 2026-11-20 {each}".rstrip() for each in commands
    ]


def test_without_an_ending_the_log_has_the_words(airflow: Airflow, ask: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    airflow.states = [("failed", {"plan": "failed"})]
    airflow.log = [
        {"event": "begun"},
        {"event": "Task failed", "error_detail": [{"exc_type": "X", "exc_value": "no such table"}]},
    ]

    assert ask(wait=True) == exits.FAILED
    assert "failed: plan: no such table" in capsys.readouterr().err


def test_the_last_lines_of_a_log_without_an_error() -> None:
    assert words_of([{"event": "::group::x"}, {"event": "one"}, "two"]) == "one\ntwo"
    assert words_of("a\nb\n") == "a\nb"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fresh": True, "redo": "dead_letters"}, "--fresh and --redo contradict each other"),
        ({"fresh": True, "republish": "x"}, "--fresh and --republish"),
    ],
)
def test_params_that_contradict_each_other(ask: Asked, capsys: pytest.CaptureFixture[str], options: Any, words: str) -> None:
    assert ask(**options) == exits.BAD_INPUT
    assert words in capsys.readouterr().err


def test_a_paused_dag_and_a_conf_that_airflow_refuses(airflow: Airflow, ask: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    airflow.refuse = (400, {"detail": "Invalid input for param partition"})
    assert ask() == exits.BAD_INPUT
    assert "Invalid input for param partition" in capsys.readouterr().err
    airflow.paused = True
    assert ask() == exits.BAD_INPUT
    assert "is paused in Airflow" in capsys.readouterr().err


def as_google(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None]]:
    """This machine has a Google account; returns what it asks: (URL, credentials). A stand-in: neither Google nor Composer
    can be reached here."""
    asked: list[tuple[str, str | None]] = []

    class Account:
        token = "google"

        def refresh(self, _request: object) -> None: ...

    def sent(request: urllib.request.Request, timeout: float) -> io.BytesIO:
        asked.append((request.full_url, request.get_header("Authorization")))
        return io.BytesIO(b"{}")

    monkeypatch.setattr(google.auth, "default", lambda scopes: (Account(), "project"))
    monkeypatch.setattr(airflow_rest._OPENER, "open", sent)
    return asked


class TestWhereAndWho:
    def test_the_local_stacks_variables_are_enough(self, airflow: Airflow, ask: Asked, tmp_path: Path) -> None:
        (tmp_path / "passwords").write_text('{"admin": "right"}')
        local = {
            "AIRFLOW__API__BASE_URL": airflow.url,
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(tmp_path / "passwords"),
        }

        assert ask(environment=local) == exits.DONE
        assert airflow.tokens == 1

    def test_a_wrong_password_is_said_without_it(
        self, airflow: Airflow, ask: Asked, capsys: pytest.CaptureFixture[str]
    ) -> None:
        url = airflow.url.replace("//", "//me:wr0ng@")

        assert ask(environment={"NIGHTSHIFT_AIRFLOW_URL": url}) == exits.CONFIG
        said = capsys.readouterr().err
        assert "does not accept the user me" in said
        assert "wr0ng" not in said

    def test_nothing_is_known(self, ask: Asked, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        for name in EMULATORS:
            monkeypatch.delenv(name, raising=False)
        assert ask(environment={}) == exits.CONFIG
        said = capsys.readouterr().err
        assert "Set NIGHTSHIFT_AIRFLOW_URL" in said
        assert said.count("To use the local stack") == 1

    def test_nobody_answers(self, ask: Asked, capsys: pytest.CaptureFixture[str]) -> None:
        given = {"NIGHTSHIFT_AIRFLOW_URL": "http://127.0.0.1:9", "NIGHTSHIFT_AIRFLOW_TOKEN": "t"}

        assert ask(environment=given) == exits.RESUME
        said = capsys.readouterr().err
        assert "does not answer" in said
        assert "make" not in said

        assert ask(environment={**given, "STORAGE_EMULATOR_HOST": "http://127.0.0.1:1"}) == exits.RESUME
        assert "make status" in capsys.readouterr().err

    def test_no_redirect_gets_the_token(self, airflow: Airflow, ask: Asked, capsys: pytest.CaptureFixture[str]) -> None:
        airflow.refuse = (302, {})

        assert ask() == exits.CONFIG
        assert "a login is before it" in capsys.readouterr().err

    @pytest.mark.parametrize(
        "url",
        [
            "http://abc-dot-us-central1.composer.googleusercontent.com",
            "https://airflow.example",
            "https://composer.googleusercontent.com.example",
            "https://evilcomposer.googleusercontent.com",
            "https://x.composer.googleusercontent.com.",
            "https://x.composer.googleusercontent.com@airflow.example",
            "https://airflow.example/x.composer.googleusercontent.com",
        ],
    )
    @pytest.mark.parametrize("variable", ["NIGHTSHIFT_AIRFLOW_URL", "AIRFLOW__API__BASE_URL"])
    def test_googles_token_goes_to_composer_alone(self, url: str, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = as_google(monkeypatch)

        with pytest.raises(NoAirflow, match=r"Set NIGHTSHIFT_AIRFLOW_TOKEN.*Google token is sent only to Cloud Composer"):
            AirflowApi.from_environment({variable: url}).get("/dags")
        assert asked == []

    def test_composer_gets_googles_token(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = as_google(monkeypatch)
        url = "https://abc-dot-us-central1.composer.googleusercontent.com"

        AirflowApi.from_environment({"NIGHTSHIFT_AIRFLOW_URL": url}).get("/dags")

        assert asked == [(f"{url}/api/v2/dags", "Bearer google")]

    def test_the_stacks_password_goes_to_the_stack_alone(self, airflow: Airflow, tmp_path: Path) -> None:
        (tmp_path / "passwords").write_text('{"admin": "right"}')
        local = {
            "AIRFLOW__API__BASE_URL": "http://127.0.0.1:8080",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(tmp_path / "passwords"),
        }

        assert AirflowApi.from_environment(local).login == ("admin", "right")
        assert AirflowApi.from_environment({**local, "NIGHTSHIFT_AIRFLOW_URL": airflow.url}).login is None

    @pytest.mark.parametrize("url", ["ftp://host", "host.example", "https://"])
    def test_what_is_no_address(self, url: str) -> None:
        with pytest.raises(NoAirflow, match="Write https://HOST"):
            AirflowApi.from_environment({"NIGHTSHIFT_AIRFLOW_URL": url})
