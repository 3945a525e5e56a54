"""The command line of `nightshift batcher`: what it refuses, and what it says then. Nothing listens here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nightshift import cli
from nightshift.batcher import server
from nightshift.batcher.options import Options
from nightshift.batcher.server import Usage, batcher_of

pytestmark = pytest.mark.unit

PLUGINS = Path(__file__).parents[3] / "plugins"
URL = "http://127.0.0.1:8000"


def options_of(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Options:
    """What the command is run with."""
    found: list[Options] = []

    def run(options: Options) -> int:
        found.append(options)
        return 0

    monkeypatch.setattr(server, "run", run)
    assert cli.main(["batcher", "--upstream", URL, *arguments]) == 0
    return found[0]


def test_what_is_not_said_has_the_options_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    assert options_of(monkeypatch) == Options(URL)


def test_everything_can_be_said(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "--host 0.0.0.0 --port 0 --max-batch-size 64 --max-latency 0.005 --max-upstream 2 --max-queue 9 --max-body-mb 1 "
    said += "--max-memory-mb 30 --timeout 5 --endpoints score,infer --key-header A --key-header B --ignore-header C "
    said += "--usage estimate"

    options = options_of(monkeypatch, *said.split())

    assert options == Options(
        upstream=URL,
        host="0.0.0.0",
        port=0,
        max_batch_size=64,
        max_latency=0.005,
        max_upstream=2,
        max_queue=9,
        max_body_mb=1,
        max_memory_mb=30,
        timeout=5.0,
        endpoints=("score", "infer"),
        key_header=["A", "B"],
        ignore_header=["C"],
        usage="estimate",
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-batch-size", "0"], "'0' is not a whole number of 1 or more"),
        (["--max-latency", "-1"], "'-1' is not a number of seconds from 0 to 60"),
        (["--max-latency", "nan"], "'nan' is not a number of seconds from 0 to 60"),
        (["--port", "65536"], "'65536' is not a port from 0 to 65535"),
        (["--timeout", "0"], "'0' is not a number of seconds above 0"),
        (["--usage", "guess"], "invalid choice: 'guess'"),
    ],
)
def test_a_wrong_value_is_named(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["batcher", "--upstream", URL, *arguments])

    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Options("localhost:8000"), "--upstream: the engine's URL must be http://HOST"),
        (Options("http://h/v1"), "--upstream: leave out /v1"),
        (Options("http://h/v1/"), "--upstream: leave out /v1"),
        (Options(URL, endpoints=("score", "rerank")), "--endpoints: 'rerank' is not a valid endpoint; choose from embeddings,"),
        (Options(URL, endpoints=("",)), "--endpoints: '' is not a valid endpoint"),
        (
            Options(URL, ignore_header=["Authorization"]),
            "--key-header, --ignore-header: the header 'authorization' has to count",
        ),
        (Options(URL, key_header=["a b"]), "--key-header, --ignore-header: 'a b' is not a valid name of a header"),
        (Options(URL, max_memory_mb=1), "--max-memory-mb must be at least 3 times --max-body-mb"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(options: Options, message: str) -> None:
    with pytest.raises(Usage) as caught:
        batcher_of(options)

    assert str(caught.value).startswith(message)


def in_a_process(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env={"PYTHONPATH": str(PLUGINS)}
    )


def test_an_address_that_is_not_this_machines() -> None:
    arguments = ["batcher", "--upstream", URL, "--host", "192.0.2.1"]
    done = in_a_process(f"import sys; from nightshift.cli import main; sys.exit(main({arguments}))")

    assert done.returncode == 2
    assert done.stderr.startswith("nightshift batcher: cannot listen on 192.0.2.1:8081: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("package", ["aiohttp", "httptools", "prometheus_client", "uvloop"])
def test_a_missing_package_is_named_with_what_to_install(package: str) -> None:
    done = in_a_process(
        f"import sys; sys.modules[{package!r}] = None\n"
        "from nightshift.cli import main\n"
        f"sys.exit(main(['batcher', '--upstream', {URL!r}]))"
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"nightshift batcher needs the package {package}")
    assert done.stderr.endswith(": pip install 'airflow-provider-nightshift[driver,stream]'\n")
