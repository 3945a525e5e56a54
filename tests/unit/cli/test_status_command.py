"""The command `nightshift status`: its output, its watching, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nightshift import cli
from tests.builders import RUN
from tests.launch import launched
from tests.unit.cli.test_cli import COMMAND
from tests.unit.status_run import KEYS, Run

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[3]
STATUS = (sys.executable, "-c", COMMAND, "status")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "bucket")


def nightshift(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*STATUS, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_command_prints_text(run: Run) -> None:
    run.commit(0)

    done = nightshift(run.url)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == f"{RUN.prefix}  embedding by m"
    assert "4 of 10 rows" in done.stdout


def test_json_is_one_object_of_documented_keys(run: Run) -> None:
    run.commit(0)

    [line] = nightshift(run.url, "--json").stdout.splitlines()

    assert set(json.loads(line)) == KEYS
    documented = (ROOT / "docs" / "operate" / "status.md").read_text()
    assert [key for key in sorted(KEYS) if f"`{key}`" not in documented] == []


def test_watch_ends_when_all_is_committed(run: Run) -> None:
    run.commit(0)
    watch = subprocess.Popen([*STATUS, run.url, "--watch", "0.1", "--json"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert watch.stdout
    first = json.loads(watch.stdout.readline())
    run.commit(1)
    run.commit(2)
    last = [json.loads(line) for line in watch.stdout][-1]

    assert watch.wait() == 0
    assert (first["state"], first["rows_done"]) == ("open", 4)
    assert (last["state"], last["rows_done"], last["seconds_left"]) == ("complete", 10, 0)


def test_watch_of_a_finished_run_shows_it_once(run: Run) -> None:
    for chunk in range(3):
        run.commit(chunk)

    done = nightshift(run.url, "--watch")

    assert done.returncode == 0
    assert done.stdout.count("100.0%") == 1


def test_watch_draws_over_what_a_terminal_shows(run: Run) -> None:
    run.commit(0)
    ours, theirs = os.openpty()
    # A shell's background job, as these tests may be one, has Ctrl-C switched off for all its children.
    command = launched([*STATUS, run.url, "--watch", "0.1"], interruptible=True)
    watch = subprocess.Popen(command, cwd=ROOT, stdout=theirs)
    os.close(theirs)
    shown = b""
    while shown.count(b"sealed") < 2:
        shown += os.read(ours, 10_000)
    watch.send_signal(signal.SIGINT)

    assert watch.wait() == 130
    first, second = shown.split(b"\x1b[", 1)
    assert first.startswith(RUN.prefix.encode())
    # As many lines up as there are, and everything below is cleared.
    assert second.startswith(f"{first.count(bytes([10]))}A\x1b[J{RUN.prefix}".encode())


def test_a_reader_that_has_enough_is_no_error(run: Run) -> None:
    run.commit(0)
    watch = subprocess.Popen(
        [*STATUS, run.url, "--watch", "0.1", "--json"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert watch.stdout
    assert watch.stderr
    watch.stdout.readline()
    watch.stdout.close()

    assert (watch.stderr.read(), watch.wait()) == (b"", 0)


@pytest.mark.parametrize(
    "url",
    ["job/day/run", "s3://bucket/job/day/run", "file:///nowhere/job/day/run", "file:///job", "memory:///a/b/c"],
)
def test_wrong_urls_are_2_with_a_message(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", url, "--json"]) == 2

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("nightshift status: ")
    assert "Traceback" not in captured.err


def test_a_wrong_folder_is_not_made(tmp_path: Path) -> None:
    assert cli.main(["status", f"file://{tmp_path}/bucket/job/day/run"]) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seconds", ["0", "-1", "soon", "nan"])
def test_watch_takes_seconds(run: Run, seconds: str) -> None:
    done = nightshift(run.url, f"--watch={seconds}")

    assert done.returncode == 2
    assert f"'{seconds}' is not a number of seconds" in done.stderr
