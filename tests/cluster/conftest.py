"""One cluster for all tests of this folder; each test has a namespace of its own, and those that break things run alone.

The cluster is the one whose state folder NIGHTSHIFT_CLUSTER names, as ``python3 -m local.test`` does; else one that the test
session starts; else, where this machine cannot run one, the one that KUBECONFIG names, for every test that breaks nothing.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import kubernetes.config
import pytest
import yaml

from local.cluster import build, images, packages
from local.cluster.cluster import STATE_VARIABLE, Cluster
from local.cluster.faults import Faults
from tests.cluster.kube import OURS, STREAM_KINDS, Existing, Kubernetes, Namespace, a_namespace, await_kinds, require
from tests.cluster.turns import a_turn

PATIENCE_S = 1800
ALONE = "faults"
"""The fixture whose tests run alone."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Tests that run alone come first, one after the other: other tiers run beside this one, and as long as they do, they
    # use what these tests leave of the machine.
    items.sort(key=_is_alone, reverse=True)
    lacking = _lacking()
    for item in items:
        if item.get_closest_marker("cluster"):
            if lacking:
                item.add_marker(pytest.mark.skip(reason=lacking))
            stated = item.get_closest_marker("timeout")
            # A test that waits for its turn, or for the cluster, has not begun yet.
            item.add_marker(pytest.mark.timeout(stated.args[0] if stated else PATIENCE_S, func_only=True), append=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Tests run beside each other, of other processes too, but a test that uses `faults` runs alone, its fixtures' set-up and
    tear-down included. A hook, not a fixture: a test may ask for the cluster while it runs, and a module's fixtures come first.

    pytest calls it for the items of other folders as well.
    """
    if item.get_closest_marker("cluster") is None:
        return (yield)
    with a_turn(alone=_is_alone(item)):
        return (yield)


def _is_alone(item: pytest.Item) -> bool:
    return ALONE in getattr(item, "fixturenames", ())


def _lacking() -> str | None:
    """Why there is no cluster for these tests at all."""
    if STATE_VARIABLE in os.environ or OURS:
        return None
    reason = packages.obstacle() or build.obstacle()
    if "KUBECONFIG" not in os.environ:
        return f"no cluster: {reason}, and KUBECONFIG names none"
    return None if shutil.which("kubectl") else "no cluster: KUBECONFIG names one, and there is no kubectl on the PATH"


@pytest.fixture(scope="session")
def cluster(_cluster: Kubernetes) -> Kubernetes:
    """What every test may use."""
    # Kubernetes' client keeps the certificates of a kubeconfig in files of its own, for the whole process, and registers each
    # before it has written it: of two threads that are the first, one may read an empty file. So this thread is the first.
    kubernetes.config.new_client_from_config(str(_cluster.kubeconfig)).close()
    return _cluster


@pytest.fixture(scope="session")
def _cluster() -> Iterator[Kubernetes]:
    if state := os.environ.get(STATE_VARIABLE):
        cluster = Cluster(Path(state))
        if images.PYTHON not in cluster.images():
            cluster.load(images.python(print))
        yield cluster
    elif not OURS:
        existing = Existing(Path(os.environ["KUBECONFIG"]))
        require(existing, "jobsets.jobset.x-k8s.io")
        yield existing
    elif "PYTEST_XDIST_WORKER" in os.environ:
        pytest.fail(f"several workers need one cluster: make cluster-up, and {STATE_VARIABLE}=.cluster")
    else:
        # Short, for the sockets below it.
        folder = Path(tempfile.mkdtemp(prefix="ns-"))
        try:
            with Cluster(folder / "c", images=[images.python(print)], say=print) as cluster:
                yield cluster
        finally:
            shutil.rmtree(folder)


@pytest.fixture(scope="session")
def driver_tar(cluster: Kubernetes) -> Path:
    """The driver's image as this clone builds it, known to every real node; its name is `DRIVER_IMAGE`."""
    own = _must_be_own(cluster)
    tar = images.driver(print)
    own.load(tar)
    return tar


@pytest.fixture(scope="session")
def stream_kinds(cluster: Kubernetes) -> None:
    """What a stream's manifests may have beyond Kubernetes' own kinds."""
    if not OURS:
        pytest.skip("only a cluster of our own is given new kinds")
    documents = list(yaml.safe_load_all((Path(__file__).parent / "crds/podmonitorings.yaml").read_text()))
    for file in ("keda-crds.yaml", "inference-crds.yaml", "gateway-crds.yaml", "gke-gateway-crds.yaml"):
        found = yaml.safe_load_all(build.Programs().manifest(file).read_text())
        crds = [each for each in found if each["kind"] == "CustomResourceDefinition"]
        documents += [each for each in crds if each["spec"]["names"]["kind"] in STREAM_KINDS]
    assert len(documents) == len(STREAM_KINDS) + 1
    cluster.kubectl("apply", "--server-side", "-f", "-", text=yaml.safe_dump_all(documents))
    names = [f"crd/{each['metadata']['name']}" for each in documents]
    await_kinds(cluster, *names)


@pytest.fixture(scope="session")
def stream_tar(cluster: Kubernetes) -> Path:
    """The same of a stream's subscribers; its name is `STREAM_IMAGE`."""
    own = _must_be_own(cluster)
    tar = images.stream(print)
    own.load(tar)
    return tar


@pytest.fixture
def own_cluster(cluster: Kubernetes) -> Cluster:
    """For tests that are about this machine, or do what only a cluster of this machine lets them do."""
    return _must_be_own(cluster)


def _must_be_own(cluster: Kubernetes) -> Cluster:
    if not isinstance(cluster, Cluster):
        pytest.skip(f"not with the cluster that KUBECONFIG names: {packages.obstacle() or build.obstacle()}")
    return cluster


@pytest.fixture
def faults(own_cluster: Cluster) -> Iterator[Faults]:
    """Breaks nodes and parts. No other test runs meanwhile; what is broken at the end is mended."""
    faults = Faults(own_cluster)
    yield faults
    faults.undo()


@pytest.fixture
def namespace(cluster: Kubernetes) -> Iterator[Namespace]:
    with a_namespace(cluster) as namespace:
        yield namespace
