"""The contract of a runtime on a real cluster: the very cases that the local runtime is put to.

Each waits for pods much longer than it computes, so several run at once, all of them in the turn of the first test.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import pytest

from local.cluster.cluster import Cluster
from tests.cluster.kube import IMAGE, Namespace, require
from tests.cluster.runtime import FollowedRuntime, Followers
from tests.integration.runtime import contract
from tests.integration.runtime.manifests import jobset_name
from tests.integration.runtime.side_by_side import cases_of, chosen, run

pytestmark = [pytest.mark.cluster, pytest.mark.gate]

CASES = cases_of(contract)


@pytest.fixture(scope="module")
def ends() -> dict[str, Future[None]]:
    """How the cases ended; empty until the first test has run them."""
    return {}


@pytest.mark.parametrize("case", CASES)
def test_contract(case: str, ends: dict[str, Future[None]], request: pytest.FixtureRequest) -> None:
    if not ends:
        ends.update(_run(chosen(request, test_contract), request.getfixturevalue("namespace")))
    ends[case].result()


def _run(names: list[str], namespace: Namespace) -> dict[str, Future[None]]:
    """Runs the cases to their ends."""
    cluster = namespace.cluster
    require(cluster, "jobsets.jobset.x-k8s.io")
    kubeconfig = cluster.kubeconfig
    with Followers(kubeconfig, namespace.name) as followers:

        def values(name: str) -> Mapping[str, Any]:
            # An API client of its own: those of Kubernetes' package are not for several threads.
            runtime = FollowedRuntime(kubeconfig, namespace.name, followers)
            return {
                "runtime": runtime,
                "image": IMAGE,
                "namespace": namespace.name,
                "name": jobset_name(name),
                "host": cluster.gateway if isinstance(cluster, Cluster) else None,
            }

        return run(CASES, names, values)
