"""`make demo` itself: killed, repeated, and repeated again."""

import json
import os
import re
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import bigquery

from local.cluster import build, images, packages
from local.cluster.cluster import STATE_VARIABLE, Cluster
from local.cluster.deployment import NAMESPACE
from local.cluster.layout import Layout
from local.cluster.processes import StartError
from local.demo.__main__ import JOB_FILE
from local.environments import ROOT, python_of
from local.stack import Stack, StackError
from nightshift.spec import load
from tests.chaos.nights import PARTITION, live_pods, strays, wait_until
from tests.cluster.kube import a_jobset
from tests.cluster.traces import rules, traces

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1700)]

SPEC = load(JOB_FILE)


def demo(state: Path, *arguments: str, **variables: str) -> "subprocess.Popen[str]":
    """The demo as the Makefile starts it, in a process group of its own as a terminal would give it."""
    command = [str(python_of("airflow")), "-m", "local.demo", "--state", str(state), "--partition", PARTITION, *arguments]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'plugins'}:{ROOT}", **variables}
    # In one stream: what it says and why it failed.
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def kill(process: "subprocess.Popen[str]", what: str, when: Callable[[], Any], patience_s: float) -> None:
    """Once it is so far; fails with what it said when it ends before."""
    wait_until(what, lambda: process.poll() is not None or when(), patience_s)
    process.send_signal(signal.SIGKILL)
    output, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL, output[-4000:]


def engines(cluster: Cluster) -> list[str]:
    """The pods whose engine has been started; none while there is no cluster yet."""
    try:
        pods = json.loads(cluster.kubectl("--namespace", NAMESPACE, "get", "pods", "-o", "json"))["items"]
    except StartError:
        return []
    states = [(pod, state) for pod in pods for state in pod["status"].get("initContainerStatuses", [])]
    return [pod["metadata"]["name"] for pod, state in states if "running" in state["state"]]


def finished(process: "subprocess.Popen[str]") -> str:
    output, _ = process.communicate()
    # What it said is the message: of a failure in CI, that is all that is seen.
    assert process.returncode == 0, output[-4000:]
    return output


def published(state: Path) -> str:
    """Every row of the published partition in one order, as text."""
    with Stack(state, parts=("storage", "bigquery")) as stack:
        os.environ.update(stack.environment())
        client = bigquery.Client(project="local", credentials=AnonymousCredentials())  # type: ignore[no-untyped-call]
        rows = client.query(f"SELECT * FROM `{SPEC.destination.table}` ORDER BY nightshift_ordinal").result()
        return json.dumps([dict(row) for row in rows], default=str, sort_keys=True)


def looked_at(state: Path, process: "subprocess.Popen[str]") -> list[str]:
    """What nightshift's page of the job in Airflow showed, while the process ran: each time something else."""
    seen = [""]
    while process.poll() is None:
        try:
            with urllib.request.urlopen(_page(Stack.attach(state)), timeout=60) as reply:
                page = reply.read().decode()
        except (OSError, StackError):
            page = seen[-1]  # Airflow is not there yet, or not any more.
        if page != seen[-1]:
            seen.append(page)
        time.sleep(0.5)
    return seen[1:]


def _page(stack: Stack) -> urllib.request.Request:
    login = stack.airflow()
    body = json.dumps({"username": login["user"], "password": login["password"]}).encode()
    asked = urllib.request.Request(f"{login['url']}/auth/token", body, {"content-type": "application/json"})
    with urllib.request.urlopen(asked, timeout=60) as reply:
        cookie = f"_token={json.load(reply)['access_token']}"
    return urllib.request.Request(f"{login['url']}/nightshift/list?job={SPEC.job}", headers={"cookie": cookie})


@pytest.fixture(scope="module")
def killed_night(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, list[str]]:
    """A night that was killed while its engine started, and repeated: the state folder, and what the repetition said; what the
    page of the job showed meanwhile."""
    state = tmp_path_factory.mktemp("demo") / "state"

    def started() -> bool:
        return any(pod["pids"].get("server") for pod in live_pods(Stack(state)).values())

    kill(demo(state), "the engine's start", started, patience_s=1200)
    wait_until("the end of every process", lambda: not strays(state), patience_s=60)
    again = demo(state)
    # It says more than a pipe holds.
    with ThreadPoolExecutor(1) as pool:
        said = pool.submit(finished, again)
        pages = looked_at(state, again)
        return state, said.result(), pages


def test_a_night_is_seen_in_airflow_while_it_runs(killed_night: tuple[Path, str, list[str]]) -> None:
    pages = killed_night[2]
    states = [state for page in pages for state in re.findall(r'<span class="pill [a-z]*">(\w+)</span>', page)]
    rows = [int(row.replace(",", "")) for page in pages for row in re.findall(r"([\d,]+) of [\d,]+", page)]

    # The stack may end within the seconds for which the page is not read again.
    assert states[-1] in ("sealed", "shown"), pages[-1]
    assert "open" in states
    assert rows == sorted(rows)
    assert len(set(rows)) > 1, rows


def test_a_killed_demo_leaves_nothing_and_goes_on_where_it_stopped(killed_night: tuple[Path, str, list[str]]) -> None:
    state, second, _ = killed_night

    assert "continuing the DAG run" in second
    assert "duplicates    0" in second
    assert "httplib2" in second.split("HTTP client")[1].split("parse yaml")[0]
    assert strays(state) == []
    before = published(state)

    third = finished(demo(state))

    assert "computed now  0 rows" in third
    assert published(state) == before
    assert not list((state / "runtime" / "jobsets").glob("*")), "no engine was started"
    assert strays(state) == []


@pytest.mark.timeout(1800)
def test_a_night_on_a_cluster_publishes_the_same_table_and_a_killed_one_leaves_nothing(
    killed_night: tuple[Path, str, list[str]],
) -> None:
    if reason := packages.obstacle() or build.obstacle():
        pytest.skip(f"no cluster: {reason}")
    # Short, for the sockets below it.
    with tempfile.TemporaryDirectory(prefix="ns-") as folder:
        cluster, state = Cluster(Path(folder) / "c"), Path(folder) / "state"

        def start() -> "subprocess.Popen[str]":
            return demo(state, "--runtime", "kubernetes", **{STATE_VARIABLE: str(cluster.state)})

        def left() -> list[str]:
            return [*strays(state), *traces(Layout.at(cluster.state)), *rules()]

        kill(start(), "the engine's start", lambda: engines(cluster), patience_s=900)
        wait_until("the end of all that it started", lambda: not left(), patience_s=120)

        second = finished(start())

        assert "continuing the DAG run" in second
        assert "duplicates    0" in second
        assert left() == []
        # Bit for bit: the numbers, the row that each is for, and the run's name.
        assert published(state) == published(killed_night[0])


def test_a_cluster_whose_supervisor_was_killed_is_gone_after_the_next_command() -> None:
    if reason := packages.obstacle() or build.obstacle():
        pytest.skip(f"no cluster: {reason}")
    with tempfile.TemporaryDirectory(prefix="ns-") as folder:
        cluster = Cluster(Path(folder) / "c", nodes=1, kwok=0, kueue=False, images=[images.python(print)])
        cluster.up()
        document = a_jobset("orphan", "import time; time.sleep(600)", pods=1)
        cluster.kubectl("create", "-f", "-", text=json.dumps(document))
        wait_until("a pod at work", lambda: "Running" in cluster.kubectl("get", "pods"))
        os.kill(cluster.document()["supervisor"], signal.SIGKILL)

        Cluster(cluster.state).down()

        assert [*traces(Layout.at(cluster.state)), *rules()] == []
