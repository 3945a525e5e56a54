"""Airflow's account on a cluster may do what its operator, hooks and triggers do there, and nothing else."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from local.environments import ROOT
from nightshift.operators.jobset import JobSetApplicationFailure, JobSetRefused, JobSetStartupTimeout
from tests.cluster.airflow_task import Deferred, Following, Task
from tests.cluster.api_proxy import ApiProxy
from tests.cluster.kube import Kubernetes, Namespace, a_queue, require
from tests.cluster.scenes import SHORT, WORKS, a_short_jobset, at_work, pod_of, running, unschedulable, until, without_patience

pytestmark = pytest.mark.cluster

RIGHTS = ROOT / "k8s" / "base" / "airflow.yaml"
ACCOUNT = "nightshift-airflow"
STRANGER = "somebody"

Right = tuple[str, str]


@pytest.fixture(autouse=True)
def _no_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    """No trigger waits for Airflow's scheduler here."""
    monkeypatch.setattr("nightshift.triggers.jobset.SETTLE_S", 0)


@pytest.fixture
def accounts(namespace: Namespace) -> None:
    """Airflow's, with the rights that this repository gives it, and one without any."""
    documents = list(yaml.safe_load_all(RIGHTS.read_text()))
    for document in documents:
        for subject in document.get("subjects", ()):
            subject["namespace"] = namespace.name
    namespace.kubectl("create", "-f", "-", text=yaml.safe_dump_all(documents))
    namespace.kubectl("create", "serviceaccount", STRANGER)


@pytest.fixture
def proxy(cluster: Kubernetes, namespace: Namespace, accounts: None, tmp_path: Path) -> Iterator[ApiProxy]:
    """To the API, as Airflow's account."""
    with ApiProxy(cluster.kubeconfig, tmp_path, token=token(namespace, ACCOUNT)) as proxy:
        yield proxy


def token(namespace: Namespace, account: str) -> str:
    return namespace.kubectl("create", "token", account).strip()


def rights(namespace: Namespace, account: str) -> set[Right]:
    """(verb, resource) of all that it may do to objects of the namespace."""
    user = f"system:serviceaccount:{namespace.name}:{account}"
    table = namespace.kubectl("auth", "can-i", "--list", "--as", user)
    found = set()
    for line in table.splitlines()[1:]:
        resource, *_, verbs = re.split(r"  +", line.strip())
        found |= {(verb, resource) for verb in verbs.strip("[]").split()}
    return found


async def test_what_it_may_do_is_what_is_done(proxy: ApiProxy, namespace: Namespace, cluster: Kubernetes) -> None:
    require(cluster, "clusterqueues.kueue.x-k8s.io")
    with a_queue(namespace, {"cpu": "1"}):
        await asyncio.to_thread(succeed, namespace, proxy)
        await suspend_and_resume(namespace, proxy, queue=True)
        await suspend_and_resume(namespace, proxy, queue=False)
        await asyncio.to_thread(fail, namespace, proxy)
        await asyncio.to_thread(starve, namespace, proxy)

    done = {(call.verb, call.resource) for call in proxy.calls}

    assert done == rights(namespace, ACCOUNT) - rights(namespace, STRANGER)


def succeed(namespace: Namespace, proxy: ApiProxy) -> None:
    document = a_short_jobset("works", "print('done')")
    assert Task(namespace, document, kubeconfig=proxy.kubeconfig).finish()["outcome"] == "succeeded"
    kept = Task(namespace, document, kubeconfig=proxy.kubeconfig, keep_finished=True, name="kept")
    assert kept.finish()["outcome"] == "succeeded"


async def suspend_and_resume(namespace: Namespace, proxy: ApiProxy, *, queue: bool) -> None:
    document = a_short_jobset("pauses", SHORT)
    pod_of(document)["containers"][0]["resources"] = {"requests": {"cpu": "10m"}}
    parameters = {"queue_name": "nightly", "name": "queued"} if queue else {}
    task = Task(namespace, document, kubeconfig=proxy.kubeconfig, on_kill_policy="suspend", **parameters)
    deferred = await asyncio.to_thread(task.execute)
    following = Following(task, deferred)
    await until("the pod at work", lambda: task.log.of("driver"))
    await following.kill()
    await following.trigger.on_kill()
    await asyncio.to_thread(namespace.wait_until, "the pods' end", lambda: not running(namespace))
    again = await asyncio.to_thread(task.execute)
    assert isinstance(again, Deferred)
    assert (await asyncio.to_thread(task.finish, again))["outcome"] == "succeeded"


def fail(namespace: Namespace, proxy: ApiProxy) -> None:
    document = without_patience(a_short_jobset("fails", "print('last words'); raise SystemExit(3)"))
    task = Task(namespace, document, kubeconfig=proxy.kubeconfig)
    with pytest.raises(JobSetApplicationFailure):
        task.finish()
    assert any(line.startswith("Last lines of driver") and "last words" in line for line in task.log.lines)


def starve(namespace: Namespace, proxy: ApiProxy) -> None:
    document = a_short_jobset("starves", WORKS, nodeSelector={"nowhere": "to-be-found"})
    task = Task(namespace, document, kubeconfig=proxy.kubeconfig, startup_timeout=timedelta(seconds=4))
    deferred = task.execute()
    namespace.wait_until("the scheduler's words", lambda: unschedulable(namespace))
    with pytest.raises(JobSetStartupTimeout, match="nodes are available"):
        task.finish(deferred)


@pytest.mark.gate
def test_a_right_that_is_missing_is_named_with_the_place_where_it_is_given(
    cluster: Kubernetes, namespace: Namespace, accounts: None, tmp_path: Path
) -> None:
    with ApiProxy(cluster.kubeconfig, tmp_path, token=token(namespace, STRANGER)) as proxy:
        task = Task(namespace, a_short_jobset("forbidden", WORKS), kubeconfig=proxy.kubeconfig)

        with pytest.raises(JobSetRefused, match=rf'cannot get resource "jobsets".*{RIGHTS.relative_to(ROOT)}'):
            task.execute()


async def test_one_that_is_missing_while_it_is_waited_ends_the_task_and_says_so(proxy: ApiProxy, namespace: Namespace) -> None:
    task = Task(namespace, a_short_jobset("blinded", WORKS), kubeconfig=proxy.kubeconfig)
    deferred = await asyncio.to_thread(task.execute)
    await asyncio.to_thread(at_work, namespace)
    patch = '[{"op": "test", "path": "/rules/2/resources/0", "value": "pods"}, {"op": "remove", "path": "/rules/2"}]'
    await asyncio.to_thread(namespace.kubectl, "patch", "role", ACCOUNT, "--type=json", "-p", patch)

    with pytest.raises(JobSetRefused, match=r'cannot list resource "pods"'):
        await asyncio.to_thread(task.finish, deferred)

    await asyncio.to_thread(namespace.wait_until, "the end of the JobSet", lambda: not task.jobsets())
