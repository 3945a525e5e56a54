"""A stack of small parts: started, found, killed piece by piece, stopped. No process may stay, whatever dies."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from local.stack import Stack, StackBusy, StackDown, StackError, marks, shell
from local.stack.folder import Folder
from tests.integration.stack.support import alive, wait_until

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]
PARTS = ("storage", "agent")
HOLD = """
import sys, time
from pathlib import Path
from local.stack import Stack
with Stack(Path(sys.argv[1]), parts=("storage",)):
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """A stack that is down, for the test to bring up; nothing of it is left after the test."""
    stack = Stack(tmp_path / "state", parts=PARTS)
    yield stack
    stack.down()
    assert stack.processes() == []


@pytest.fixture
def holder(stack: Stack) -> Iterator[subprocess.Popen[str]]:
    """A process to which the stack is tied."""
    command = [sys.executable, "-c", HOLD, str(stack.state)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.wait()


def _main_pids(stack: Stack) -> dict[str, int]:
    document = stack.document()
    return {name: part["pid"] for name, part in document["parts"].items()}


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


@pytest.mark.gate
def test_its_document_tells_the_truth_and_down_leaves_nothing(stack: Stack) -> None:
    stack.up()
    document = stack.document()
    assert {name: part["state"] for name, part in document["parts"].items()} == {"storage": "healthy", "agent": "healthy"}
    address = document["environment"]["STORAGE_EMULATOR_HOST"]
    with urllib.request.urlopen(f"{address}/storage/v1/b/nightshift") as reply:
        assert reply.status == 200
    named = {document["supervisor"], document["reaper"], *_main_pids(stack).values()}
    assert named <= set(stack.processes())
    assert all(stack.log(name).exists() for name in (*PARTS, "supervisor"))
    stack.down()
    wait_until(lambda: not any(alive(pid) for pid in named), "the end of all its processes")
    assert stack.processes() == []
    with pytest.raises(StackDown):
        Stack.attach(stack.state)


def test_another_up_changes_nothing(stack: Stack) -> None:
    stack.up()
    before = stack.processes()
    Stack(stack.state, parts=PARTS).up()
    with Stack(stack.state, parts=PARTS) as same:
        assert same.environment() == stack.environment()
    assert stack.processes() == before
    assert Stack.attach(stack.state).healthy()


def test_it_says_no_to_parts_that_a_running_stack_lacks(stack: Stack) -> None:
    stack.up()
    with pytest.raises(StackError, match="without bigquery"):
        Stack(stack.state, parts=("storage", "bigquery")).up()


def test_ports_are_kept_unless_somebody_else_has_them(stack: Stack) -> None:
    stack.up()
    first = stack.environment()["STORAGE_EMULATOR_HOST"]
    stack.down()
    stack.up()
    assert stack.environment()["STORAGE_EMULATOR_HOST"] == first
    stack.down()
    with socket.create_server(("127.0.0.1", int(first.rpartition(":")[2]))):
        stack.up()
        assert stack.environment()["STORAGE_EMULATOR_HOST"] != first


@pytest.mark.gate
@pytest.mark.parametrize("name", PARTS)
def test_a_killed_part_comes_back_at_the_same_address(stack: Stack, name: str) -> None:
    stack.up()
    before, environment = _main_pids(stack), stack.environment()
    _kill(before[name])
    wait_until(lambda: _main_pids(stack)[name] != before[name] and stack.healthy(), f"{name} is back")
    after = _main_pids(stack)
    assert stack.environment() == environment
    assert [other for other in PARTS if after[other] != before[other]] == [name]
    assert f"{name} DIED: signal SIGKILL" in stack.log("supervisor").read_text()


def test_a_killed_reaper_is_replaced(stack: Stack) -> None:
    stack.up()
    reaper = stack.pids("reaper")
    _kill(reaper[0])
    wait_until(lambda: stack.pids("reaper") not in ([], reaper), "there is another reaper")
    _kill(stack.pids("supervisor")[0])
    wait_until(lambda: stack.processes() == [], "the new reaper has ended everything")


@pytest.mark.gate
def test_the_supervisors_death_ends_everything_and_up_goes_on(stack: Stack) -> None:
    stack.up()
    # What a part has started has no tie to the supervisor but its mark.
    marked = {name: value for name, value in _environment(stack.pids("storage")[0]).items() if name.startswith(marks.STACK)}
    grandchild = subprocess.Popen(["sleep", "600"], env={**os.environ, **marked}, start_new_session=True)
    environment = stack.environment()
    _kill(stack.pids("supervisor")[0])
    wait_until(lambda: stack.processes() == [], "everything has ended")
    assert grandchild.wait() == -signal.SIGKILL
    with pytest.raises(StackDown):
        stack.document()
    stack.up()
    assert stack.environment() == environment


def test_parts_die_with_the_supervisor_even_without_a_reaper(stack: Stack) -> None:
    stack.up()
    reaper = stack.pids("reaper")[0]
    os.kill(reaper, signal.SIGSTOP)
    _kill(stack.pids("supervisor")[0])
    wait_until(lambda: stack.processes() == [reaper], "the parts have ended")


def test_up_ends_what_an_earlier_life_left(stack: Stack) -> None:
    stack.up()
    stack.down()
    stray = subprocess.Popen(["sleep", "600"], env={**os.environ, marks.STACK: str(stack.state)})
    stranger = subprocess.Popen(["sleep", "600"], env={**os.environ, marks.STACK: f"{stack.state}-of-another"})
    try:
        stack.up()
        assert not alive(stray.pid)
        assert alive(stranger.pid)
    finally:
        for process in (stray, stranger):
            process.kill()
            process.wait()


def test_a_tied_stack_ends_with_its_process(stack: Stack, holder: subprocess.Popen[str]) -> None:
    assert Stack.attach(stack.state).healthy()
    with pytest.raises(StackBusy, match=str(holder.pid)):
        stack.up()
    holder.kill()
    wait_until(lambda: stack.processes() == [], "the stack has ended")
    assert "stopped" in stack.log("supervisor").read_text()


def test_up_waits_for_the_end_of_a_stack_whose_process_was_killed(stack: Stack, holder: subprocess.Popen[str]) -> None:
    supervisor = stack.pids("supervisor")
    holder.kill()
    holder.wait()
    stack.up()
    assert stack.healthy()
    assert stack.pids("supervisor") != supervisor


def test_the_supervisor_of_a_tied_stack_may_die_too(stack: Stack, holder: subprocess.Popen[str]) -> None:
    _kill(stack.pids("supervisor")[0])
    holder.kill()
    wait_until(lambda: stack.processes() == [], "everything has ended")


def test_a_block_leaves_up_what_it_has_not_started(stack: Stack) -> None:
    with stack:
        inner = stack.processes()
        with Stack(stack.state, parts=PARTS) as same:
            assert same.processes() == inner
        assert stack.healthy()
    assert stack.processes() == []


def test_of_processes_that_start_at_once_one_has_the_stack_and_the_others_do_not_end_it(stack: Stack) -> None:
    command = [sys.executable, "-c", HOLD, str(stack.state)]
    processes = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)
    ]
    try:
        said = [process.stdout.readline() for process in processes if process.stdout]
        losers = [process for process, line in zip(processes, said, strict=True) if line != "ready\n"]
        (winner,) = set(processes) - set(losers)

        assert len(losers) == 3
        for loser in losers:
            assert f"belongs to process {winner.pid} and ends with it" in loser.communicate()[1]
        assert stack.document()["owner"] == winner.pid
        assert Stack.attach(stack.state).healthy()
    finally:
        for process in processes:
            process.kill()
            process.wait()
    wait_until(lambda: stack.processes() == [], "the stack has ended")


def test_who_loses_the_race_against_up_leaves_the_stack_up(stack: Stack) -> None:
    late = Stack(stack.state, parts=PARTS)
    late._usable = lambda: False  # type: ignore[method-assign]  # it looked before the other one had begun
    stack.up()
    supervisor = stack.pids("supervisor")
    with late:
        assert late.pids("supervisor") == supervisor

    assert stack.pids("supervisor") == supervisor
    assert stack.healthy()


def test_a_part_that_cannot_start_is_reported_with_its_log(stack: Stack) -> None:
    stack.state.mkdir()
    (stack.state / "storage").write_text("in the way of the data folder")
    with pytest.raises(StackError, match=r"storage does not start \(ended by exit code") as caught:
        stack.up()
    assert str(stack.log("storage")) in str(caught.value)
    assert stack.processes() == []


def test_the_command_line(stack: Stack) -> None:
    def command(*words: str) -> subprocess.CompletedProcess[str]:
        words = (words[0], "--state", str(stack.state), *words[1:])
        return subprocess.run([sys.executable, "-m", "local.stack", *words], cwd=ROOT, capture_output=True, text=True)

    assert command("status").returncode == 1
    up = command("up", "--parts", "storage")
    assert (up.returncode, up.stderr) == (0, "")
    assert "storage   http://127.0.0.1:" in up.stdout
    status = command("status")
    assert status.returncode == 0
    assert "healthy" in status.stdout
    _make_env_tells_a_shell_of(stack)
    assert command("down").returncode == 0
    assert stack.processes() == []
    down = command("env")
    assert (down.returncode, down.stdout) == (1, "")
    assert down.stderr == f"[stack] no stack is up in {stack.state}: make up STATE={stack.state}\n"
    assert command("up", "--parts", "nothing").stderr.startswith("[stack] there is no part 'nothing'")


def _make_env_tells_a_shell_of(stack: Stack) -> None:
    """A shell that evaluates what ``make env`` prints has the variables of the stack's clients."""
    # Under `make test` the inner make would say which directory it enters.
    outer = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    done = subprocess.run(
        ["bash", "-euc", 'eval "$(make env)" && env -0'],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**outer, "STATE": str(stack.state)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    told = dict(line.split("=", 1) for line in done.stdout.split("\0") if line)
    assert shell.variables(Folder.at(stack.state), stack.environment()).items() <= told.items()


def test_a_process_that_writes_its_title_keeps_its_mark() -> None:
    """Airflow and vLLM use this package; without the variable the title is written over the environment."""
    title = "import setproctitle, time; setproctitle.setproctitle('title ' * 100); print('ready', flush=True); time.sleep(600)"
    marked = {marks.STACK: f"/no/such/folder/{os.getpid()}"}
    environment = {**os.environ, **marked, **marks.TITLES_KEEP_ENVIRONMENT}
    process = subprocess.Popen([sys.executable, "-c", title], env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    assert marks.marked(marked) == [process.pid]
    assert marks.sweep(marked) == 1
    assert process.wait() == -signal.SIGKILL


def _environment(pid: int) -> dict[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_text().rstrip("\0").split("\0")
    return {name: value for name, _, value in (entry.partition("=") for entry in entries)}
