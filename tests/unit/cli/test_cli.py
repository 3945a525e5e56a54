"""The command as a person runs it: a process with arguments, output and an exit code."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from nightshift import cli
from nightshift.cli import main, version
from nightshift.spec.schema import json_schema_text

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[3]
DEMO = "dags/jobs/package-embeddings.yaml"
BAD = "tests/unit/bad_jobs/many.yaml"
COMMAND = "import sys; sys.path.insert(0, 'plugins'); from nightshift.cli import entry; entry()"


def nightshift(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", COMMAND, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def test_help_names_the_commands() -> None:
    done = nightshift("--help")

    assert done.returncode == 0
    assert all(command in done.stdout for command in ("validate", "schema"))


def test_no_help_names_a_file_that_a_wheel_lacks() -> None:
    parser = cli.command_parser()
    helps = [parser.format_help()]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps += [each.format_help() for each in action.choices.values()]

    assert len(helps) > len(cli.COMMANDS)
    assert [text for text in helps if re.search(r"docs/|k8s/|\.md\b|\bmake [a-z]", text)] == []


def test_the_module_is_the_command() -> None:
    command = [sys.executable, "-m", "nightshift.cli", "--version"]
    done = subprocess.run(command, cwd=ROOT / "plugins", capture_output=True, text=True, check=True)

    assert re.fullmatch(r"nightshift \S+ \(code of commit ([0-9a-f]{40}(, with changes)?|unknown)\)\n", done.stdout)


def test_the_commit_is_said_as_far_as_it_is_known(tmp_path: Path) -> None:
    """Of a package in a checkout, in somebody else's checkout, and nowhere."""

    def git(*words: str) -> str:
        who = ("-c", "user.name=n", "-c", "user.email=n@example.com")
        return subprocess.run(["git", *who, *words], cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip()

    package = tmp_path / "plugins" / "nightshift"
    package.mkdir(parents=True)
    (package / "a.py").write_text("A = 1")
    assert version.commit(package) == "unknown"
    git("init", "--quiet")
    (tmp_path / "theirs").write_text("")
    git("add", "theirs")
    git("commit", "--quiet", "-m", "theirs")
    assert version.commit(package) == "unknown"
    git("add", ".")
    git("commit", "--quiet", "-m", "ours")
    ours = git("rev-parse", "HEAD")
    assert version.commit(package) == ours
    (tmp_path / "theirs").write_text("changed")
    git("commit", "--quiet", "-am", "theirs again")
    assert version.commit(package) == ours
    (package / "a.py").write_text("A = 2")
    assert version.commit(package) == f"{ours}, with changes"


def test_starting_imports_nothing_heavy() -> None:
    program = (
        "import sys; sys.path.insert(0, 'plugins'); import nightshift.cli;"
        "heavy = ('pydantic', 'pyarrow', 'jinja2', 'sqlglot', 'obstore', 'airflow', 'yaml');"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_output_and_exit_code_survive_threads_that_abort_a_closing_interpreter() -> None:
    """As obstore's do now and then. Here the interpreter aborts whenever it shuts down."""
    program = f"import atexit, os; atexit.register(os.abort); {COMMAND}"
    for arguments, code in ((["schema"], 0), (["validate", BAD], 2)):
        command = [sys.executable, "-c", program, *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        usual = nightshift(*arguments)

        assert (done.returncode, done.stdout, done.stderr) == (code, usual.stdout, usual.stderr)


def test_good_job_is_one_line() -> None:
    done = nightshift("validate", DEMO)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{DEMO}: valid: package-embeddings")
    assert len(done.stdout.splitlines()) == 1


def test_every_mistake_goes_to_stderr_and_the_code_is_2() -> None:
    expected = [
        line.removeprefix("#! ") for line in (ROOT / BAD).read_text(encoding="utf-8").splitlines() if line.startswith("#! ")
    ]
    done = nightshift("validate", BAD)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [f"{BAD}:{line}" for line in expected]


def test_good_job_beside_bad_and_absent_ones() -> None:
    done = nightshift("validate", BAD, DEMO, "absent.yaml")

    assert done.returncode == 2
    assert done.stdout.startswith(f"{DEMO}: valid: ")
    assert "absent.yaml: The file cannot be read: No such file or directory." in done.stderr


def test_a_folder_stands_for_its_job_files(tmp_path: Path) -> None:
    text = (ROOT / DEMO).read_text(encoding="utf-8")
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.yaml").write_text(text)
    (tmp_path / "b.yaml").write_text(text.replace("job: package-embeddings", "job: other"))
    done = nightshift("validate", str(tmp_path), str(tmp_path / "empty"))

    line = next(number for number, each in enumerate(text.splitlines(), 1) if each.startswith("  table: "))
    assert done.returncode == 2
    assert [each.partition(": ")[0] for each in done.stdout.splitlines()] == [str(tmp_path / "a.yaml")]
    shared, empty = done.stderr.splitlines()
    assert shared.startswith(
        f"{tmp_path}/b.yaml:{line}: destination.table: The table catalog.package_embeddings is already the "
    )
    assert empty == f"{tmp_path}/empty: The folder has no job files. Name one with *.yaml files."


def test_schema_is_the_published_one() -> None:
    done = nightshift("schema")

    assert (done.returncode, done.stdout) == (0, json_schema_text())


@pytest.mark.parametrize("arguments", [(), ("validate",), ("unknown",)])
def test_arguments_that_cannot_be_read(arguments: tuple[str, ...]) -> None:
    done = nightshift(*arguments)

    assert done.returncode == 2
    assert done.stderr.startswith("usage: nightshift")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sttus"], "nightshift: error: there is no command 'sttus': did you mean status?"),
        (["frobnicate"], "nightshift: error: there is no command 'frobnicate': nightshift --help lists them"),
        (
            ["plan", DEMO, "--partiton", "2026-11-20"],
            "nightshift plan: error: there is no option --partiton: did you mean --partition?",
        ),
        (
            ["plan", DEMO, "--partiton=2026-11-20"],
            "nightshift plan: error: there is no option --partiton: did you mean --partition?",
        ),
        (["costs", "--zzz"], "nightshift costs: error: there is no option --zzz: nightshift costs --help lists them"),
        (["stream", "redrve"], "did you mean `stream redrive`?"),
        (
            ["stream", "redrive", DEMO, "--reson", "x"],
            "nightshift stream redrive: error: there is no option --reson: did you mean --reason?",
        ),
    ],
)
def test_a_slip_is_told_with_what_may_have_been_meant(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)

    told = capsys.readouterr().err
    assert (ended.value.code, told.startswith("usage: nightshift")) == (2, True)
    assert told.rstrip().endswith(said)


@pytest.mark.parametrize("name", [*cli.COMMANDS, *cli.SUBCOMMANDS])
def test_every_help_says_its_exit_codes(name: str) -> None:
    module = import_module(f"nightshift.cli.{name.replace(' ', '_')}")

    assert re.search(r"\bExit codes: 0\b.*\b2\b", module.EPILOG)
    assert cli.EXTRAS.get(name) in (None, "airflow", "airflow,driver", "driver", "stream", "driver,stream")


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("nightshift st", {"status", "stream"}),
        ("nightshift status --dead", {"--dead-letters"}),
        ("nightshift stream redrive --re", {"--reason"}),
        ("nightshift stream redr", {"redrive"}),
        ("nightshift stream loa", {"load"}),
        ("nightshift frobnicate --", {"--help", "--version"}),
    ],
)
def test_a_shell_gets_completions(line: str, offered: set[str]) -> None:
    """As argcomplete's part in the shell asks for them: answers go to the file that is number 8."""
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": " ", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    command = ["bash", "-c", 'exec "$0" "$@" 8>&1 9>&2', sys.executable, "-c", COMMAND]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | asked, capture_output=True, text=True, check=False)

    assert {each.strip() for each in done.stdout.split()} == offered


def test_the_beginning_of_an_option_and_what_follows_two_dashes_are_no_slips(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "--str"]) == 0
    assert main(["validate", "--", "--absent.yaml"]) == 2
    assert "--absent.yaml: The file cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "package", "extras"),
    [
        (["stream"], "psycopg", "driver,stream"),
        (["stream"], "google.pubsub_v1", "driver,stream"),
        (["stream"], "uvloop", "driver,stream"),
        (["stream", "redrive"], "psycopg", "stream"),
        (["stream", "redrive"], "google.pubsub_v1", "stream"),
    ],
)
def test_a_missing_package_of_a_stream_is_named_with_what_to_install(words: list[str], package: str, extras: str) -> None:
    file = str(ROOT / "dags" / "streams" / "package-texts.yaml")
    told = {
        "ENGINE_URL": "http://127.0.0.1:1",
        "NIGHTSHIFT_SINK_URL": "postgresql://a@127.0.0.1:1/b",
        "NIGHTSHIFT_PROJECT": "p",
    }
    command = [sys.executable, "-c", f"import sys; sys.modules[{package!r}] = None; {COMMAND}", *words, file]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | told, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (2, "")
    needs = f"nightshift {' '.join(words)} needs the package {package}, which is not installed here: "
    assert done.stderr == f"{needs}pip install 'airflow-provider-nightshift[{extras}]'\n"
