"""The doctor's questions to a real API server with JobSet and Kueue, asked as Airflow's account."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from local.environments import ROOT
from nightshift.doctor import cluster as _cluster
from nightshift.doctor import queue
from nightshift.doctor.context import Surroundings
from nightshift.doctor.findings import Failed, Finding, Ok, Skipped
from nightshift.hooks.connections import AirflowConnections
from nightshift.hooks.jobset import JobSetHook
from nightshift.jobset.kubernetes import kueue
from nightshift.jobset.kubernetes.limits import limits_of
from nightshift.jobset.kubernetes.rbac import RIGHTS
from nightshift.profiles.limits import Limits
from nightshift.settings import Settings
from nightshift.spec import JobSpec
from tests.builders import a_spec
from tests.cluster.api_proxy import ApiProxy
from tests.cluster.kube import Kubernetes, Namespace, a_queue, require
from tests.unit.doctor.fakes import FakeConnections

pytestmark = pytest.mark.cluster

ACCOUNT = "nightshift-airflow"
RIGHTS_FILE = ROOT / "k8s/base/airflow.yaml"
READERS = ROOT / kueue.READERS
QUOTA = {"cpu": "2", "memory": "8Gi", "ephemeral-storage": "100Gi"}


@pytest.fixture
def api(cluster: Kubernetes, namespace: Namespace, tmp_path: Any) -> Iterator[JobSetHook]:
    """As Airflow's account, with the rights that this repository gives it."""
    documents = list(yaml.safe_load_all(RIGHTS_FILE.read_text()))
    for document in documents:
        for subject in document.get("subjects", ()):
            subject["namespace"] = namespace.name
    namespace.kubectl("create", "-f", "-", text=yaml.safe_dump_all(documents))
    token = namespace.kubectl("create", "token", ACCOUNT).strip()
    with ApiProxy(cluster.kubeconfig, tmp_path, token=token) as proxy:
        yield JobSetHook(conn_id=None, config_file=str(proxy.kubeconfig))


@contextmanager
def readers(namespace: Namespace) -> Iterator[None]:
    """What lets the account read queues, under a name of this test's own: it belongs to the whole cluster."""
    text = READERS.read_text().replace("nightshift-queue-reader", namespace.name)
    text = text.replace("namespace: nightshift\n", f"namespace: {namespace.name}\n")
    namespace.cluster.kubectl("create", "-f", "-", text=text)
    try:
        yield
    finally:
        namespace.cluster.kubectl("delete", "--wait=false", "-f", "-", text=text)


def asked(
    check: Callable[[Surroundings], Iterable[Finding]], api: JobSetHook, namespace: Namespace, job: JobSpec | None = None
) -> list[Finding]:
    settings = Settings(bucket="runs", project="acme", namespace=namespace.name)
    return list(check(Surroundings(settings, FakeConnections(api=api), job)))


@pytest.mark.gate
def test_everything_is_there(cluster: Kubernetes, namespace: Namespace, api: JobSetHook) -> None:
    require(namespace.cluster, "clusterqueues.kueue.x-k8s.io")

    [there] = asked(_cluster.there, api, namespace)

    assert isinstance(there, Ok)
    assert f"authenticates Airflow as system:serviceaccount:{namespace.name}:{ACCOUNT}" in there.found
    assert [type(each) for each in asked(_cluster.jobset, api, namespace)] == [Ok]
    assert [type(each) for each in asked(_cluster.kueue, api, namespace)] == [Ok]
    assert asked(_cluster.rights, api, namespace) == [Ok(str(right), f"in namespace {namespace.name}") for right in RIGHTS]


def test_a_right_that_is_taken_away_is_named(namespace: Namespace, api: JobSetHook) -> None:
    patch = '[{"op": "test", "path": "/rules/2/resources/0", "value": "pods"}, {"op": "remove", "path": "/rules/2"}]'
    namespace.kubectl("patch", "role", ACCOUNT, "--type=json", "-p", patch)

    def missing() -> list[str]:
        return [each.check for each in asked(_cluster.rights, api, namespace) if isinstance(each, Failed)]

    namespace.wait_until("the loss of the right", lambda: missing() == ["list pods", "watch pods"])


def test_the_queue_is_read_with_the_rights_of_its_component_and_not_without(
    namespace: Namespace, api: JobSetHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the doctor, and by the task plan."""
    require(namespace.cluster, "clusterqueues.kueue.x-k8s.io")
    job = a_spec(queue="nightly")
    monkeypatch.setattr(AirflowConnections, "cluster", lambda _: api)
    settings = Settings(bucket="runs", project="acme", namespace=namespace.name)
    told: list[str] = []

    def limits() -> Limits:
        return limits_of(job, settings, "2026-11-20", lambda: api, told.append, told.append)

    with a_queue(namespace, QUOTA):
        [hidden] = asked(queue.queue, api, namespace, job)
        assert isinstance(hidden, Skipped)
        assert kueue.READERS in hidden.because
        assert limits() == Limits()
        assert told.pop().endswith(f"to allow it: kubectl apply -f {kueue.READERS}")
        with readers(namespace):

            def active() -> bool:
                return [type(each) for each in asked(queue.queue, api, namespace, job)] == [Ok]

            namespace.wait_until("the queue's readiness", active)
            assert [type(each) for each in asked(queue.quotas, api, namespace, job)] == [Ok]
            [small] = asked(queue.quotas, api, namespace, a_spec(queue="nightly", compute__workers=2))
            assert isinstance(small, Failed)
            assert "2 workers need 3 of cpu, and it has 2" in small.problem
            found = limits()
            assert (found.quota, found.of("gpu-l4-spot").quota) == (1, 0), told
            [gone] = asked(queue.queue, api, namespace, a_spec(queue="weekly"))
            assert isinstance(gone, Failed)
            assert "there is no LocalQueue weekly" in gone.problem
