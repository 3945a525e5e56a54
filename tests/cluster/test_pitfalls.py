"""The twelve ways in which today's Kubernetes Job operators lose, duplicate or orphan work, and that ours has none of them.

`TestPitfalls` has a test for each. `TestToday` puts some of the same scenarios to the provider's KubernetesJobOperator and
asserts that it does what it does today: a failure there means that the provider has mended it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import threading
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.cncf.kubernetes.operators.job import KubernetesJobOperator
from airflow.providers.cncf.kubernetes.triggers.job import KubernetesJobTrigger
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, TaskDeferred
from kubernetes.client import ApiException

from nightshift.operators.jobset import (
    JobSetApplicationFailure,
    JobSetDeadlineExceeded,
    JobSetTaskError,
)
from tests.cluster.airflow_task import Deferred, Following, LoggingOperator, Task
from tests.cluster.api_proxy import ApiProxy
from tests.cluster.kube import IMAGE, Kubernetes, Namespace, a_jobset
from tests.cluster.scenes import (
    SHORT,
    UNTIL_LET_GO,
    WORKS,
    WORKS_UNTIL_LET_GO,
    a_short_jobset,
    at_work,
    evict,
    letting_go,
    pod_of,
    running,
    until,
    without_patience,
)

pytestmark = pytest.mark.cluster

PATIENCE_S = 300


@pytest.fixture(autouse=True)
def _no_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    """No trigger waits for Airflow's scheduler here."""
    monkeypatch.setattr("nightshift.triggers.jobset.SETTLE_S", 0)
    monkeypatch.setattr("nightshift.jobset.fleet.conclude.RESUME_PAUSE_S", 0)


class TestPitfalls:
    """Numbered as in docs/parts/jobset-operator.md."""

    def test_1_a_retry_makes_no_second_jobset(self, namespace: Namespace) -> None:
        task = Task(namespace, a_short_jobset("once", SHORT))

        class Dying(LoggingOperator):
            """Its worker dies when the JobSet is made and nobody knows."""

            def waiter(self, *_: Any) -> Any:
                raise SystemError("killed")

        dying = task.operator(Dying)
        with pytest.raises(SystemError):
            dying.execute(task.context("first"))
        [made] = task.jobsets()

        deferred = task.execute()

        assert deferred.jobset == made["metadata"]["name"]
        assert [each["metadata"]["uid"] for each in task.jobsets()] == [made["metadata"]["uid"]]
        assert task.finish(deferred)["outcome"] == "succeeded"

    def test_2_a_retry_does_not_take_the_pods_of_the_attempt_before_for_its_own(self, namespace: Namespace) -> None:
        leaves_work = "import os, sys; print('pod', os.environ['HOSTNAME']); sys.exit(75)"
        document = without_patience(a_short_jobset("twice", leaves_work))
        task = Task(namespace, document, keep_finished=True)
        with pytest.raises(JobSetTaskError, match="exit code 75"):
            task.finish()
        [before] = task.log.of("driver")

        with pytest.raises(JobSetTaskError, match="exit code 75"):
            task.finish()

        assert len(task.jobsets()) == 2
        _, after = task.log.of("driver")
        assert after != before

    async def test_3_a_jobset_that_has_no_pods_yet_is_waited_for(self, namespace: Namespace) -> None:
        document = a_short_jobset("held", "print('done')")
        document["spec"]["suspend"] = True
        task = Task(namespace, document)
        deferred = await asyncio.to_thread(task.execute)
        following = Following(task, deferred)
        await until("the trigger's word", lambda: task.log.said("is suspended"))
        # It signs the JobSet when it has looked around for a while.
        await asyncio.to_thread(namespace.wait_until, "its signature", lambda: task.owner() != deferred.attempt)
        assert not following.fired

        namespace.kubectl("patch", "jobset", deferred.jobset, "--type=merge", "-p", '{"spec": {"suspend": false}}')

        done = await asyncio.to_thread(task.resume, deferred, await following.event())
        assert done["outcome"] == "succeeded"

    def test_4_a_jobset_whose_waiting_task_is_killed_goes(self, namespace: Namespace) -> None:
        task = Task(namespace, a_short_jobset("killed", WORKS))
        deferred = task.execute()

        task.kill(deferred)

        namespace.wait_until("the end of the JobSet", lambda: not task.jobsets())
        namespace.wait_until("the end of its pods", lambda: not namespace.get("pods"))

    def test_5_a_jobset_goes_at_its_deadline(self, namespace: Namespace) -> None:
        task = Task(namespace, a_short_jobset("late", WORKS), deadline=timedelta(seconds=12))

        with pytest.raises(JobSetDeadlineExceeded, match="The deadline passed"):
            task.finish()

        assert task.jobsets() == []
        assert namespace.get("pods") == []

    async def test_6_an_api_that_fails_for_a_while_ends_nothing(
        self, cluster: Kubernetes, namespace: Namespace, tmp_path: Path
    ) -> None:
        with ApiProxy(cluster.kubeconfig, tmp_path) as proxy:
            task = Task(namespace, a_short_jobset("calm", SHORT), kubeconfig=proxy.kubeconfig)
            deferred = await asyncio.to_thread(task.execute)
            following = Following(task, deferred)
            await until("the trigger's first look", lambda: any(call.verb == "watch" for call in proxy.calls))
            with proxy.refusing():
                # The provider's trigger ends at the first.
                await until("its fourth try", lambda: following.sessions > 4)
                assert not following.fired
            event = await following.event()
            done = await asyncio.to_thread(task.resume, deferred, event)

        assert done["outcome"] == "succeeded"
        assert task.log.said("The cluster does not answer")
        assert task.log.of("driver") == ["at work", "done"]

    async def test_7_a_pod_that_replaces_another_is_seen(self, namespace: Namespace) -> None:
        task = Task(namespace, a_short_jobset("replaced", f"import uuid; print(uuid.uuid4())\n{UNTIL_LET_GO}"))
        deferred = await asyncio.to_thread(task.execute)
        following = Following(task, deferred)
        await until("its first words", lambda: task.log.of("driver"))
        pod = await asyncio.to_thread(at_work, namespace)

        await asyncio.to_thread(evict, namespace, pod)

        await until("the other pod's first words", lambda: len(task.log.of("driver")) == 2)
        with letting_go(namespace):
            event = await following.event()
        done = await asyncio.to_thread(task.resume, deferred, event)
        assert done["outcome"] == "succeeded"
        first, second = task.log.of("driver")
        assert first != second

    async def test_8_the_log_of_every_container_comes_while_it_runs_and_stays(self, namespace: Namespace) -> None:
        other = {"name": "other", "image": IMAGE, "command": ["python3", "-u", "-c", "print('beside')"]}
        sidecar = {**other, "name": "sidecar", "restartPolicy": "Always", "command": ["python3", "-u", "-c", WORKS]}
        document = a_short_jobset("told", WORKS, initContainers=[sidecar])
        pod_of(document)["containers"].append(other)
        task = Task(namespace, document)
        deferred = await asyncio.to_thread(task.execute)
        following = Following(task, deferred)

        await until("every container's log", lambda: all(map(task.log.of, ("driver", "other", "sidecar"))))

        assert not following.fired
        pod = await asyncio.to_thread(at_work, namespace)
        await asyncio.to_thread(namespace.kubectl, "delete", "pod", pod["metadata"]["name"], "--force")
        await asyncio.to_thread(task.kill, deferred)
        assert (await following.event())["ending"] == "lost"
        assert task.log.of("other")[0] == "beside"

    def test_9_the_result_needs_no_container_of_its_own(self, namespace: Namespace) -> None:
        task = Task(namespace, a_short_jobset("plain", "print('done')"), keep_finished=True)

        result = task.finish()

        assert result == {"name": result["name"], "namespace": namespace.name, "outcome": "succeeded"}
        [pod] = namespace.get("pods")
        assert [container["name"] for container in pod["spec"]["containers"]] == ["driver"]
        assert "initContainers" not in pod["spec"]

    async def test_10_a_condition_that_is_false_is_not_true(self, namespace: Namespace) -> None:
        task = Task(namespace, a_short_jobset("unfailed", SHORT))
        deferred = await asyncio.to_thread(task.execute)

        await asyncio.to_thread(add_condition, namespace, "jobset", deferred.jobset, "Failed")

        assert await asyncio.to_thread(task.finish, deferred) == {
            "name": deferred.jobset,
            "namespace": namespace.name,
            "outcome": "succeeded",
        }

    async def test_11_a_disruption_is_read_before_exit_codes(self, namespace: Namespace) -> None:
        """A program that is told to end may leave any exit code; when its pod was taken away, it is not the program's."""
        misleading = (
            f"import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(1)); print('at work')\n{UNTIL_LET_GO}"
        )
        task = Task(namespace, without_patience(a_jobset("taken", misleading, pods=1)))
        deferred = await asyncio.to_thread(task.execute)
        following = Following(task, deferred)
        await until("the pod at work", lambda: task.log.of("driver"))
        await asyncio.to_thread(evict, namespace, await asyncio.to_thread(at_work, namespace))

        again = await asyncio.to_thread(task.resume, deferred, await following.event())

        assert isinstance(again, Deferred)
        assert again.jobset != deferred.jobset
        assert task.log.said("EvictionByEvictionAPI")
        with letting_go(namespace):
            assert (await asyncio.to_thread(task.finish, again))["outcome"] == "succeeded"

    def test_11_and_an_exit_code_without_one_is_the_programs(self, namespace: Namespace) -> None:
        task = Task(namespace, without_patience(a_short_jobset("own", "print('last words'); raise SystemExit(137)")))

        with pytest.raises(JobSetApplicationFailure, match=r"exit code 137 \(SIGKILL\)"):
            task.finish()

        assert task.log.said("last words")

    async def test_12_a_worker_that_drains_leaves_the_jobset_to_the_next_attempt(self, namespace: Namespace) -> None:
        document = a_short_jobset("drained", WORKS_UNTIL_LET_GO)
        task = Task(namespace, document, deferrable=False)
        operator = task.operator(KilledOperator)
        waiting = threading.Thread(target=ignoring_the_end, args=(operator, task.context("first")), daemon=True)
        waiting.start()
        await until("the pod at work", lambda: task.log.of("driver"))
        [before] = await asyncio.to_thread(task.jobsets)

        # A worker that gets SIGTERM calls this.
        operator.on_kill()

        again = Task(namespace, document)
        again.state = task.state
        deferred = await asyncio.to_thread(again.execute)
        [after] = await asyncio.to_thread(task.jobsets)
        assert deferred.jobset == before["metadata"]["name"]
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        with letting_go(namespace):
            assert (await asyncio.to_thread(again.finish, deferred))["outcome"] == "succeeded"


class KilledOperator(LoggingOperator):
    """Of a worker that is gone before the JobSet has ended, so that it concludes nothing from its end."""

    def complete(self, context: Any, event: Any) -> Any:
        raise SystemError


def ignoring_the_end(operator: Any, context: Any) -> None:
    """The process of a worker that is about to be killed; what becomes of it is of no interest."""
    try:
        operator.execute(context)
    except BaseException:
        return


def add_condition(namespace: Namespace, kind: str, name: str, what: str) -> None:
    """One that is false."""
    condition = {
        "type": what,
        "status": "False",
        "reason": "NotSo",
        "message": "",
        "lastTransitionTime": "2026-11-20T00:00:00Z",
    }
    patch = json.dumps({"status": {"conditions": [condition]}})
    namespace.kubectl("patch", kind, name, "--subresource=status", "--type=merge", "-p", patch)


class TestToday:
    """KubernetesJobOperator of apache-airflow-providers-cncf-kubernetes."""

    def operator(
        self, namespace: Namespace, code: str, *, kubeconfig: Path | None = None, **parameters: Any
    ) -> KubernetesJobOperator:
        with DAG("night", schedule=None):
            return KubernetesJobOperator(
                task_id="run",
                name="run",
                namespace=namespace.name,
                image=IMAGE,
                cmds=["python3", "-u", "-c", code],
                wait_until_job_complete=True,
                job_poll_interval=0.5,
                kubernetes_conn_id=connection(kubeconfig or namespace.cluster.kubeconfig),
                **{"deferrable": True, "termination_grace_period": 1, **parameters},
            )

    def context(self, namespace: Namespace, attempt: int = 1) -> Any:
        ti = SimpleNamespace(
            dag_id="night",
            task_id="run",
            run_id=namespace.name,
            map_index=-1,
            try_number=attempt,
            xcom_push=lambda **_: None,
        )
        return {"ti": ti, "run_id": namespace.name, "dag": SimpleNamespace()}

    def execute(self, namespace: Namespace, code: str, attempt: int = 1, **parameters: Any) -> KubernetesJobTrigger:
        """An attempt up to its trigger. It asks for its pods four times without a pause, so here the Job gets a moment."""
        operator = self.operator(namespace, code, **parameters)
        create = operator.create_job

        def create_and_wait(job_request_obj: Any) -> Any:
            before = len(namespace.get("pods"))
            job = create(job_request_obj)
            namespace.wait_until("a pod of the Job", lambda: len(namespace.get("pods")) > before)
            return job

        operator.create_job = create_and_wait  # type: ignore[method-assign]
        with pytest.raises(TaskDeferred) as deferred:
            operator.execute(self.context(namespace, attempt))
        trigger = deferred.value.trigger
        assert isinstance(trigger, KubernetesJobTrigger)
        return trigger

    def test_1_a_retry_makes_a_second_job(self, namespace: Namespace) -> None:
        for attempt in (1, 2):
            self.execute(namespace, WORKS, attempt)

        assert len(namespace.get("jobs")) == 2

    def test_2_a_retry_takes_the_pod_of_the_attempt_before_for_its_own(self, namespace: Namespace) -> None:
        first = self.execute(namespace, WORKS, 1)

        second = self.execute(namespace, WORKS, 2)

        assert second.job_name != first.job_name
        assert set(first.pod_names) <= set(second.pod_names)

    def test_3_a_job_that_has_no_pods_yet_fails_the_task_and_stays(self, namespace: Namespace) -> None:
        operator = self.operator(namespace, WORKS, suspend=True)

        with pytest.raises(AirflowException, match="No pods running with labels"):
            operator.execute(self.context(namespace))

        assert len(namespace.get("jobs")) == 1

    def test_4_a_job_whose_waiting_task_is_killed_stays(
        self, cluster: Kubernetes, namespace: Namespace, tmp_path: Path
    ) -> None:
        with ApiProxy(cluster.kubeconfig, tmp_path) as proxy:
            trigger = self.execute(namespace, WORKS, kubeconfig=proxy.kubeconfig)

            asyncio.run(trigger.on_kill())

        assert proxy.calls
        assert "delete" not in {call.verb for call in proxy.calls}
        [job] = namespace.get("jobs")
        assert "deletionTimestamp" not in job["metadata"]

    async def test_6_an_api_that_fails_for_a_while_fails_the_task(
        self, cluster: Kubernetes, namespace: Namespace, tmp_path: Path
    ) -> None:
        with ApiProxy(cluster.kubeconfig, tmp_path) as proxy:
            execute = partial(self.execute, namespace, WORKS, kubeconfig=proxy.kubeconfig)
            trigger = await asyncio.to_thread(execute)
            with proxy.refusing(), pytest.raises(Exception, match=r"Cannot connect|refused"):
                await asyncio.wait_for(first_event(trigger), PATIENCE_S)

    async def test_7_and_8_the_pod_that_replaces_another_is_not_seen_and_a_deleted_ones_log_is_lost(
        self, namespace: Namespace
    ) -> None:
        code = f"print('in the log')\n{UNTIL_LET_GO}"
        trigger = await asyncio.to_thread(self.execute, namespace, code, backoff_limit=3)
        [first] = trigger.pod_names
        await asyncio.to_thread(at_work, namespace)
        await asyncio.to_thread(namespace.kubectl, "delete", "pod", first)

        with letting_go(namespace):
            event = await asyncio.wait_for(first_event(trigger), PATIENCE_S)

        assert event["status"] == "success"
        assert event["pod_names"] == [first]
        operator = self.operator(namespace, code)
        told: list[str] = []
        operator._write_logs = lambda pod, **_: told.append(pod.metadata.name)  # type: ignore[method-assign]
        await asyncio.to_thread(operator.execute_complete, self.context(namespace), event)
        assert told == []

    async def test_10_a_condition_that_is_false_counts_as_true(self, namespace: Namespace) -> None:
        trigger = await asyncio.to_thread(self.execute, namespace, WORKS)
        await asyncio.to_thread(at_work, namespace)

        await asyncio.to_thread(add_condition, namespace, "job", trigger.job_name, "Failed")

        event = await asyncio.wait_for(first_event(trigger), PATIENCE_S)
        assert event["status"] == "error"
        assert len(running(namespace)) == 1

    def test_12_a_worker_that_drains_deletes_the_job(self, namespace: Namespace) -> None:
        operator = self.operator(namespace, WORKS, deferrable=False, get_logs=False)
        create = operator.create_job

        def create_and_wait(job_request_obj: Any) -> Any:
            job = create(job_request_obj)
            namespace.wait_until("a pod of the Job", lambda: namespace.get("pods"))
            return job

        operator.create_job = create_and_wait  # type: ignore[method-assign]
        waiting = threading.Thread(target=ignoring_the_end, args=(operator, self.context(namespace)), daemon=True)
        waiting.start()
        at_work(namespace)
        # The pod may be at work before the thread is back from `create_and_wait`.
        namespace.wait_until("the operator to know its Job", lambda: operator.job)

        operator.on_kill()

        namespace.wait_until("the end of the Job", lambda: not namespace.get("jobs"))
        with pytest.raises(ApiException):
            operator.hook.get_job_status(job_name=operator.job.metadata.name, namespace=namespace.name)  # type: ignore[union-attr]


def connection(kubeconfig: Path) -> str:
    """An Airflow connection to the cluster: the provider's trigger knows no kubeconfig otherwise."""
    name = f"cluster_{hashlib.sha256(str(kubeconfig).encode()).hexdigest()[:8]}"
    os.environ[f"AIRFLOW_CONN_{name.upper()}"] = json.dumps(
        {"conn_type": "kubernetes", "extra": {"kube_config_path": str(kubeconfig)}}
    )
    return name


async def first_event(trigger: KubernetesJobTrigger) -> dict[str, Any]:
    async for fired in trigger.run():
        return dict(fired.payload)
    raise AssertionError("the trigger ended without an event")
