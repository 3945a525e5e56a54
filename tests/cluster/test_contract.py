"""The contract of a runtime on a real cluster: the very cases that the local runtime is put to.

Each waits for pods much longer than it computes, so several run at once, all of them in the turn of the first test.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

import pytest

from tests.cluster.kube import IMAGE, Namespace, require
from tests.cluster.runtime import FollowedRuntime, Followers
from tests.integration.runtime import test_contract as contract
from tests.integration.runtime.manifests import jobset_name

pytestmark = pytest.mark.cluster

AT_ONCE: Final = 8
CASES: Final[dict[str, Callable[..., None]]] = {
    name: case for name, case in vars(contract).items() if name.startswith("test_") and inspect.isfunction(case)
}


@pytest.fixture(scope="module")
def ends() -> dict[str, Future[None]]:
    """How the cases ended; empty until the first test has run them."""
    return {}


@pytest.mark.parametrize("case", CASES)
def test_contract(case: str, ends: dict[str, Future[None]], request: pytest.FixtureRequest) -> None:
    if not ends:
        items: list[Any] = request.session.items
        chosen = [item.callspec.params["case"] for item in items if getattr(item, "function", None) is test_contract]
        ends.update(_run(chosen, request.getfixturevalue("namespace")))
    ends[case].result()


def _run(cases: list[str], namespace: Namespace) -> dict[str, Future[None]]:
    """Runs the cases to their ends."""
    require(namespace.cluster, "jobsets.jobset.x-k8s.io")
    kubeconfig = namespace.cluster.kubeconfig
    with Followers(kubeconfig, namespace.name) as followers, ThreadPoolExecutor(AT_ONCE) as pool:

        def run(name: str) -> None:
            case = CASES[name]
            # An API client of its own: those of Kubernetes' package are not for several threads.
            runtime = FollowedRuntime(kubeconfig, namespace.name, followers)
            given = {"runtime": runtime, "image": IMAGE, "namespace": namespace.name, "name": jobset_name(name)}
            case(**{each: given[each] for each in inspect.signature(case).parameters})

        return {name: pool.submit(run, name) for name in cases}
