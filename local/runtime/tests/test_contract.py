"""The contract of a runtime (`contract.py`), put to the local one over its API, by the client and the follower that a cluster
gets. The first test runs all cases side by side."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import pytest

from tests.cluster.runtime import FollowedRuntime, Followers
from tests.integration.runtime import contract
from tests.integration.runtime.agents import AgentProcess
from tests.integration.runtime.manifests import IMAGE, jobset_name
from tests.integration.runtime.side_by_side import cases_of, chosen, run

pytestmark = [pytest.mark.integration, pytest.mark.gate]

CASES = cases_of(contract)
NAMESPACE = "default"


@pytest.fixture(scope="module")
def ends() -> dict[str, Future[None]]:
    """How the cases ended; empty until the first test has run them."""
    return {}


@pytest.mark.parametrize("case", CASES)
def test_contract(
    case: str, ends: dict[str, Future[None]], request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if not ends:
        agent = AgentProcess(tmp_path_factory.mktemp("runtime"))
        agent.start()
        try:
            with Followers(agent.kubeconfig, NAMESPACE) as followers:
                ends.update(run(CASES, chosen(request, test_contract), lambda name: _values(agent, followers, name)))
        finally:
            agent.close()
    ends[case].result()


def _values(agent: AgentProcess, followers: Followers, name: str) -> Mapping[str, Any]:
    return {
        "runtime": FollowedRuntime(agent.kubeconfig, NAMESPACE, followers),
        "image": IMAGE,
        "namespace": NAMESPACE,
        "name": jobset_name(name),
        "host": "127.0.0.1",
    }
