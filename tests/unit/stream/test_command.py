"""The command line of `nightshift stream`: what it refuses before it talks to anybody, and what it says then."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from nightshift import cli
from nightshift.driver.drain import DrainOnSignal
from nightshift.stream import command, session
from nightshift.stream.options import NO_ENGINE, NO_SINK, Options
from nightshift.stream.ports import Locked, SinkRefused, Unavailable
from nightshift.stream.pubsub_client import PubSubRefused
from tests.unit.spec.test_stream import EXAMPLE, stream
from tests.unit.spec_file import DEMO, ROOT, write

pytestmark = pytest.mark.unit

ENGINE = "http://127.0.0.1:1"
SECRET = "geheim"
SINK = f"postgresql://nobody:{SECRET}@127.0.0.1:1/none"
BAD_SINK = f"nonsense=1 password={SECRET}"
VARIABLES = ("ENGINE_URL", "NIGHTSHIFT_SINK_URL", "NIGHTSHIFT_PROJECT")
LONG: dict[str, Any] = {
    "source__subscription": "projects/acme-prod/subscriptions/texts",
    "dead_letters": {"topic": "projects/acme-prod/topics/texts-dead"},
}


def nightshift_stream(file: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command with no other of its variables than these."""
    program = "import sys; sys.path.insert(0, 'plugins'); from nightshift.cli import main; sys.exit(main())"
    others = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    return subprocess.run(
        [sys.executable, "-c", program, "stream", str(file), *arguments],
        cwd=ROOT,
        env={**others, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({}, [NO_ENGINE, NO_SINK]),
        ({"NIGHTSHIFT_SINK_URL": SINK}, [NO_ENGINE]),
        ({"NIGHTSHIFT_SINK_URL": SINK, "ENGINE_URL": ""}, [NO_ENGINE]),
        ({"ENGINE_URL": ENGINE}, [NO_SINK]),
        ({"ENGINE_URL": ENGINE, "NIGHTSHIFT_SINK_URL": ""}, [NO_SINK]),
    ],
)
def test_all_missing_variables_are_said_at_once(environment: dict[str, str], said: list[str]) -> None:
    done = nightshift_stream(EXAMPLE, **environment)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == said


def test_the_engine_may_be_named_on_the_command_line() -> None:
    done = nightshift_stream(EXAMPLE, "--engine-url", ENGINE)

    assert done.stderr.splitlines() == [NO_SINK]


@pytest.mark.parametrize("arguments", [["--metrics-port", "70000"], ["--metrics-port", "x"], ["--unknown"]])
def test_arguments_that_cannot_be_read(arguments: list[str]) -> None:
    done = nightshift_stream(EXAMPLE, *arguments, ENGINE_URL=ENGINE, NIGHTSHIFT_SINK_URL=SINK)

    assert done.returncode == 2
    assert done.stderr.startswith("usage: nightshift")


def test_everything_that_is_said_reaches_the_subscriber(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Options] = []

    class Ended(Exception):
        """In place of the end of the process."""

    def run(options: Options) -> int:
        found.append(options)
        raise Ended

    monkeypatch.setattr(command, "run", run)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setenv("NIGHTSHIFT_SINK_URL", SINK)
    monkeypatch.setenv("NIGHTSHIFT_PROJECT", "acme-prod")
    with pytest.raises(Ended):
        cli.main(["stream", str(EXAMPLE), "--engine-url", ENGINE, "--metrics-port", "0", "--metrics-address", "::"])

    assert found == [Options(EXAMPLE, ENGINE, SINK, "acme-prod", 0, "::")]


@pytest.mark.parametrize(("changes", "project"), [(LONG, {}), ({}, {"NIGHTSHIFT_PROJECT": "acme-prod"})], ids=["long", "short"])
def test_with_long_names_or_a_project_only_the_wrong_address_is_said_without_its_password(
    tmp_path: Path, changes: dict[str, Any], project: dict[str, str]
) -> None:
    done = nightshift_stream(write(tmp_path, stream(**changes)), ENGINE_URL=ENGINE, NIGHTSHIFT_SINK_URL=BAD_SINK, **project)

    assert done.returncode == 2
    assert done.stderr.startswith("NIGHTSHIFT_SINK_URL is not an address of PostgreSQL: ")
    assert SECRET not in done.stderr + done.stdout


class TestTheFile:
    """In this process: nothing is begun that would have to end."""

    def refusal(self, capsys: pytest.CaptureFixture[str], file: Path, project: str | None = None) -> str:
        """The one line on stderr of a run that ends with code 2."""
        code = command.run(Options(file, ENGINE, SINK, project))
        output = capsys.readouterr()
        assert code == 2
        assert SECRET not in output.out + output.err
        (line,) = output.err.splitlines()
        return line

    def test_a_nightly_job_is_not_a_stream(self, capsys: pytest.CaptureFixture[str]) -> None:
        said = self.refusal(capsys, DEMO, "acme-prod")

        assert "source: The file describes a nightly job. Airflow runs it" in said

    def test_a_file_that_is_not_there_is_named(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        said = self.refusal(capsys, tmp_path / "absent.yaml", "acme-prod")

        assert said == f"{tmp_path}/absent.yaml: The file cannot be read: No such file or directory. Check its path."

    @pytest.mark.parametrize("project", [None, ""])
    def test_a_short_subscription_needs_a_project(self, capsys: pytest.CaptureFixture[str], project: str | None) -> None:
        said = self.refusal(capsys, EXAMPLE, project)

        assert said == (
            f"{EXAMPLE}: package-texts has no project. Write projects/PROJECT/subscriptions/package-texts, "
            "or set NIGHTSHIFT_PROJECT."
        )

    def test_a_short_topic_needs_one_too(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        file = write(tmp_path, stream(source__subscription="projects/acme-prod/subscriptions/texts"))

        assert self.refusal(capsys, file) == (
            f"{file}: package-texts-dead has no project. Write projects/PROJECT/topics/package-texts-dead, "
            "or set NIGHTSHIFT_PROJECT."
        )

    def test_a_broken_avro_schema_is_said_with_the_file(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        schema = {"type": "record", "name": "T", "fields": [{"name": "text", "type": "letters"}]}
        source = {"subscription": "texts", "format": "avro", "avro_schema": schema}
        file = write(tmp_path, stream(source=source, request={"input": "{{ text }}", "dimensions": 384}))

        said = self.refusal(capsys, file, "acme-prod")
        assert said.startswith(f"{file}: source.avro_schema is not an Avro schema: ")
        assert "letters" in said


class _Door:
    """A sink that opens after these errors."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.tries = 0

    async def open(self) -> None:
        self.tries += 1
        if self.errors:
            raise self.errors.pop(0)


class TestTheSinkAtTheStart:
    @pytest.fixture(autouse=True)
    def no_waiting(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(command, "AGAIN_S", 0.001)

    def open(self, door: _Door) -> bool:
        async def main() -> bool:
            drain = DrainOnSignal()
            return await command._reached("the sink", door.open, drain)

        return asyncio.run(main())

    def test_one_that_is_away_is_waited_for(self) -> None:
        door = _Door(*(Unavailable("no route") for _ in range(50)))

        assert self.open(door)
        assert door.tries == 51

    def test_one_that_does_not_let_us_in_ends_the_process_with_its_words(self) -> None:
        door = _Door(*(Locked("password authentication failed") for _ in range(50)))
        with pytest.raises(SinkRefused, match="the sink said so 6 times: password authentication failed"):
            self.open(door)

        assert door.tries == command.LOCKED_TRIES

    def test_a_password_that_is_changed_meanwhile_is_waited_for(self) -> None:
        assert self.open(_Door(*(Locked("password authentication failed") for _ in range(command.LOCKED_TRIES - 1))))

    def test_only_tries_in_a_row_count(self) -> None:
        errors = [Locked("no"), Locked("no"), Locked("no"), Unavailable("away")] * 3

        assert self.open(_Door(*errors))


@pytest.mark.parametrize(
    ("words", "locked"),
    [
        ('connection failed: FATAL:  password authentication failed for user "u"', True),
        ('connection failed: FATAL:  database "d" does not exist', True),
        ('connection failed: FATAL:  role "u" does not exist', True),
        ('connection failed: FATAL:  no pg_hba.conf entry for host "1.2.3.4", user "u"', True),
        ("connection failed: fe_sendauth: no password supplied", True),
        ("connection failed: FATAL:  the database system is starting up", False),
        ("connection failed: FATAL:  sorry, too many clients already", False),
        ("connection timeout expired", False),
        ("connection is bad: connection refused", False),
    ],
)
def test_which_words_of_a_server_mean_that_it_does_not_let_us_in(words: str, locked: bool) -> None:
    assert session._is_locked(psycopg.OperationalError(words)) == locked


def test_files_need_no_database(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = write(tmp_path, stream(sink={"files": "gs://bucket/answers", "column": "embedding"}))

    assert command.run(Options(file, "", "", None)) == 2
    assert capsys.readouterr().err == f"{NO_ENGINE}\n"


class TestTheEnd:
    """Which exit code an error means, and what the log says."""

    def lines(self, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
        return [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]

    def ends(self, monkeypatch: pytest.MonkeyPatch, error: Exception, tmp_path: Path) -> int:
        async def work(*_: Any) -> int:
            raise error

        monkeypatch.setattr(command, "_work", work)
        file = write(tmp_path, stream(**LONG))
        return command.run(Options(file, ENGINE, SINK, None))

    @pytest.mark.parametrize(
        "error",
        [
            PubSubRefused("NotFound: no such topic"),
            ExceptionGroup("parts", [PubSubRefused("NotFound: no such topic")]),
            ExceptionGroup("parts", [ExceptionGroup("more", [ValueError("x"), PubSubRefused("NotFound: no such topic")])]),
        ],
        ids=["alone", "in a group", "beside another one"],
    )
    def test_what_cannot_be_helped_ends_with_78_and_its_words(
        self, error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        """Parts of a subscriber fail in groups."""
        logging.getLogger().handlers.clear()

        assert self.ends(monkeypatch, error, tmp_path) == 78
        (line,) = [line for line in self.lines(capsys) if line["message"] == "cannot continue"]
        assert line["error"] == "PubSubRefused: NotFound: no such topic"

    def test_anything_else_ends_with_75_and_says_what_it_was(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        logging.getLogger().handlers.clear()

        assert self.ends(monkeypatch, ExceptionGroup("parts", [KeyError("a"), TypeError("b")]), tmp_path) == 75
        (line,) = [line for line in self.lines(capsys) if line["message"] == "unexpected error"]
        assert line["error"] == "KeyError('a'); TypeError('b')"
        assert "Traceback" in line["traceback"]


async def test_pubsub_is_waited_for_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "AGAIN_S", 0.001)
    tries: list[None] = []

    async def check() -> None:
        tries.append(None)
        if len(tries) < 20:
            raise Unavailable("no route")

    assert await command._reached("Pub/Sub", check, DrainOnSignal())
    assert len(tries) == 20


async def test_pubsub_is_not_waited_for_once_the_process_must_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "AGAIN_S", 0.001)
    drain = DrainOnSignal()

    async def check() -> None:
        drain.asked.set()
        raise Unavailable("no route")

    assert not await command._reached("Pub/Sub", check, drain)
