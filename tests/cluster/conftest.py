"""One cluster for all tests of this folder; each test has a namespace of its own."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from local.cluster import build, images, packages
from local.cluster.cluster import Cluster
from tests.cluster.kube import Namespace


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Not built here unasked while the cluster is young: a quarter of an hour of two cores.
    unbuilt = None if build.Programs().built else "the test cluster's programs are not built here: make cluster-up"
    if reason := packages.obstacle() or unbuilt:
        for item in items:
            if item.get_closest_marker("cluster"):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    # Short, for the sockets below it.
    folder = Path(tempfile.mkdtemp(prefix="ns-"))
    packages.ensure(print)
    try:
        with Cluster(folder / "c", images=[images.python(print)], say=print) as cluster:
            yield cluster
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[Namespace]:
    name = f"test-{uuid.uuid4().hex[:8]}"
    cluster.kubectl("create", "namespace", name)
    namespace = Namespace(cluster, name)
    namespace.wait_until("its service account", lambda: namespace.get("serviceaccounts"))
    yield namespace
    cluster.kubectl("delete", "namespace", name, "--wait=false")
