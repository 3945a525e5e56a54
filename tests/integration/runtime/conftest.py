"""The local runtime for the contract test; `tests/cluster/test_contract.py` puts a cluster to the same cases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.runtime.agents import AgentProcess, LocalUnderTest
from tests.integration.runtime.manifests import IMAGE, RuntimeUnderTest, jobset_name


@pytest.fixture(scope="session")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuntimeUnderTest]:
    """A runtime that runs, with short back-offs."""
    agent = AgentProcess(tmp_path_factory.mktemp("runtime"))
    agent.start()
    yield LocalUnderTest(agent.state)
    agent.close()


@pytest.fixture
def image() -> str:
    """Has sh and python3."""
    return IMAGE


@pytest.fixture
def namespace() -> str:
    """Where JobSets go whose manifests do not say so."""
    return "default"


@pytest.fixture
def name(request: pytest.FixtureRequest, runtime: RuntimeUnderTest) -> Iterator[str]:
    """A JobSet name of this test's own; what is submitted under it is stopped at the end."""
    name = jobset_name(request.node.originalname)
    yield name
    runtime.stop(name)
