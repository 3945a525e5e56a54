"""The contract of a runtime (`contract.py`), put to the local one. The first test runs all cases side by side."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import pytest

from tests.integration.runtime import contract
from tests.integration.runtime.agents import AgentProcess, LocalUnderTest
from tests.integration.runtime.manifests import IMAGE, jobset_name
from tests.integration.runtime.side_by_side import cases_of, chosen, run

pytestmark = [pytest.mark.integration, pytest.mark.gate]

CASES = cases_of(contract)


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
            ends.update(run(CASES, chosen(request, test_contract), lambda name: _values(agent, name)))
        finally:
            agent.close()
    ends[case].result()


def _values(agent: AgentProcess, name: str) -> Mapping[str, Any]:
    return {
        "runtime": LocalUnderTest(agent.state),
        "image": IMAGE,
        "namespace": "default",
        "name": jobset_name(name),
        "host": "127.0.0.1",
    }
