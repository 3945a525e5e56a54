"""The contract of a runtime, as Kubernetes keeps it. Written against the interface only: every runtime can be put to it.

`test_contract.py` beside it puts the local one to it, `tests/cluster/test_contract.py` a cluster.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from nightshift.jobset.labels import PAUSED_ANNOTATION
from nightshift.jobset.runtime import JobSetExists, JobSetNotFound, RequestRefused
from tests.integration.runtime.manifests import (
    ASK_ENGINE,
    IGNORE_DISRUPTION,
    LAST_LINE_S,
    SICKEN_ENGINE,
    WAIT_FOR_SIGTERM,
    Door,
    RuntimeUnderTest,
    engine,
    finished,
    jobset,
    logged,
    pod_where,
    sh,
    wait_for,
)
from tests.integration.runtime.view import look

CRASH = "exec python3 -c 'import ctypes; ctypes.string_at(0)'"
"""Ends by SIGSEGV. A container's first process is not reached by signals from inside, but by its own faults."""

DRAIN = f"trap 'echo told; sleep {LAST_LINE_S}; exit 75' TERM; echo ready; while :; do sleep 0.1; done"


def a_door(host: str | None) -> Door:
    if host is None:
        pytest.skip("pods of a cluster that KUBECONFIG names may not reach this machine")
    return Door(host)


def test_every_index_runs_and_the_jobset_completes(runtime: RuntimeUnderTest, image: str, name: str) -> None:
    """More indexes than run at once; each learns its number."""
    driver = sh("echo index=$JOB_COMPLETION_INDEX", image=image)
    runtime.submit(jobset(name, driver, job={"completions": 3, "parallelism": 2}, annotations={"a": "b"}))
    status = finished(runtime, name)

    assert (status.phase, status.reason) == ("Completed", "AllJobsCompleted")
    assert (status.completed_indexes, status.failed_indexes) == ((0, 1, 2), ())
    assert {pod.index: list(runtime.logs(name, pod.name, "driver")) for pod in status.pods} == {
        index: [f"index={index}"] for index in range(3)
    }
    assert [pod.container("driver").exit_code for pod in status.pods] == [0, 0, 0]
    seen = runtime.observe(name).jobset
    assert seen is not None
    assert seen["metadata"]["annotations"] == {"a": "b"}


def test_driver_waits_for_the_startup_probe(runtime: RuntimeUnderTest, image: str, name: str) -> None:
    """The sidecar refuses two probes: the driver finds that it has been asked three times at least."""
    env = [{"name": "ENGINE_PORT", "value": "8000"}]
    driver = {"name": "driver", "image": image, "command": ["python3", "-c", ASK_ENGINE], "env": env}
    runtime.submit(jobset(name, driver, init=[engine(image)]))
    status = finished(runtime, name)

    (pod,) = status.pods
    assert status.phase == "Completed"
    (line,) = runtime.logs(name, pod.name, "driver")
    assert int(line.removeprefix("probes ")) >= 3


def test_sidecar_is_told_to_end_after_the_driver(runtime: RuntimeUnderTest, image: str, name: str) -> None:
    """In a pod that is evicted the driver can still ask its server while it drains."""
    script = "trap 'sleep 1; python3 -c \"$ASK\"; exit 75' TERM; echo ready; while :; do sleep 0.1; done"
    driver = sh(script, image=image, env=[{"name": "ENGINE_PORT", "value": "8000"}, {"name": "ASK", "value": ASK_ENGINE}])
    runtime.submit(jobset(name, driver, init=[engine(image)], rules=[IGNORE_DISRUPTION]))
    pod = logged(runtime, name, "ready")
    runtime.evict(name, pod.name)
    ended = pod_where(runtime, name, lambda each: each.name == pod.name and each.phase == "Failed", "the evicted pod's end")

    wait_for(lambda: list(runtime.logs(name, pod.name, "server")) == ["listening", "told"], "the whole log of the sidecar")
    lines = list(runtime.logs(name, pod.name, "driver"))
    assert lines[0] == "ready"
    assert lines[1].startswith("probes ")
    assert ended.container("driver").exit_code == 75


def test_sidecars_exit_code_decides_nothing(runtime: RuntimeUnderTest, image: str, name: str) -> None:
    """A sidecar ends with its pod, and however it ends, the pod's result is the driver's."""
    script = "trap 'echo told; exit 9' TERM; echo up; touch up; while :; do sleep 0.1; done"
    sidecar = sh(script, name="server", image=image)
    probe = {"command": ["test", "-e", "up"]}
    up = {"exec": probe, "periodSeconds": 1, "timeoutSeconds": 30, "failureThreshold": 300}
    init = [{**sidecar, "restartPolicy": "Always", "startupProbe": up}]
    runtime.submit(jobset(name, sh("echo done", image=image), init=init))
    status = finished(runtime, name)

    assert status.phase == "Completed"
    assert list(runtime.logs(name, status.pods[0].name, "server")) == ["up", "told"]


def test_init_containers_run_in_order(runtime: RuntimeUnderTest, image: str, name: str) -> None:
    """An ordinary init container after a sidecar finds it up; when it fails, the driver never starts."""
    check = {
        "name": "check",
        "image": image,
        "command": ["python3", "-c", f"{ASK_ENGINE}; raise SystemExit(3)"],
        "env": [{"name": "ENGINE_PORT", "value": "8000"}],
    }
    runtime.submit(jobset(name, sh("echo driver", image=image), init=[engine(image), check]))
    status = finished(runtime, name)

    (pod,) = status.pods
    assert status.phase == "Failed"
    assert pod.container("check").exit_code == 3
    assert len(list(runtime.logs(name, pod.name, "check"))) == 1
    assert list(runtime.logs(name, pod.name, "driver")) == []


def test_failing_index_is_tried_again_then_fails_the_job(runtime: RuntimeUnderTest, image: str, name: str) -> None:
    """Index 0 gets its retry, the other index finishes, and the JobSet names the Job's reason."""
    driver = sh("exit $((7 * (1 - JOB_COMPLETION_INDEX)))", image=image)
    runtime.submit(jobset(name, driver, job={"completions": 2, "backoffLimitPerIndex": 1}))
    status = finished(runtime, name)

    assert (status.phase, status.reason) == ("Failed", "FailedJobs")
    assert status.message == _failed(name, "FailedIndexes: Job has failed indexes")
    assert (status.completed_indexes, status.failed_indexes) == ((1,), (0,))
    failed = [pod for pod in status.pods if pod.index == 0]
    assert [pod.attempt for pod in failed] == [1, 2]
    assert [pod.container("driver").exit_code for pod in failed] == [7, 7]


def test_signal_is_128_more(runtime: RuntimeUnderTest, image: str, name: str) -> None:
    runtime.submit(jobset(name, sh(CRASH, image=image)))
    driver = finished(runtime, name).pods[0].container("driver")

    assert driver.exit_code == 139


def test_signals_are_not_ignored(runtime: RuntimeUnderTest, image: str, name: str) -> None:
    """A writer whose reader has gone ends silently, as in any shell."""
    runtime.submit(jobset(name, sh("yes | head -n 1", image=image)))

    assert list(runtime.logs(name, finished(runtime, name).pods[0].name, "driver")) == ["y"]


def test_one_failing_container_fails_the_pod(runtime: RuntimeUnderTest, image: str, name: str) -> None:
    runtime.submit(jobset(name, sh("exit 0", image=image), sh("exit 5", name="helper", image=image)))
    status = finished(runtime, name)

    assert status.phase == "Failed"
    assert [status.pods[0].container(each).exit_code for each in ("driver", "helper")] == [0, 5]


def test_fail_index_needs_no_retry(runtime: RuntimeUnderTest, image: str, name: str) -> None:
    """Exit code 78 is permanent: one pod, whatever the limit; other indexes are not touched."""
    rule = {"action": "FailIndex", "onExitCodes": {"containerName": "driver", "operator": "In", "values": [78]}}
    driver = sh("[ $JOB_COMPLETION_INDEX = 1 ] && exit 78; exit 0", image=image)
    runtime.submit(jobset(name, driver, rules=[rule], job={"completions": 3, "backoffLimitPerIndex": 3}))
    status = finished(runtime, name)

    assert (status.completed_indexes, status.failed_indexes) == ((0, 2), (1,))
    assert len(status.pods) == 3


def test_fail_job_ends_the_other_pods(
    runtime: RuntimeUnderTest, image: str, name: str, namespace: str, host: str | None
) -> None:
    door = a_door(host)
    rule = {"action": "FailJob", "onExitCodes": {"containerName": "driver", "operator": "In", "values": [42]}}
    script = f"[ $JOB_COMPLETION_INDEX = 1 ] && {{ ({door.wait}); exit 42; }}; {WAIT_FOR_SIGTERM}"
    runtime.submit(jobset(name, sh(script, image=image, env=door.env), rules=[rule], job={"completions": 2}))
    for index in (0, 1):
        logged(runtime, name, "ready", index=index)
    with door.opened():
        status = finished(runtime, name)

    culprit = next(pod.name for pod in status.pods if pod.index == 1)
    why = f"Container driver for pod {namespace}/{culprit} failed with exit code 42 matching FailJob rule at index 0"
    assert (status.phase, status.reason) == ("Failed", "FailedJobs")
    assert status.message == _failed(name, f"PodFailurePolicy: {why}")
    assert {pod.index: pod.container("driver").exit_code for pod in status.pods} == {0: 75, 1: 42}


def test_too_many_failed_indexes_end_the_job(runtime: RuntimeUnderTest, image: str, name: str) -> None:
    driver = sh(f"[ $JOB_COMPLETION_INDEX = 0 ] && exit 1; {WAIT_FOR_SIGTERM}", image=image)
    runtime.submit(jobset(name, driver, job={"completions": 2, "maxFailedIndexes": 0}))
    status = finished(runtime, name)

    why = "MaxFailedIndexesExceeded: Job has exceeded the specified maximal number of failed indexes"
    assert status.message == _failed(name, why)
    assert status.failed_indexes == (0,)


def test_backoff_limit_counts_all_indexes(runtime: RuntimeUnderTest, image: str, name: str) -> None:
    """Without a limit for each index."""
    job = {"completions": 2, "backoffLimitPerIndex": None, "backoffLimit": 0}
    runtime.submit(jobset(name, sh(f"[ $JOB_COMPLETION_INDEX = 0 ] && exit 1; {WAIT_FOR_SIGTERM}", image=image), job=job))
    status = finished(runtime, name)

    assert status.message == _failed(name, "BackoffLimitExceeded: Job has reached the specified backoff limit")
    assert (status.completed_indexes, status.failed_indexes) == ((), ())


def test_rule_without_a_container_means_sidecars_too(runtime: RuntimeUnderTest, image: str, name: str, namespace: str) -> None:
    """Why rules name the driver: here the exit code is that of a sidecar that was told to end."""
    sidecar = sh("trap 'exit 9' TERM; while :; do sleep 0.1; done", name="server", image=image, restartPolicy="Always")
    rule = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [9]}}
    runtime.submit(jobset(name, sh("sleep 5; exit 1", image=image), init=[sidecar], rules=[rule]))
    status = finished(runtime, name)

    why = f"Container server for pod {namespace}/{status.pods[0].name} failed with exit code 9 matching FailJob rule at index 0"
    assert status.message == _failed(name, f"PodFailurePolicy: {why}")


def test_disruption_is_not_counted(runtime: RuntimeUnderTest, image: str, name: str) -> None:
    """No retries are allowed, and yet an evicted pod is replaced: the rule ignores its exit code."""
    runtime.submit(jobset(name, sh(DRAIN, image=image), rules=[IGNORE_DISRUPTION]))
    first = logged(runtime, name, "ready")
    runtime.evict(name, first.name)
    second = logged(runtime, name, "ready", attempt=2)
    status = look(runtime, name)
    ended = next(pod for pod in status.pods if pod.name == first.name)

    assert (status.phase, status.failed_indexes) == ("Running", ())
    assert (ended.phase, ended.reason, ended.container("driver").exit_code) == ("Failed", "EvictionByEvictionAPI", 75)
    assert list(runtime.logs(name, first.name, "driver")) == ["ready", "told"]
    assert second.name != first.name


def test_disruption_without_a_rule_is_counted(runtime: RuntimeUnderTest, image: str, name: str) -> None:
    runtime.submit(jobset(name, sh(WAIT_FOR_SIGTERM, image=image)))
    runtime.evict(name, logged(runtime, name, "ready").name)

    assert finished(runtime, name).failed_indexes == (0,)


def test_exit_zero_after_sigterm_succeeds(runtime: RuntimeUnderTest, image: str, name: str) -> None:
    """Why a driver must never exit 0 with work left."""
    driver = sh("trap 'exit 0' TERM; echo ready; while :; do sleep 0.1; done", image=image)
    runtime.submit(jobset(name, driver, rules=[IGNORE_DISRUPTION]))
    runtime.evict(name, logged(runtime, name, "ready").name)
    status = finished(runtime, name)

    assert (status.phase, status.completed_indexes) == ("Completed", (0,))


def test_only_the_first_process_is_told_to_end(runtime: RuntimeUnderTest, image: str, name: str) -> None:
    """What it has started is its own to tell, and is killed with it."""
    child = "trap 'echo child' TERM; while :; do sleep 0.1; done"
    driver = sh('sh -c "$CHILD" & trap "sleep 1; exit 75" TERM; echo ready; while :; do sleep 0.1; done', image=image)
    runtime.submit(jobset(name, {**driver, "env": [{"name": "CHILD", "value": child}]}))
    runtime.evict(name, logged(runtime, name, "ready").name)
    (pod,) = finished(runtime, name).pods

    assert pod.container("driver").exit_code == 75
    assert list(runtime.logs(name, pod.name, "driver")) == ["ready"]


def test_command_that_is_not_there(runtime: RuntimeUnderTest, image: str, name: str) -> None:
    runtime.submit(jobset(name, {"name": "driver", "image": image, "command": ["no-such-program"]}))

    assert finished(runtime, name).pods[0].container("driver").exit_code == 128


def test_log_is_what_was_written(runtime: RuntimeUnderTest, image: str, name: str) -> None:
    """Both streams; empty, indented and long lines, carriage returns, what is not UTF-8, and an end without a line end."""
    # What comes from one stream while the other is in the middle of a line may be put into that line.
    script = r"""
import os, time
os.write(2, b"from stderr\n")
time.sleep(2)
os.write(1, b"first\n\n  indented \n10%\r20%\n")
os.write(1, b"x" * 100_000 + b"\n\xff\xe2\x80\xa8\x0c\n")
os.write(1, b"no line end")
"""
    runtime.submit(jobset(name, {"name": "driver", "image": image, "command": ["python3", "-c", script]}))
    (pod,) = finished(runtime, name).pods
    lines = list(runtime.logs(name, pod.name, "driver"))
    written = ["first", "", "  indented ", "10%\r20%", "x" * 100_000, "\ufffd\u2028\x0c", "no line end"]

    # A container runtime reads the two streams one beside the other.
    assert [line for line in lines if line != "from stderr"] == written
    assert lines.count("from stderr") == 1
    assert list(runtime.logs(name, pod.name, "driver", last=2)) == lines[-2:]


def test_grace_period_ends_in_sigkill(runtime: RuntimeUnderTest, image: str, name: str) -> None:
    driver = sh("trap '' TERM; echo ready; while :; do sleep 0.1; done", image=image)
    runtime.submit(jobset(name, driver, grace_s=1))
    runtime.evict(name, logged(runtime, name, "ready").name)

    assert finished(runtime, name).pods[0].container("driver").exit_code == 137


def test_deadline_fails_the_job(runtime: RuntimeUnderTest, image: str, name: str) -> None:
    # Longer than a busy machine takes to start a pod: a container's first process does not notice a signal before its trap.
    runtime.submit(jobset(name, sh(DRAIN, image=image), job={"activeDeadlineSeconds": 40}))
    status = finished(runtime, name)

    assert (status.phase, status.reason) == ("Failed", "FailedJobs")
    assert status.message == _failed(name, "DeadlineExceeded: Job was active longer than specified deadline")
    assert list(runtime.logs(name, status.pods[0].name, "driver")) == ["ready", "told"]


def test_dead_sidecar_is_restarted(runtime: RuntimeUnderTest, image: str, name: str) -> None:
    """The driver goes on meanwhile; the log keeps what both lives wrote."""
    sidecar = sh(f"echo up; sleep 1; {CRASH}", name="server", image=image, restartPolicy="Always")
    runtime.submit(jobset(name, sh(WAIT_FOR_SIGTERM, image=image), init=[sidecar]))
    logged(runtime, name, "ready")
    pod = pod_where(runtime, name, lambda pod: pod.container("server").restarts >= 2, "two restarts of the sidecar")

    assert (pod.phase, pod.container("driver").exit_code) == ("Running", None)
    assert list(runtime.logs(name, pod.name, "driver")) == ["ready"]
    assert len([line for line in runtime.logs(name, pod.name, "server") if line == "up"]) >= 2


def test_failed_startup_probe_restarts_the_sidecar(runtime: RuntimeUnderTest, image: str, name: str) -> None:
    """And the driver never starts."""
    probe = {"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 1}
    sidecar = sh(WAIT_FOR_SIGTERM, name="server", image=image, restartPolicy="Always", startupProbe=probe)
    runtime.submit(jobset(name, sh("echo driver", image=image), init=[sidecar]))
    pod = pod_where(runtime, name, lambda pod: pod.container("server").restarts >= 1, "a restart of the sidecar")

    assert (pod.phase, pod.container("server").started) == ("Pending", False)
    assert list(runtime.logs(name, pod.name, "driver")) == []
    # The first one may be told before its trap is set; it is restarted again and again.
    wait_for(lambda: "told" in list(runtime.logs(name, pod.name, "server")), "a sidecar that is told to end")


def test_failed_liveness_probe_restarts_the_sidecar(runtime: RuntimeUnderTest, image: str, name: str) -> None:
    """The driver, which goes on, is what makes it fail, so the driver runs by then. Started again, the sidecar is well."""
    sidecar = engine(
        image,
        startupProbe={"tcpSocket": {"port": "engine"}, "periodSeconds": 1, "failureThreshold": 30},
        livenessProbe={
            "httpGet": {"path": "/live", "port": 8000},
            "periodSeconds": 1,
            "timeoutSeconds": 30,
            "failureThreshold": 2,
        },
    )
    env = [{"name": "ENGINE_PORT", "value": "8000"}, {"name": "SICKEN", "value": SICKEN_ENGINE}]
    driver = sh(f'python3 -c "$SICKEN"; {WAIT_FOR_SIGTERM}', image=image, env=env)
    runtime.submit(jobset(name, driver, init=[sidecar]))
    pod = pod_where(runtime, name, lambda pod: pod.container("server").restarts >= 1, "a restart of the sidecar")

    assert pod.phase == "Running"


def test_readiness_is_reported_and_gates_nothing(runtime: RuntimeUnderTest, image: str, name: str) -> None:
    sidecar = engine(image)
    del sidecar["startupProbe"]
    sidecar["readinessProbe"] = {"httpGet": {"path": "/health", "port": "engine"}, "periodSeconds": 1}
    runtime.submit(jobset(name, sh(WAIT_FOR_SIGTERM, image=image), init=[sidecar]))

    logged(runtime, name, "ready")
    pod_where(runtime, name, lambda pod: pod.container("server").ready, "a sidecar that is ready")


def test_variables_are_expanded(runtime: RuntimeUnderTest, image: str, name: str) -> None:
    """In command, args and values after the variable, once; unknown ones stay, and a double dollar is a dollar."""
    env = [
        {"name": "A", "value": "1"},
        {"name": "B", "value": "$(A)$(C)"},
        {"name": "C", "value": "3"},
        {"name": "D", "value": "$$(A) $$$$ $$$(A) $x $"},
    ]
    driver = {"name": "driver", "image": image, "command": ["printf", "%s\\n", "$(C)$$(C)"], "env": env}
    driver["args"] = [
        "$(A) $(B) $$(A) $(NONE) $(JOB_COMPLETION_INDEX)",
        "$(D)",
        "$$$$(A) $$$(A) $",
        "$(A$(A)",
        "--flag=$$(HOME)",
    ]
    runtime.submit(jobset(name, driver))
    status = finished(runtime, name)

    assert list(runtime.logs(name, status.pods[0].name, "driver")) == [
        "3$(C)",
        "1 1$(C) $(A) $(NONE) 0",
        "$(A) $$ $1 $x $",
        "$$(A) $1 $",
        "$(A$(A)",
        "--flag=$(HOME)",
    ]


def test_variables_of_a_probe_are_as_the_manifest_has_them(runtime: RuntimeUnderTest, image: str, name: str) -> None:
    """A kubelet takes a value without what it refers to, and nothing for a field."""
    env = [
        {"name": "A", "value": "1"},
        {"name": "B", "value": "$(A)"},
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ]
    compared = ["test", "$(A)-$(B)-$(POD)-$(NONE)-$$(A)", "=", "1-$$(A)--$$(NONE)-$$(A)"]
    up = {"exec": {"command": compared}, "periodSeconds": 1, "timeoutSeconds": 30, "failureThreshold": 3}
    sidecar = sh(WAIT_FOR_SIGTERM, name="server", image=image, env=env)
    runtime.submit(
        jobset(name, sh("echo done", image=image), init=[{**sidecar, "restartPolicy": "Always", "startupProbe": up}])
    )

    assert finished(runtime, name).phase == "Completed"


def test_a_container_knows_its_cpu_request(runtime: RuntimeUnderTest, image: str, name: str) -> None:
    """In whole CPUs, rounded up: how many threads an engine may start."""
    request = {"resourceFieldRef": {"resource": "requests.cpu", "divisor": "1"}}
    resources = {"requests": {"cpu": "10m"}}
    driver = sh("echo $CPUS", image=image, env=[{"name": "CPUS", "valueFrom": request}], resources=resources)
    runtime.submit(jobset(name, driver))
    (line,) = runtime.logs(name, finished(runtime, name).pods[0].name, "driver")

    assert int(line) >= 1


def test_pod_knows_its_names(runtime: RuntimeUnderTest, image: str, name: str, namespace: str) -> None:
    paths = {
        "POD": "metadata.name",
        "SPACE": "metadata.namespace",
        "INDEX": "metadata.annotations['batch.kubernetes.io/job-completion-index']",
        "NODE": "spec.nodeName",
    }
    env = [{"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in paths.items()]
    runtime.submit(jobset(name, sh('echo "$POD $SPACE $INDEX ${NODE:+node}"', image=image, env=env)))
    pod = finished(runtime, name).pods[0]

    assert list(runtime.logs(name, pod.name, "driver")) == [f"{pod.name} {namespace} 0 node"]
    assert pod.name.startswith(f"{name}-worker-0-0-")


def test_suspended_jobset_starts_when_resumed(runtime: RuntimeUnderTest, image: str, name: str) -> None:
    """A JobSet submitted after it has run to its end meanwhile."""
    runtime.submit(jobset(name, sh("exit 0", image=image), spec={"suspend": True}))
    runtime.submit(jobset(f"{name}-not", sh("exit 0", image=image)))
    finished(runtime, f"{name}-not")
    runtime.stop(f"{name}-not")
    status = look(runtime, name)
    assert (status.phase, status.pods) == ("Suspended", ())
    runtime.resume(name)

    assert finished(runtime, name).phase == "Completed"


def test_a_paused_jobset_drains_and_goes_on_where_it_stopped(
    runtime: RuntimeUnderTest, image: str, name: str, host: str | None
) -> None:
    """An index that is done stays done. No failure is counted: with one, the index would have failed."""
    door = a_door(host)
    script = f"[ $JOB_COMPLETION_INDEX = 0 ] && exit 0; {door.wait}"
    runtime.submit(jobset(name, sh(script, image=image, env=door.env), job={"completions": 2}))
    logged(runtime, name, "ready", index=1)
    wait_for(lambda: look(runtime, name).completed_indexes == (0,), "the end of index 0")
    runtime.pause(name, "paused by ada")
    runtime.pause(name, "paused by ada")

    logged(runtime, name, "told", index=1)
    seen = runtime.observe(name).jobset
    assert seen is not None
    assert seen["metadata"]["annotations"][PAUSED_ANNOTATION] == "paused by ada"
    wait_for(lambda: all(pod.phase in ("Succeeded", "Failed") for pod in look(runtime, name).pods), "the end of its pods")
    assert look(runtime, name).phase == "Suspended"
    runtime.resume(name)
    runtime.resume(name)

    with door.opened():
        status = finished(runtime, name)
    assert (status.phase, status.completed_indexes) == ("Completed", (0, 1))
    assert sorted(pod.index for pod in status.pods) == [0, 1, 1]
    seen = runtime.observe(name).jobset
    assert seen is not None
    assert PAUSED_ANNOTATION not in (seen["metadata"].get("annotations") or {})


def test_stop_drains_and_frees_the_name(runtime: RuntimeUnderTest, image: str, name: str, host: str | None) -> None:
    """The JobSet is there while its pod drains and gone afterwards; then its name can be used again."""
    door = a_door(host)
    driver = sh(f"trap '({door.wait}); exit 75' TERM; echo ready; while :; do sleep 0.1; done", image=image, env=door.env)
    runtime.submit(jobset(name, driver, grace_s=300))
    logged(runtime, name, "ready")
    runtime.stop(name)
    runtime.stop(name)
    assert runtime.observe(name).jobset is not None
    with pytest.raises(JobSetExists):
        runtime.submit(jobset(name, driver))

    with door.opened():
        wait_for(lambda: _is_gone(runtime, name), "the end of the JobSet")
    with pytest.raises(JobSetNotFound):
        runtime.logs(name, "any", "driver")
    runtime.stop(name)
    runtime.submit(jobset(name, sh("exit 0", image=image)))
    assert finished(runtime, name).phase == "Completed"


def test_name_is_given_once(runtime: RuntimeUnderTest, image: str, name: str) -> None:
    """Of eight that race one wins, and later ones are refused too."""
    manifest = jobset(name, sh("exit 0", image=image))

    def submit(_: int) -> bool:
        try:
            runtime.submit(manifest)
        except JobSetExists:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(submit, range(8))) == 1
    finished(runtime, name)
    with pytest.raises(JobSetExists):
        runtime.submit(manifest)


def test_what_is_no_manifest_is_refused(runtime: RuntimeUnderTest, image: str, name: str) -> None:
    """With the field that is wrong; and nothing is made of it."""
    wrong = jobset(name, sh("exit 0", image=image), job={"completions": "two", "parallelism": 1})
    with pytest.raises(RequestRefused, match="completions"):
        runtime.submit(wrong)

    assert runtime.observe(name).jobset is None


def test_unknown_jobset(runtime: RuntimeUnderTest) -> None:
    assert runtime.observe("nobody").jobset is None
    with pytest.raises(JobSetNotFound):
        runtime.claim("nobody", "", "somebody")
    with pytest.raises(JobSetNotFound):
        runtime.mark_judged("nobody", "", "somebody")
    with pytest.raises(JobSetNotFound):
        runtime.logs("nobody", "any", "driver")
    runtime.stop("nobody")


def test_finished_jobset_goes_after_its_time(runtime: RuntimeUnderTest, image: str, name: str) -> None:
    runtime.submit(jobset(name, sh("exit 0", image=image), spec={"ttlSecondsAfterFinished": 1}))

    wait_for(lambda: _is_gone(runtime, name), "the end of the JobSet")


def _failed(name: str, why: str) -> str:
    """The message of a JobSet whose only Job failed."""
    return f"jobset failed due to one or more job failures (first failed job: {name}-worker-0): {why}"


def _is_gone(runtime: RuntimeUnderTest, name: str) -> bool:
    return runtime.observe(name).jobset is None
