"""The wheel without an extra: every command says its help and either works or names in one line what it lacks."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from local.environments import ROOT
from nightshift import cli
from tests.integration.package import bare

pytestmark = [pytest.mark.integration, pytest.mark.gate]

RUN = "job/2026-11-20/0123456789abcdef"
DEPLOYMENT = {"NIGHTSHIFT_BUCKET": "b", "NIGHTSHIFT_PROJECT": "p"}


class Said(NamedTuple):
    """words: after the command. code: the exit code. begins: the first line of its output, or of its errors."""

    words: str
    code: int
    begins: str
    variables: Mapping[str, str] = {}


def lacks(words: str, command: str, package: str, extras: str, **variables: str) -> Said:
    install = f"pip install 'airflow-provider-nightshift[{extras}]'"
    begins = f"nightshift {command} needs the package {package}, which is not installed here: {install}"
    return Said(words, 2, begins, variables)


COMMANDS = {
    "validate": Said("job.yaml", 0, "job.yaml: valid: package-embeddings"),
    "schema": Said("", 0, "{"),
    "runs": Said("", 2, "nightshift runs: NIGHTSHIFT_BUCKET is not set"),
    "status": Said("job", 2, "nightshift status: NIGHTSHIFT_BUCKET is not set"),
    "pause": Said("file://{home}/" + RUN, 75, f"{RUN} is paused by ", DEPLOYMENT),
    "resume": Said("file://{home}/" + RUN, 2, f"nightshift resume: {RUN} is not paused"),
    "preview": lacks("job.yaml", "preview", "httptools", "airflow,driver", **DEPLOYMENT),
    "tune": lacks("job.yaml", "tune", "httptools", "airflow,driver", **DEPLOYMENT),
    "run": Said("job --partition 2026-11-20", 78, "nightshift run: "),
    "plan": lacks("job.yaml --partition 2026-11-20", "plan", "airflow", "airflow", **DEPLOYMENT),
    "costs": lacks("--since 2026-11-20", "costs", "airflow", "airflow", **DEPLOYMENT),
    "render": Said("job.yaml --partition 2026-11-20", 0, "# Rendered by `nightshift render` from job.yaml"),
    "doctor": lacks("", "doctor", "kubernetes", "airflow"),
    "batch": lacks("-i requests.jsonl -o answers.jsonl --base-url http://127.0.0.1:1/v1", "batch", "uvloop", "driver"),
    "stream": lacks("stream.yaml", "stream", "uvloop", "driver,stream"),
    "stream redrive": lacks(
        "stream.yaml", "stream redrive", "psycopg", "stream", NIGHTSHIFT_SINK_URL="postgresql://a@h/b", **DEPLOYMENT
    ),
    "stream load": lacks("files.yaml", "stream load", "google", "airflow", **DEPLOYMENT),
    "batcher": lacks("--upstream http://127.0.0.1:1", "batcher", "uvloop", "driver,stream"),
}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bare.make(tmp_path_factory.mktemp("bare") / "venv")


def nightshift(python: Path, home: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), **variables}
    command = [str(python), "-m", "nightshift.cli", *words]
    return subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", [*cli.COMMANDS, *cli.SUBCOMMANDS])
def test_every_command_runs_or_names_what_it_lacks(name: str, python: Path, tmp_path: Path) -> None:
    """A new command needs its line above."""
    shutil.copy(ROOT / "dags/jobs/package-embeddings.yaml", tmp_path / "job.yaml")
    shutil.copy(ROOT / "dags/streams/package-texts.yaml", tmp_path / "stream.yaml")
    sink = "sink: {files: gs://bucket/texts, bigquery: texts.vectors, column: embedding}\n"
    text = (tmp_path / "stream.yaml").read_text()
    (tmp_path / "files.yaml").write_text(re.sub(r"^sink:\n(  .*\n)*", sink, text, flags=re.MULTILINE))
    (tmp_path / "requests.jsonl").write_text("{}\n")
    (tmp_path / RUN).mkdir(parents=True)
    (tmp_path / RUN / "spec.json").write_text("{}")
    said = COMMANDS[name]
    variables = {variable: value.format(home=tmp_path) for variable, value in said.variables.items()}

    done = nightshift(python, tmp_path, *name.split(), *said.words.format(home=tmp_path).split(), **variables)

    assert "Traceback" not in done.stderr
    first = (done.stdout or done.stderr).splitlines()[0]
    assert (done.returncode, first[: len(said.begins)]) == (said.code, said.begins), done.stderr


@pytest.mark.parametrize("name", [*cli.COMMANDS, *cli.SUBCOMMANDS])
def test_every_command_has_its_help(name: str, python: Path, tmp_path: Path) -> None:
    done = nightshift(python, tmp_path, *name.split(), "--help")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: nightshift {name} ")
    assert "Exit code" in done.stdout


def test_the_environment_is_as_bare_as_it_says(python: Path) -> None:
    program = "import importlib.metadata as m; print(*sorted(d.metadata['Name'] for d in m.distributions()))"
    done = subprocess.run([str(python), "-c", program], capture_output=True, text=True, check=True)

    names = {name.lower().replace("_", "-") for name in done.stdout.split()}
    assert names >= {"airflow-provider-nightshift", "obstore", "pyarrow", "pydantic"}
    assert names & {"apache-airflow", "kubernetes", "uvloop", "psycopg", "google-cloud-bigquery", "pip"} == set()
