"""What only the local runtime has to prove: it is killed in every way, and finishes the work without leaving a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from local.runtime.folder import REFUSED
from local.runtime.process import CONTAINER_MARK, POD_MARK, marked
from nightshift.jobset.manifest.render import render
from nightshift.settings import Settings
from tests.builders import RUN, a_plan, a_spec
from tests.integration.runtime.agents import AgentProcess, LocalUnderTest, alive
from tests.integration.runtime.manifests import (
    IGNORE_DISRUPTION,
    WAIT_FOR_SIGTERM,
    engine,
    finished,
    jobset,
    logged,
    pod_where,
    sh,
    wait_for,
)
from tests.integration.runtime.view import look

pytestmark = pytest.mark.integration

FAMILY = """
import os, subprocess, sys, time
# A child in a session of its own without any mark in its environment, and a grandchild whose parent has ended.
child = subprocess.Popen(["sleep", "1000"], start_new_session=True, env={})
orphan = subprocess.check_output(["sh", "-c", "sleep 1000 >/dev/null & echo $!"], text=True).strip()
print(f"children {child.pid} {orphan}", flush=True)
print("ready", flush=True)
time.sleep(1000)
"""
"""A main process with the kinds of children that are easily missed."""


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    agent = AgentProcess(tmp_path)
    yield agent
    agent.close()


@pytest.fixture
def runtime(agent: AgentProcess) -> LocalUnderTest:
    return LocalUnderTest(agent.state)


def children_of(runtime: LocalUnderTest, name: str, pod: str) -> list[int]:
    """Process ids that FAMILY has written."""
    return [int(pid) for line in runtime.logs(name, pod, "driver") if "children" in line for pid in line.split()[1:]]


def is_sleep(pid: int) -> bool:
    return Path(f"/proc/{pid}/comm").read_text() == "sleep\n"


def family(image: str = "nightshift/test:1") -> dict[str, object]:
    return {"name": "driver", "image": image, "command": ["python3", "-c", FAMILY]}


def test_killed_container_leaves_no_child(agent: AgentProcess, runtime: LocalUnderTest) -> None:
    """As when vLLM's server is killed: its engine process must not stay."""
    agent.start()
    runtime.submit(jobset("night", family()))
    pod = logged(runtime, "night", "ready")
    children = children_of(runtime, "night", pod.name)
    assert [alive(pid) for pid in children] == [True, True]
    os.kill(agent.pid("night", pod.name, "driver"), signal.SIGKILL)
    status = finished(runtime, "night")

    assert status.pods[0].container("driver").exit_code == 137
    assert [alive(pid) for pid in children] == [False, False]
    assert agent.processes() == []


def test_container_that_ends_leaves_no_child(agent: AgentProcess, runtime: LocalUnderTest) -> None:
    agent.start()
    runtime.submit(jobset("night", {**family(), "command": ["python3", "-c", FAMILY.replace("time.sleep(1000)", "")]}))
    status = finished(runtime, "night")

    assert status.phase == "Completed"
    assert [alive(pid) for pid in children_of(runtime, "night", status.pods[0].name)] == [False, False]


def test_killed_shim_is_a_killed_container(agent: AgentProcess, runtime: LocalUnderTest) -> None:
    """The process that holds a container together may be hit too."""
    agent.start()
    runtime.submit(jobset("night", sh("sleep 1000 & echo ready; wait")))
    pod = logged(runtime, "night", "ready")
    main = agent.pid("night", pod.name, "driver")
    everything = marked({POD_MARK: f"night/{pod.name}", CONTAINER_MARK: "driver"})
    shim = int(Path(f"/proc/{main}/stat").read_text().rpartition(")")[2].split()[1])
    assert {main, shim} < set(everything)
    os.kill(shim, signal.SIGKILL)
    status = finished(runtime, "night")

    assert status.pods[0].container("driver").exit_code == 137
    assert [pid for pid in everything if alive(pid)] == []


def test_killed_agent_takes_its_pods_along(agent: AgentProcess, runtime: LocalUnderTest) -> None:
    agent.start()
    runtime.submit(jobset("night", family(), init=[engine()]))
    pod = logged(runtime, "night", "ready")
    children = children_of(runtime, "night", pod.name)
    agent.signal(signal.SIGKILL)

    wait_for(lambda: not agent.processes(), "the end of all containers")
    wait_for(lambda: not any(alive(pid) for pid in children), "the end of their children")


def test_restarted_agent_finishes_the_jobset(agent: AgentProcess, runtime: LocalUnderTest, tmp_path: Path) -> None:
    """Pods that ran are lost with their node, which is not counted; an index that was done stays done."""
    script = f"[ $JOB_COMPLETION_INDEX = 0 ] || [ -e {tmp_path}/again ] || {{ {WAIT_FOR_SIGTERM}; }}; echo done"
    agent.start()
    runtime.submit(jobset("night", sh(script), rules=[IGNORE_DISRUPTION], job={"completions": 2}))
    lost = logged(runtime, "night", "ready", index=1)
    wait_for(lambda: look(runtime, "night").completed_indexes == (0,), "the end of index 0")
    agent.signal(signal.SIGKILL)
    (tmp_path / "again").touch()
    agent.start()
    status = finished(runtime, "night")

    assert (status.phase, status.completed_indexes) == ("Completed", (0, 1))
    assert [(pod.index, pod.attempt, pod.phase, pod.reason) for pod in sorted(status.pods, key=lambda pod: pod.attempt)] == [
        (0, 1, "Succeeded", ""),
        (1, 1, "Failed", "DeletionByPodGC"),
        (1, 2, "Succeeded", ""),
    ]
    assert list(runtime.logs("night", lost.name, "driver")) == ["ready"]
    wait_for(lambda: not agent.processes(), "the end of all containers")


def test_an_agent_refuses_what_one_of_another_release_has_begun(agent: AgentProcess, runtime: LocalUnderTest) -> None:
    runtime.submit(jobset("night", sh("echo done")))
    (agent.state / "jobsets" / "night" / "status.json").write_text(json.dumps({"version": 1, "state": {"begun": True}}))
    agent.start()
    seen = finished(runtime, "night")

    assert (seen.phase, seen.reason) == ("Failed", REFUSED)
    assert "an agent of another release has begun this JobSet" in seen.message


def test_next_agent_sweeps_what_nobody_killed(agent: AgentProcess, runtime: LocalUnderTest) -> None:
    """Agent and shims all killed at once: nothing is left to clean up but the next agent."""
    agent.start()
    runtime.submit(jobset("night", sh("sleep 1000 & echo ready; wait"), rules=[IGNORE_DISRUPTION]))
    pod = logged(runtime, "night", "ready")
    main = agent.pid("night", pod.name, "driver")
    sleeper = wait_for(lambda: next((pid for pid in agent.processes() if is_sleep(pid)), None), "the child of the driver")
    others = [pid for pid in agent.processes() if pid not in (main, sleeper)]
    # A stopped shim cannot act on the agent's death.
    for pid in others:
        os.kill(pid, signal.SIGSTOP)
    agent.signal(signal.SIGKILL)
    for pid in others:
        os.kill(pid, signal.SIGKILL)
    assert alive(sleeper)
    agent.start()

    wait_for(lambda: not alive(sleeper), "the end of the sleeper")
    assert logged(runtime, "night", "ready", attempt=2).name != pod.name


def test_sigterm_drains_like_a_node_that_shuts_down(agent: AgentProcess, runtime: LocalUnderTest, tmp_path: Path) -> None:
    script = f"[ -e {tmp_path}/again ] || {{ {WAIT_FOR_SIGTERM}; }}; echo done"
    agent.start()
    runtime.submit(jobset("night", sh(script), rules=[IGNORE_DISRUPTION]))
    logged(runtime, "night", "ready")
    code = agent.signal(signal.SIGTERM)
    (pod,) = look(runtime, "night").pods

    assert code == 0
    assert agent.processes() == []
    assert (pod.phase, pod.reason, pod.container("driver").exit_code) == ("Failed", "TerminationByKubelet", 75)
    assert not (agent.state / "agent.json").exists()
    (tmp_path / "again").touch()
    agent.start()
    assert finished(runtime, "night").completed_indexes == (0,)


def test_second_signal_ends_at_once(agent: AgentProcess, runtime: LocalUnderTest) -> None:
    """A pod that ignores SIGTERM for its whole grace period does not hold up a user who presses Ctrl-C twice."""
    agent.start()
    runtime.submit(jobset("night", sh("trap 'echo told' TERM; echo ready; while :; do sleep 0.1; done"), grace_s=1000))
    process = agent.running()
    logged(runtime, "night", "ready")
    process.send_signal(signal.SIGINT)
    logged(runtime, "night", "told")

    assert agent.signal(signal.SIGINT) == 0
    assert agent.processes() == []


def test_one_agent_for_one_folder(agent: AgentProcess) -> None:
    agent.start()
    second = agent.launch(stderr=subprocess.PIPE)
    _, message = second.communicate(timeout=600)

    assert second.returncode == 1
    assert b"another agent" in message


def test_wrong_configuration(tmp_path: Path) -> None:
    agent = AgentProcess(tmp_path, pods_max=3)
    process = agent.launch(stderr=subprocess.PIPE)
    _, message = process.communicate(timeout=600)

    assert process.returncode == 2
    assert b"unknown key 'pods_max'" in message


def test_what_waits_in_the_folder_is_found_at_the_start(agent: AgentProcess, runtime: LocalUnderTest) -> None:
    runtime.submit(jobset("night", sh("exit 0"), annotations={"a": "b"}))
    runtime.submit(jobset("later", sh("exit 0"), spec={"suspend": True}))
    runtime.submit(jobset("never", sh("echo started")))
    runtime.stop("never")
    seen = runtime.observe("night").jobset
    assert seen is not None
    assert (look(runtime, "night").phase, seen["metadata"]["annotations"]) == ("Running", {"a": "b"})
    assert look(runtime, "later").phase == "Suspended"
    agent.start()

    assert finished(runtime, "night").phase == "Completed"
    runtime.resume("later")
    assert finished(runtime, "later").phase == "Completed"
    assert runtime.observe("never").jobset is None


def test_pods_over_the_capacity_wait(tmp_path: Path) -> None:
    """One place: the second index is Pending, without a process, until the first one has ended."""
    agent = AgentProcess(tmp_path, max_pods=1)
    runtime = LocalUnderTest(agent.state)
    try:
        agent.start()
        script = f"echo ready; while ! [ -e {tmp_path}/$JOB_COMPLETION_INDEX ]; do sleep 0.05; done"
        runtime.submit(jobset("night", sh(script), job={"completions": 2}))
        logged(runtime, "night", "ready", index=0)
        waiting = pod_where(runtime, "night", lambda pod: pod.index == 1, "a pod of index 1")
        assert (waiting.phase, waiting.containers) == ("Pending", ())
        assert set(agent.pods("night")[waiting.name]["pids"]) == set()
        (tmp_path / "0").touch()
        logged(runtime, "night", "ready", index=1)
        (tmp_path / "1").touch()

        assert finished(runtime, "night").phase == "Completed"
    finally:
        agent.close()


@pytest.mark.parametrize(("workers", "share"), [(1, "8"), (3, "2"), (9, "2")])
def test_a_pod_gets_its_share_of_the_cores(tmp_path: Path, workers: int, share: str) -> None:
    """The variables of the rendered server: a worker alone has all cores; of nine, four run at once."""
    rendered = render(a_spec(), RUN, a_plan(rows=64), Settings(bucket="b", project="p"), name="night")
    pod = rendered["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    threads = [entry for entry in pod["initContainers"][0]["env"] if "OMP" in entry["name"]]
    agent = AgentProcess(tmp_path, cores=8, max_pods=4)
    runtime = LocalUnderTest(agent.state)
    try:
        agent.start()
        driver = sh("echo $OMP_NUM_THREADS $VLLM_CPU_OMP_THREADS_BIND", env=threads)
        runtime.submit(jobset("night", driver, job={"completions": workers}))
        pods = finished(runtime, "night").pods

        assert [list(runtime.logs("night", pod.name, "driver")) for pod in pods] == [[f"{share} nobind"]] * workers
    finally:
        agent.close()


def test_waiting_pod_can_be_evicted_and_stopped(tmp_path: Path) -> None:
    agent = AgentProcess(tmp_path, max_pods=1)
    runtime = LocalUnderTest(agent.state)
    try:
        agent.start()
        runtime.submit(jobset("night", sh(WAIT_FOR_SIGTERM), rules=[IGNORE_DISRUPTION], job={"completions": 2}))
        logged(runtime, "night", "ready", index=0)
        waiting = pod_where(runtime, "night", lambda pod: pod.index == 1, "a pod of index 1")
        runtime.evict("night", waiting.name)
        second = pod_where(runtime, "night", lambda pod: (pod.index, pod.attempt) == (1, 2), "a replacement")
        assert second.phase == "Pending"
        runtime.stop("night")

        wait_for(lambda: not (agent.state / "jobsets" / "night").exists(), "the end of the JobSet")
    finally:
        agent.close()


def test_pods_get_ports_of_their_own(agent: AgentProcess, runtime: LocalUnderTest) -> None:
    """Two pods with the same containerPort on one network: each server listens on its own, and each probe finds it."""
    agent.start()
    driver = sh('echo "$ENGINE_PORT"; echo ready; sleep 1000', env=[{"name": "ENGINE_PORT", "value": "8000"}])
    runtime.submit(jobset("night", driver, init=[engine()], job={"completions": 2}))
    pods = [logged(runtime, "night", "ready", index=index) for index in (0, 1)]
    printed = [next(iter(runtime.logs("night", pod.name, "driver"))) for pod in pods]
    recorded = agent.pods("night")

    assert printed == [str(recorded[pod.name]["ports"]["engine"]) for pod in pods]
    assert len(set(printed) - {"8000"}) == 2


def test_environment_is_layered(tmp_path: Path) -> None:
    """Node, image, manifest: the later one wins. Nothing else of the agent's environment gets in."""
    image = {"env": {"A": "image", "B": "image", "C": "image"}, "path": [], "entrypoint": ["sh", "-c"]}
    agent = AgentProcess(tmp_path, images={"i:1": image}, env={"A": "node", "D": "node"})
    runtime = LocalUnderTest(agent.state)
    try:
        agent.start()
        env = [{"name": "B", "value": "manifest"}]
        driver = {"name": "driver", "image": "i:1", "args": ['echo "$A $B $C $D [$PYTHONPATH]"'], "env": env}
        runtime.submit(jobset("night", driver))
        status = finished(runtime, "night")

        assert list(runtime.logs("night", status.pods[0].name, "driver")) == ["image manifest image node []"]
    finally:
        agent.close()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"image": "nobody/knows:1"}, "image 'nobody/knows:1' is not in the configuration"),
        ({"command": ["no-such-program"]}, "cannot start 'no-such-program'"),
        ({"command": []}, "the container has no command"),
    ],
)
def test_container_that_cannot_start_says_why(
    agent: AgentProcess, runtime: LocalUnderTest, fields: dict[str, object], says: str
) -> None:
    agent.start()
    runtime.submit(jobset("night", {**sh("exit 0"), **fields}))
    status = finished(runtime, "night")

    assert status.pods[0].container("driver").exit_code == 128
    assert says in next(iter(runtime.logs("night", status.pods[0].name, "driver")))


def test_a_manifest_that_the_agent_does_not_support_fails_the_jobset(agent: AgentProcess, runtime: LocalUnderTest) -> None:
    """With the field that is wrong; the agent and other JobSets go on."""
    agent.start()
    runtime.submit(jobset("bad", sh("exit 0"), spec={"failurePolicy": {"maxRestarts": 3}}))
    runtime.submit(jobset("good", sh("exit 0")))
    bad = finished(runtime, "bad")

    assert (bad.phase, bad.reason, bad.pods) == ("Failed", REFUSED, ())
    assert bad.message == "spec.failurePolicy: the local runtime does not support this field; remove it"
    assert finished(runtime, "good").phase == "Completed"
    runtime.stop("bad")
    wait_for(lambda: runtime.observe("bad").jobset is None, "the end of the JobSet")


LEAVES_A_SOCKET = """
import os, socket, tempfile, time, uuid
folder = tempfile.gettempdir()
socket.socket(socket.AF_UNIX).bind(f"{folder}/{uuid.uuid4()}")
print(folder, *os.listdir(folder), flush=True)
print("ready", flush=True)
time.sleep(1000)
"""
"""As vLLM's server does, and it ends without a chance to remove it."""


@pytest.mark.parametrize("length", [0, 80], ids=["short path", "long path"])
def test_temporary_files_go_with_the_pod_and_after_a_kill_with_the_next_agent(length: int) -> None:
    # Not pytest's folder, whose path is long.
    with tempfile.TemporaryDirectory(prefix="ns") as folder:
        path = Path(folder) / ("x" * length)
        path.mkdir(exist_ok=True)
        agent = AgentProcess(path)
        runtime = LocalUnderTest(agent.state)
        try:
            agent.start()
            runtime.submit(jobset("night", {**sh(""), "command": ["python3", "-c", LEAVES_A_SOCKET]}, init=[engine()]))
            pod = logged(runtime, "night", "ready")
            own, left = next(iter(runtime.logs("night", pod.name, "driver"))).split()
            assert (Path(own) / left).is_socket()
            assert Path(own).is_relative_to(agent.state) == (length == 0)

            runtime.stop("night")
            wait_for(lambda: runtime.observe("night").jobset is None, "the end of the JobSet")
            assert not Path(own).parent.exists()

            runtime.submit(jobset("killed", {**sh(""), "command": ["python3", "-c", LEAVES_A_SOCKET]}))
            pod = logged(runtime, "killed", "ready")
            own, left = next(iter(runtime.logs("killed", pod.name, "driver"))).split()
            agent.signal(signal.SIGKILL)
            assert (Path(own) / left).is_socket()
            agent.start()
            wait_for(lambda: not (Path(own) / left).exists(), "an agent that has cleaned")
            assert agent.signal(signal.SIGTERM) == 0
            assert not Path(own).parent.exists()
        finally:
            agent.close()


def test_working_folder_is_the_pods_own(agent: AgentProcess, runtime: LocalUnderTest) -> None:
    """And goes with the pod."""
    agent.start()
    runtime.submit(jobset("night", sh("pwd; touch left-behind")))
    status = finished(runtime, "night")
    (folder,) = runtime.logs("night", status.pods[0].name, "driver")

    assert Path(folder).is_relative_to(agent.state)
    assert not Path(folder).exists()
