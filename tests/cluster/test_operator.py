"""KubernetesJobSetOperator on a real cluster: one JobSet whatever is repeated, its logs, its waits, its failures, its policies.

What it does better than the provider's operators, point by point, is in `test_pitfalls.py`; what becomes of it when parts of a
real Airflow die is in `test_airflow_dies.py`.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nightshift.jobset.kubernetes import follow, rest
from nightshift.jobset.labels import JUDGED_ANNOTATION
from nightshift.operators.jobset import (
    JobSetApplicationFailure,
    JobSetLost,
    JobSetPreempted,
    JobSetRefused,
    JobSetStartupTimeout,
    JobSetUnavailable,
)
from nightshift.triggers import jobset as trigger_module
from tests.cluster.airflow_task import Deferred, Following, Task
from tests.cluster.api_proxy import ApiProxy, Call
from tests.cluster.kube import Kubernetes, Namespace, a_queue, require
from tests.cluster.scenes import (
    SHORT,
    UNTIL_LET_GO,
    WORKS,
    WORKS_UNTIL_LET_GO,
    a_short_jobset,
    at_work,
    evict,
    job_of,
    letting_go,
    pod_of,
    running,
    unschedulable,
    until,
    without_patience,
)

pytestmark = pytest.mark.cluster


@pytest.fixture(autouse=True)
def _no_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    """No trigger waits for Airflow's scheduler here."""
    monkeypatch.setattr(trigger_module, "SETTLE_S", 0)
    monkeypatch.setattr("nightshift.jobset.fleet.conclude.RESUME_PAUSE_S", 0)


def uids(task: Task) -> list[str]:
    return [jobset["metadata"]["uid"] for jobset in task.jobsets()]


def creates_a_jobset(call: Call) -> bool:
    return (call.verb, call.resource) == ("create", "jobsets.jobset.x-k8s.io")


class TestOneJobSet:
    @pytest.mark.gate
    def test_a_lost_reply_to_its_creation_makes_no_second_one(
        self, cluster: Kubernetes, namespace: Namespace, tmp_path: Path
    ) -> None:
        with ApiProxy(cluster.kubeconfig, tmp_path) as proxy:
            task = Task(namespace, a_short_jobset("lost-reply", "print('done')"), kubeconfig=proxy.kubeconfig)
            proxy.swallow(creates_a_jobset)

            deferred = task.execute()

            assert proxy.swallowed == 1
            assert len(task.jobsets()) == 1
            assert task.finish(deferred)["outcome"] == "succeeded"

    def test_two_processes_of_an_attempt_share_it(self, namespace: Namespace) -> None:
        """As when two schedulers have the same task executed."""
        task = Task(namespace, a_short_jobset("shared", "print('done')"))
        with ThreadPoolExecutor() as processes:
            first, second = processes.map(lambda _: task.execute(attempt="0193"), range(2))

        assert first.jobset == second.jobset
        assert len(task.jobsets()) == 1
        assert task.finish(first)["outcome"] == "succeeded"

    def test_that_of_somebody_else_is_left_alone(self, namespace: Namespace) -> None:
        task = Task(namespace, a_short_jobset("theirs", WORKS))
        deferred = task.execute()
        [ours] = task.jobsets()
        task.kill(deferred)
        namespace.wait_until("the end of ours", lambda: not task.jobsets())
        namespace.create({**a_short_jobset("theirs", WORKS), "metadata": {"name": ours["metadata"]["name"]}})
        before = uids(task)

        with pytest.raises(JobSetRefused, match=r"works on something unknown, not on airflow:night/run/.*Find out whose it is"):
            task.execute()

        assert uids(task) == before

    def test_one_that_still_drains_is_waited_for(self, namespace: Namespace) -> None:
        task = Task(namespace, a_short_jobset("draining", WORKS, terminationGracePeriodSeconds=12))
        deferred = task.execute()
        at_work(namespace)
        before = uids(task)
        task.kill(deferred)
        assert uids(task) == before

        again = task.execute()

        assert again.jobset == deferred.jobset
        assert set(uids(task)).isdisjoint(before)
        assert task.log.said("waiting until its pods are gone")

    async def test_one_that_is_deleted_from_outside_is_made_again(self, namespace: Namespace) -> None:
        task = Task(namespace, a_short_jobset("vanished", WORKS_UNTIL_LET_GO))
        deferred = await asyncio.to_thread(task.execute)
        following = Following(task, deferred)
        await until("the pod at work", lambda: task.log.of("driver"))
        await asyncio.to_thread(namespace.kubectl, "delete", "jobset", deferred.jobset)

        again = await asyncio.to_thread(task.resume, deferred, await following.event())

        assert isinstance(again, Deferred)
        assert task.log.said("uses none of the task's retries")
        with letting_go(namespace):
            assert (await asyncio.to_thread(task.finish, again))["outcome"] == "succeeded"

    def test_there_is_a_limit_to_making_it_again(self, namespace: Namespace) -> None:
        task = Task(namespace, a_short_jobset("vanished", WORKS), resume_limit=0)
        deferred = task.execute()
        namespace.kubectl("delete", "jobset", deferred.jobset)

        with pytest.raises(JobSetLost, match="deleted it"):
            task.finish(deferred)

    def test_one_that_is_kept_is_not_taken_for_the_next_times(self, namespace: Namespace) -> None:
        task = Task(namespace, a_short_jobset("kept", "print('done')"), keep_finished=True)
        first = task.finish()
        # What Airflow does where it is set to clear a task's state with its success.
        task.state.clear()

        second = task.finish()

        assert second["name"] != first["name"]
        kept = {jobset["metadata"]["name"]: jobset["metadata"]["annotations"] for jobset in task.jobsets()}
        assert set(kept) == {first["name"], second["name"]}
        assert all(JUDGED_ANNOTATION in annotations for annotations in kept.values())

    def test_one_that_ended_while_nobody_waited_is_judged_and_its_log_copied(self, namespace: Namespace) -> None:
        """As when its worker died between making it and saying so."""
        task = Task(namespace, a_short_jobset("unseen", "print('done')"))
        deferred = task.execute()
        namespace.wait_until("its end", partial(namespace.ended, deferred.jobset))

        result = task.finish()

        assert result["name"] == deferred.jobset
        assert task.log.said("has not been judged yet")
        assert task.log.of("driver") == ["done"]


class TestLogs:
    NUMBERS = "import time\nfor n in range({}): print('line', n); time.sleep({})"

    def expected(self, count: int) -> list[str]:
        return [f"line {number}" for number in range(count)]

    def test_of_a_program_that_is_gone_before_anybody_looks(self, namespace: Namespace) -> None:
        task = Task(namespace, a_short_jobset("brief", self.NUMBERS.format(3000, 0)))
        deferred = task.execute()
        namespace.wait_until("its end", partial(namespace.ended, deferred.jobset))

        task.finish(deferred)

        assert task.log.of("driver") == self.expected(3000)

    async def test_connections_that_break_lose_and_repeat_no_line(
        self, cluster: Kubernetes, namespace: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(follow, "SESSION_S", 4.0)
        with ApiProxy(cluster.kubeconfig, tmp_path) as proxy:
            task = Task(namespace, a_short_jobset("broken", self.NUMBERS.format(150, 0.1)), kubeconfig=proxy.kubeconfig)
            deferred = await asyncio.to_thread(task.execute)
            following = Following(task, deferred)
            for lines in (10, 40, 70, 100):
                await until(f"{lines} lines", partial(has, task, lines))
                proxy.reset()
            await following.event()

        assert task.log.of("driver") == self.expected(150)

    @pytest.mark.gate
    async def test_an_end_that_is_seen_while_connections_break_has_its_last_lines(
        self, cluster: Kubernetes, namespace: Namespace, tmp_path: Path
    ) -> None:
        """A log that is not read when the end of its JobSet is seen is read afterwards."""
        with ApiProxy(cluster.kubeconfig, tmp_path) as proxy:
            document = a_short_jobset("hurried", self.NUMBERS.format(50, 0.02))
            task = Task(namespace, document, kubeconfig=proxy.kubeconfig)
            deferred = await asyncio.to_thread(task.execute)
            proxy.fail(lambda call: call.resource == "pods")
            await asyncio.to_thread(namespace.wait_until, "its end", partial(namespace.ended, deferred.jobset))
            following = Following(task, deferred)
            await until("the trigger's first look at its end", lambda: task.log.said(": Completed"))
            before = following.sessions
            await until("two further ones", lambda: following.sessions >= before + 2)
            assert not following.fired
            proxy.mend()
            await following.event()

        assert task.log.of("driver") == self.expected(50)

    async def test_a_triggerer_that_is_killed_loses_no_line_and_repeats_few(
        self, namespace: Namespace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(follow, "NOTE_S", 1.0)
        monkeypatch.setattr("nightshift.jobset.kubernetes.logs.SLACK_S", 2.0)
        count = 150
        task = Task(namespace, a_short_jobset("restarted", self.NUMBERS.format(count, 0.1)))
        deferred = await asyncio.to_thread(task.execute)
        following = Following(task, deferred)
        await until("lines", lambda: len(task.log.of("driver")) >= 100)
        await following.kill()

        await task.event(deferred)

        found = Counter(task.log.of("driver"))
        assert set(found) == set(self.expected(count))
        again = sorted(int(line.split()[1]) for line, times in found.items() if times > 1)
        assert max(found.values()) == 2
        # What was written before the last note is not read again.
        assert min(again) > 20

    def test_may_be_left_out(self, cluster: Kubernetes, namespace: Namespace, tmp_path: Path) -> None:
        with ApiProxy(cluster.kubeconfig, tmp_path) as proxy:
            task = Task(namespace, a_short_jobset("quiet", "print('done')"), kubeconfig=proxy.kubeconfig, get_logs=False)
            task.finish()

        assert task.log.of("driver") == []
        assert "pods/log" not in {call.resource for call in proxy.calls}


def has(task: Task, lines: int) -> bool:
    return len(task.log.of("driver")) >= lines


class TestFailures:
    def test_what_the_cluster_refuses_is_said_in_its_words(self, namespace: Namespace) -> None:
        document = a_short_jobset("wrong", WORKS)
        job_of(document)["completions"] = "many"

        with pytest.raises(JobSetRefused, match=r"create JobSet .*the cluster refuses it .*string into .*completions"):
            Task(namespace, document).execute()
        assert namespace.get("jobsets") == []

    @pytest.mark.gate
    def test_a_program_that_fails_says_index_exit_code_and_last_lines(self, namespace: Namespace) -> None:
        code = "import os, sys; n = os.environ['JOB_COMPLETION_INDEX']; print('last words of', n); sys.exit(3 * (n == '1'))"
        task = Task(namespace, without_patience(a_short_jobset("failing", code, pods=2)))

        with pytest.raises(JobSetApplicationFailure, match="Index 1 of 2 failed: driver ended with exit code 3"):
            task.finish()

        assert any(line.startswith("Last lines of driver") and "last words of 1" in line for line in task.log.lines)
        namespace.wait_until("the end of the JobSet", lambda: not task.jobsets())

    def test_an_image_that_cannot_be_had_is_no_reason_to_try_again(self, namespace: Namespace) -> None:
        document = a_short_jobset("imageless", WORKS)
        pod_of(document)["containers"][0] |= {"image": "localhost/nowhere:1", "imagePullPolicy": "Never"}
        task = Task(namespace, document, startup_timeout=timedelta(seconds=8))
        deferred = task.execute()
        namespace.wait_until("the kubelet's words", lambda: "ErrImageNeverPull" in json.dumps(namespace.get("pods")))

        with pytest.raises(JobSetApplicationFailure, match="container driver"):
            task.finish(deferred)
        namespace.wait_until("the end of the JobSet", lambda: not task.jobsets())

    def test_pods_that_find_no_node_are_said_in_a_sentence(self, namespace: Namespace) -> None:
        document = a_short_jobset("placeless", WORKS, nodeSelector={"nowhere": "to-be-found"})
        task = Task(namespace, document, startup_timeout=timedelta(seconds=5))
        deferred = task.execute()
        namespace.wait_until("the scheduler's words", partial(unschedulable, namespace))

        with pytest.raises(JobSetStartupTimeout, match=r"The pod waits for a node: 0/\d+ nodes are available"):
            task.finish(deferred)

        [said] = {line for line in task.log.lines if "does not start" in line}
        assert "the pod waits for a node: 0/" in said
        assert len(said) < 500
        namespace.wait_until("the end of the JobSet", lambda: not task.jobsets())

    async def test_there_is_an_end_to_going_on_after_disruptions(self, namespace: Namespace) -> None:
        task = Task(namespace, without_patience(a_short_jobset("unlucky", WORKS)), resume_limit=0)
        deferred = await asyncio.to_thread(task.execute)
        # Nobody else sees a pod that is soon gone.
        following = Following(task, deferred)
        await until("the pod at work", lambda: task.log.of("driver"))
        await asyncio.to_thread(lambda: evict(namespace, at_work(namespace)))
        event = await following.event()

        with pytest.raises(JobSetPreempted, match="only because pods were taken away"):
            await asyncio.to_thread(task.resume, deferred, event)


class TestOutages:
    def test_an_api_that_takes_connections_and_says_nothing_does_not_hang_a_submission(
        self, cluster: Kubernetes, namespace: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rest, "READ_S", 1.0)
        with ApiProxy(cluster.kubeconfig, tmp_path) as proxy, ThreadPoolExecutor() as processes:
            task = Task(namespace, a_short_jobset("silent", "print('done')"), kubeconfig=proxy.kubeconfig)
            with proxy.half_open():
                submission = processes.submit(task.execute)
                namespace.wait_until("several tries", lambda: len(proxy.calls) > 2)
                assert not submission.done()
            deferred = submission.result(60)

        assert len(task.jobsets()) == 1
        assert Task.finish(task_through(task, cluster), at(deferred, cluster))["outcome"] == "succeeded"

    def test_one_that_stays_away_is_worth_another_attempt(
        self, cluster: Kubernetes, namespace: Namespace, tmp_path: Path
    ) -> None:
        with ApiProxy(cluster.kubeconfig, tmp_path) as proxy:
            task = Task(namespace, a_short_jobset("away", "print('done')"), kubeconfig=proxy.kubeconfig)
            operator = task.operator()
            operator.hook.patience_s = 1.0
            with proxy.refusing(), pytest.raises(JobSetUnavailable, match="The JobSet, if it exists, keeps running"):
                operator.execute(task.context("first"))

            assert task.finish()["outcome"] == "succeeded"

    @pytest.mark.gate
    async def test_nor_does_it_hang_a_trigger(
        self, cluster: Kubernetes, namespace: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("nightshift.jobset.kubernetes.aio.WATCH_SILENCE_S", 3.0)
        monkeypatch.setattr(rest, "READ_S", 1.0)
        with ApiProxy(cluster.kubeconfig, tmp_path) as proxy:
            task = Task(namespace, a_short_jobset("silent", SHORT), kubeconfig=proxy.kubeconfig)
            deferred = await asyncio.to_thread(task.execute)
            following = Following(task, deferred)
            await until("the trigger's first look", lambda: any(call.verb == "watch" for call in proxy.calls))
            with proxy.half_open():
                await asyncio.to_thread(namespace.wait_until, "its end", partial(namespace.ended, deferred.jobset))
                await until("the trigger's word", lambda: task.log.said("The cluster does not answer"))
                assert not following.fired
            event = await following.event()

        assert event["ending"] == "finished"
        assert task.log.of("driver") == ["at work", "done"]

    async def test_a_person_who_ends_the_task_meanwhile_is_heard(
        self, cluster: Kubernetes, namespace: Namespace, tmp_path: Path
    ) -> None:
        with ApiProxy(cluster.kubeconfig, tmp_path) as proxy:
            task = Task(namespace, a_short_jobset("killed", WORKS), kubeconfig=proxy.kubeconfig)
            deferred = await asyncio.to_thread(task.execute)
            with proxy.refusing():
                killing = asyncio.create_task(task.trigger(deferred).on_kill())
                await until("the trigger's word", lambda: task.log.said("cannot be ended yet"))
            await killing

        await asyncio.to_thread(namespace.wait_until, "the end of the JobSet", lambda: not task.jobsets())


def at(deferred: Deferred, cluster: Kubernetes) -> Deferred:
    """Of a cluster that is reached another way from now on."""
    return Deferred(deferred.attempt, deferred.path, {**deferred.kwargs, "config_file": str(cluster.kubeconfig)})


def task_through(task: Task, cluster: Kubernetes) -> Task:
    task.kubeconfig = cluster.kubeconfig
    return task


class TestKilled:
    """By a person who marks the waiting task failed or clears it."""

    # Index 0 is done before anybody is killed; index 1 is not.
    HALF = f"import os; n = os.environ['JOB_COMPLETION_INDEX']; print('index', n); n == '0' and os._exit(0)\n{UNTIL_LET_GO}"

    async def half_done(self, task: Task) -> Deferred:
        deferred = await asyncio.to_thread(task.execute)
        following = Following(task, deferred)

        def indexes() -> bool:
            # JobSet's controller may not have made the Job yet.
            done = [job["status"].get("completedIndexes") for job in task.namespace.get("jobs")]
            return done == ["0"] and bool(running(task.namespace))

        await asyncio.to_thread(task.namespace.wait_until, "the end of index 0", indexes)
        await until("both logs", lambda: len(task.log.of("driver")) == 2)
        await following.kill()
        return deferred

    @pytest.mark.gate
    async def test_suspend_keeps_what_is_done_and_the_next_attempt_resumes_it(self, namespace: Namespace) -> None:
        task = Task(namespace, a_short_jobset("paused", self.HALF, pods=2), on_kill_policy="suspend")
        deferred = await self.half_done(task)
        before = uids(task)

        await task.trigger(deferred).on_kill()

        await asyncio.to_thread(namespace.wait_until, "the pods' end", lambda: not running(namespace))
        [jobset] = task.jobsets()
        assert jobset["spec"]["suspend"] is True
        again = await asyncio.to_thread(task.execute)
        assert uids(task) == before
        with letting_go(namespace):
            assert (await asyncio.to_thread(task.finish, again))["outcome"] == "succeeded"
        assert Counter(task.log.of("driver"))["index 1"] >= 2
        assert len([pod for pod in task.log.lines if "-0-0-" in pod and "index 0" in pod]) <= 2

    def test_leave_leaves_it_to_the_next_attempt(self, namespace: Namespace) -> None:
        task = Task(namespace, a_short_jobset("left", SHORT), on_kill_policy="leave")
        deferred = task.execute()
        before = uids(task)

        task.kill(deferred)

        assert uids(task) == before
        again = task.execute()
        assert uids(task) == before
        assert task.finish(again)["outcome"] == "succeeded"

    @pytest.mark.parametrize("policy", ["delete", "suspend"])
    def test_what_another_attempt_has_taken_over_is_not_ended(self, namespace: Namespace, policy: str) -> None:
        """Who clears a task starts the next attempt while the trigger of this one is being told."""
        task = Task(namespace, a_short_jobset("taken-over", SHORT), on_kill_policy=policy)
        deferred = task.execute()
        again = task.execute()
        before = uids(task)

        task.kill(deferred)

        assert task.log.said("another attempt of the task waits for it")
        assert uids(task) == before
        assert task.finish(again)["outcome"] == "succeeded"

    async def test_what_another_triggerer_follows_by_now_is_not_ended(self, namespace: Namespace) -> None:
        """A triggerer that stood still until another took its triggers over is told the same as when a person ends the task."""
        task = Task(namespace, a_short_jobset("moved", WORKS))
        deferred = await asyncio.to_thread(task.execute)
        signatures: set[str] = set()
        followings = []
        for _ in range(2):
            followings.append(Following(task, deferred))
            await asyncio.to_thread(
                namespace.wait_until, "a signature", lambda: task.owner() not in {deferred.attempt, *signatures}
            )
            signatures.add(task.owner())
        still, taken_over = followings

        await still.trigger.on_kill()

        assert task.log.said("another triggerer follows it")
        [jobset] = task.jobsets()
        assert "deletionTimestamp" not in jobset["metadata"]
        await taken_over.trigger.on_kill()
        await asyncio.to_thread(namespace.wait_until, "the end of the JobSet", lambda: not task.jobsets())
        for following in followings:
            await following.kill()

    def test_one_that_this_very_process_has_made_goes_with_it(self, namespace: Namespace) -> None:
        task = Task(namespace, a_short_jobset("young", WORKS))
        operator = task.operator()
        task.execute(operator)

        operator.on_kill()

        namespace.wait_until("the end of the JobSet", lambda: not task.jobsets())

    def test_one_that_it_has_found_stays(self, namespace: Namespace) -> None:
        task = Task(namespace, a_short_jobset("old", WORKS))
        task.execute()
        operator = task.operator()
        task.execute(operator)
        before = task.jobsets()

        operator.on_kill()

        assert [each["metadata"]["uid"] for each in before] == uids(task)
        assert all("deletionTimestamp" not in each["metadata"] for each in task.jobsets())


class TestQueue:
    """Kueue."""

    @pytest.fixture(autouse=True)
    def queue(self, cluster: Kubernetes, namespace: Namespace) -> Iterator[None]:
        require(cluster, "clusterqueues.kueue.x-k8s.io")
        with a_queue(namespace, {"cpu": "200m"}):
            yield

    def a_queued_jobset(self, name: str, code: str, cpu: str, *, pods: int = 1) -> dict[str, Any]:
        document = a_short_jobset(name, code, pods=pods)
        pod_of(document)["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
        return document

    def test_waiting_in_it_is_said_in_a_sentence(self, namespace: Namespace) -> None:
        document = self.a_queued_jobset("patient", WORKS, "500m")
        task = Task(namespace, document, queue_name="nightly", startup_timeout=timedelta(seconds=6))
        deferred = task.execute()
        workloads = "workloads.kueue.x-k8s.io"
        namespace.wait_until("Kueue's words", lambda: "insufficient quota" in json.dumps(namespace.get(workloads)))

        with pytest.raises(JobSetStartupTimeout, match=r"The JobSet waits in its queue: .*insufficient quota for cpu"):
            task.finish(deferred)

        assert task.log.said("does not start: the JobSet waits in its queue: couldn't assign flavors")
        namespace.wait_until("the end of the JobSet", lambda: not task.jobsets())

    async def test_suspend_takes_it_out_of_the_queue_and_the_next_attempt_puts_it_back(self, namespace: Namespace) -> None:
        document = self.a_queued_jobset("paused", TestKilled.HALF, "100m", pods=2)
        task = Task(namespace, document, queue_name="nightly", on_kill_policy="suspend")
        deferred = await TestKilled().half_done(task)
        before = uids(task)

        await task.trigger(deferred).on_kill()

        await asyncio.to_thread(namespace.wait_until, "the pods' end", lambda: not running(namespace))
        [workload] = namespace.get("workloads.kueue.x-k8s.io")
        assert workload["spec"]["active"] is False
        # Asked for nothing, Kueue would admit it again at once, and before what comes later: the later one finds room.
        later = self.a_queued_jobset("later", "print('done')", "200m")
        later["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "nightly"}
        namespace.create(later)
        assert await asyncio.to_thread(namespace.wait_until, "its end", partial(namespace.ended, "later")) == "Completed"
        assert running(namespace) == []
        namespace.kubectl("delete", "jobset", "later")
        again = await asyncio.to_thread(task.execute)
        assert uids(task) == before
        with letting_go(namespace):
            done = await asyncio.to_thread(task.finish, again)
        assert done["outcome"] == "succeeded"


def test_what_it_returns_and_fires_is_small(namespace: Namespace) -> None:
    task = Task(namespace, a_short_jobset("small", "print('done')", pods=4))
    deferred = task.execute()

    event = task.wait(deferred)

    assert len(json.dumps(event)) < 4000
    assert len(json.dumps(task.resume(deferred, event))) < 200
