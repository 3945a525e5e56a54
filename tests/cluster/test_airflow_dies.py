"""A real Airflow between a person and a real cluster, parts of which die, hang, or are told to stop. Whatever happens, there is
one JobSet of a task at a time, none is left when its policy has had its way, and its log is complete.

Airflow reaches the cluster through a proxy, which fails as networks do. A watch that does not pass it counts the JobSets.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
import yaml

from local.cluster.processes import StartError
from local.demo import airflow_api
from local.demo.airflow_api import AirflowApi
from local.stack import Stack
from tests.chaos.nights import strays, wait_until
from tests.cluster.api_proxy import ApiProxy, Call
from tests.cluster.census import Census
from tests.cluster.kube import Kubernetes, Namespace
from tests.cluster.scenes import a_short_jobset

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

DAGS: Final = """
from datetime import timedelta

from airflow.sdk import DAG

from nightshift.operators.jobset import KubernetesJobSetOperator

for policy in ("delete", "suspend"):
    with DAG(f"night-{{policy}}", schedule=None):
        KubernetesJobSetOperator(
            task_id="run",
            jobset={jobset!r},
            namespace={namespace!r},
            config_file={kubeconfig!r},
            kubernetes_conn_id=None,
            deadline=timedelta(minutes=12),
            on_kill_policy=policy,
            retries=2,
            retry_delay=timedelta(seconds=1),
        )
"""
# Says a line each half second until it is let go, and last how many it has said.
COUNTS: Final = """
import itertools, os, time
for n in itertools.count():
    if os.path.exists('/tmp/go'): break
    print('line', n)
    time.sleep(0.5)
print('end', n)
"""


class Night:
    """One DAG run of one task, whose pod works until it is let go."""

    def __init__(self, world: World, policy: str = "delete") -> None:
        self.dag_id = f"night-{policy}"
        self.run_id = f"run-{uuid.uuid4().hex[:8]}"
        self._world = world
        self._api = world.api
        wait_until("the DAG run", lambda: self._api.trigger(self.dag_id, self.run_id, {}))

    @property
    def path(self) -> str:
        return f"/dags/{self.dag_id}/dagRuns/{self.run_id}"

    def task(self) -> dict[str, Any]:
        return self._api.task_instances(self.dag_id, self.run_id)["run"]

    def wait(self, *states: str) -> dict[str, Any]:
        """The task, once it is in one of these states."""

        def reached() -> dict[str, Any] | None:
            task = self.task()
            return task if task["state"] in states else None

        return dict(wait_until(f"{self.run_id} {' or '.join(states)}", reached))

    def wait_for_lines(self) -> None:
        """Until the task waits and its log has a pod's first lines: all is at work."""

        def said() -> bool:
            # A log is much work for the two cores that all the rest shares.
            time.sleep(1)
            return self.task()["state"] == "deferred" and any("line 3" in lines for lines in self.told().values())

        wait_until(f"the first lines of {self.run_id}", said)

    def let_go(self) -> None:
        """Its pods end as soon as there are any, until the task has."""
        namespace = self._world.namespace

        def over() -> bool:
            for pod in namespace.get("pods", f"jobset.sigs.k8s.io/jobset-name in ({','.join(self._names()) or 'none'})"):
                with contextlib.suppress(StartError):
                    namespace.kubectl("exec", pod["metadata"]["name"], "--", "touch", "/tmp/go")
            time.sleep(1)
            return self.task()["state"] in ("success", "failed")

        wait_until(f"the end of {self.run_id}", over)

    def told(self) -> dict[str, list[str]]:
        """What each pod has written, as far as it is in the log of any attempt."""
        found: dict[str, list[str]] = defaultdict(list)
        for attempt in range(1, self.task()["try_number"] + 1):
            for line in self._api.log(self.dag_id, self.run_id, "run", attempt):
                if match := re.fullmatch(r"\[(\S+) driver\] (.*)", line):
                    found[match[1]].append(match[2])
        return found

    def said(self, words: str) -> bool:
        """Whether these are in the log of the present attempt."""
        return any(words in line for line in self._api.log(self.dag_id, self.run_id, "run", self.task()["try_number"]))

    def must_have_succeeded(self, *, attempts: int) -> None:
        task = self.task()
        assert (task["state"], task["try_number"]) == ("success", attempts)

    def must_have_told_all(self, *, once: bool) -> None:
        """Each line of the pod that came to its end, and no gap in what others have said. once: none of them twice."""

        def complete() -> bool:
            return any(line.startswith("end ") for lines in self.told().values() for line in lines)

        wait_until(f"the end of the log of {self.run_id}", complete, patience_s=30)
        for lines in self.told().values():
            numbers = [int(line.split()[1]) for line in lines if line.startswith("line ")]
            assert set(numbers) == set(range(max(numbers, default=-1) + 1))
            [count] = {int(line.split()[1]) for line in lines if line.startswith("end ")} or {len(set(numbers))}
            assert len(set(numbers)) == count
            if once:
                assert len(numbers) == count

    def must_have_had_one_jobset(self) -> None:
        assert len(self._world.census.uids(self.run_id)) == 1

    def must_have_left_nothing(self) -> None:
        """No JobSet, and never two at once."""
        gone = f"the end of the JobSet of {self.run_id}"
        wait_until(gone, lambda: not self._world.census.living()[self.run_id], patience_s=240)
        assert self._world.census.most_at_once(self.run_id) == 1

    def _names(self) -> list[str]:
        return [jobset["metadata"]["name"] for jobset in self._world.census.living()[self.run_id]]


class World:
    """An Airflow, a namespace of a cluster, and what is between and around them."""

    def __init__(self, stack: Stack, namespace: Namespace, proxy: ApiProxy, census: Census) -> None:
        self.stack = stack
        self.namespace = namespace
        self.proxy = proxy
        self.census = census
        airflow = stack.airflow()
        self.api = AirflowApi(airflow["url"], airflow["user"], airflow["password"])


@pytest.fixture(scope="module")
def world(cluster: Kubernetes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("airflow")
    name = f"airflow-{uuid.uuid4().hex[:8]}"
    cluster.kubectl("create", "namespace", name)
    namespace = Namespace(cluster, name)
    document = a_short_jobset("night", COUNTS)
    with (
        ApiProxy(cluster.kubeconfig, folder) as proxy,
        Census(namespace, "run_id") as census,
        pytest.MonkeyPatch.context() as patch,
    ):
        # An answer that came too late would have to be asked for again, and some of these acts are not to be done twice.
        patch.setattr(airflow_api, "TIMEOUT_S", 120)
        (folder / "dags").mkdir()
        text = DAGS.format(jobset=document, namespace=name, kubeconfig=str(proxy.kubeconfig))
        (folder / "dags" / "nights.py").write_text(text)
        with Stack(folder / "state", parts=("airflow",), dags=folder / "dags") as stack:
            world = World(stack, namespace, proxy, census)
            for policy in ("delete", "suspend"):
                world.api.wait_for_dag(f"night-{policy}")
            yield world
    assert strays(folder / "state") == []
    namespace.delete()


def creates_a_jobset(call: Call) -> bool:
    return (call.verb, call.resource) == ("create", "jobsets.jobset.x-k8s.io")


def worker_of(port: int, proxy: ApiProxy) -> list[int]:
    """The process that has the connection from this port, and the one that supervises it: both are gone when a worker is."""
    server = yaml.safe_load(proxy.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    # As the kernel writes 127.0.0.1 and a port; a port may be the client's end of several connections, each to another place.
    ends = [f"0100007F:{each:04X}" for each in (port, urlsplit(server).port)]
    connections = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    [inode] = [each[9] for each in connections if each[1:3] == ends]
    for process in Path("/proc").glob("[0-9]*"):
        if f"socket:[{inode}]" in open_files(process):
            supervisor = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            return [supervisor, int(process.name)]
    raise AssertionError(f"no process has a connection from port {port}")


def open_files(process: Path) -> set[str]:
    """Of a process that may end, and close files, meanwhile."""
    found = set()
    with contextlib.suppress(OSError):
        for link in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                found.add(str(link.readlink()))
    return found


def test_a_worker_that_dies_between_making_the_jobset_and_saying_so(world: World) -> None:
    with world.proxy.holding(creates_a_jobset, forwarded=True) as held:
        night = Night(world)
        held.wait(240)
        wait_until("the JobSet", lambda: world.census.living()[night.run_id])
        for process in worker_of(held.port, world.proxy):
            os.kill(process, signal.SIGKILL)

    night.let_go()

    night.must_have_succeeded(attempts=2)
    night.must_have_had_one_jobset()
    night.must_have_left_nothing()
    night.must_have_told_all(once=True)


@pytest.mark.gate
def test_a_triggerer_that_dies_while_the_task_waits(world: World) -> None:
    night = Night(world)
    night.wait_for_lines()

    [triggerer] = world.stack.pids("triggerer")
    os.kill(triggerer, signal.SIGKILL)

    wait_until("another triggerer", lambda: world.stack.healthy() and world.stack.pids("triggerer") != [triggerer])
    night.let_go()
    night.must_have_succeeded(attempts=1)
    night.must_have_had_one_jobset()
    night.must_have_left_nothing()
    # The next one begins where the last note on the JobSet says; there is one each five minutes.
    night.must_have_told_all(once=False)


@pytest.mark.parametrize("how", ["refusing", "half_open"])
def test_an_api_that_is_away_for_a_while(world: World, how: str) -> None:
    """While one task waits, and another is about to make its JobSet."""
    waiting = Night(world)
    waiting.wait_for_lines()
    with getattr(world.proxy, how)():
        beginning = Night(world)
        beginning.wait("running")
        # A connection on which nothing comes may be a quiet one, so the task that waits hears of that at its end.
        wait_until("the task that begins has no answer", lambda: beginning.said("No answer ("))
        if how == "refusing":
            wait_until("the task that waits has none either", lambda: waiting.said("The cluster does not answer"))
        assert beginning.task()["state"] == "running"
        assert waiting.task()["state"] == "deferred"

    for night in (waiting, beginning):
        night.let_go()
        night.must_have_succeeded(attempts=1)
        night.must_have_had_one_jobset()
        night.must_have_left_nothing()
        night.must_have_told_all(once=True)


def test_persons_who_end_waiting_tasks(world: World) -> None:
    failed, succeeded, deleted = nights = [Night(world) for _ in range(3)]
    for night in nights:
        night.wait_for_lines()

    world.api.request("PATCH", f"{failed.path}/taskInstances/run", {"new_state": "failed"})
    world.api.request("PATCH", f"{succeeded.path}/taskInstances/run", {"new_state": "success"})
    # Airflow deletes no DAG run that runs.
    world.api.request("PATCH", deleted.path, {"state": "failed"})
    world.api.request("DELETE", deleted.path)

    for night in nights:
        night.must_have_left_nothing()
        night.must_have_had_one_jobset()


@pytest.mark.gate
def test_a_person_who_ends_a_waiting_task_while_the_cluster_does_not_answer(world: World) -> None:
    """Airflow does not wait for a trigger that cannot end its JobSet: a second later it tells it again, which cancels that."""
    night = Night(world)
    night.wait_for_lines()
    with world.proxy.refusing():
        world.api.request("PATCH", f"{night.path}/taskInstances/run", {"new_state": "failed"})
        wait_until("the end of the trigger", lambda: night.said("trigger completed"), patience_s=120)

    night.must_have_left_nothing()
    night.must_have_had_one_jobset()


@pytest.mark.parametrize("policy", ["delete", "suspend"])
def test_a_person_who_clears_a_waiting_task(world: World, policy: str) -> None:
    night = Night(world, policy)
    night.wait_for_lines()

    clear(world, night)

    wait_until("the next attempt", lambda: night.task()["try_number"] == 2)
    night.let_go()
    night.must_have_succeeded(attempts=2)
    night.must_have_left_nothing()
    # What the attempt before had copied, the next one may copy again.
    night.must_have_told_all(once=False)


def test_a_person_who_fails_a_waiting_task_and_clears_it_later(world: World) -> None:
    night = Night(world, "suspend")
    night.wait_for_lines()
    world.api.request("PATCH", f"{night.path}/taskInstances/run", {"new_state": "failed"})
    wait_until("the suspension", lambda: world.census.living()[night.run_id][0]["spec"].get("suspend"))

    clear(world, night)

    wait_until("the next attempt", lambda: night.task()["try_number"] == 2)
    night.let_go()
    night.must_have_succeeded(attempts=2)
    night.must_have_had_one_jobset()
    night.must_have_left_nothing()
    night.must_have_told_all(once=False)


def clear(world: World, night: Night) -> None:
    body = {"dry_run": False, "dag_run_id": night.run_id, "task_ids": ["run"], "only_failed": False, "reset_dag_runs": True}
    world.api.request("POST", f"/dags/{night.dag_id}/clearTaskInstances", body)


def test_two_attempts_at_once(world: World) -> None:
    """The first one's worker hangs in the middle of making the JobSet for so long that Airflow takes it for dead; it comes back
    to life while the second one's JobSet works, and its request arrives then."""
    with world.proxy.holding(creates_a_jobset, forwarded=False) as held:
        night = Night(world)
        held.wait(240)
        first = worker_of(held.port, world.proxy)
        for process in first:
            os.kill(process, signal.SIGSTOP)
        wait_until("the second attempt", lambda: night.task()["try_number"] == 2)
        night.wait_for_lines()
        held.release()
        for process in reversed(first):
            os.kill(process, signal.SIGCONT)

        night.let_go()

    night.must_have_succeeded(attempts=2)
    night.must_have_had_one_jobset()
    night.must_have_left_nothing()
    night.must_have_told_all(once=False)
