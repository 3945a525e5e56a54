"""The runtimes that the contract test runs against: another one is another parameter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nightshift.jobset.local import LocalRuntime
from tests.integration.runtime.agents import AgentProcess
from tests.integration.runtime.manifests import IMAGE, RuntimeUnderTest


@pytest.fixture(scope="session", params=["local"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RuntimeUnderTest, str]]:
    """A runtime that runs, with short back-offs, and the name of an image in it that has sh and python3."""
    agent = AgentProcess(tmp_path_factory.mktemp("runtime"))
    agent.start()
    yield LocalRuntime(agent.state), IMAGE
    agent.close()


@pytest.fixture
def runtime(target: tuple[RuntimeUnderTest, str]) -> RuntimeUnderTest:
    return target[0]


@pytest.fixture
def image(target: tuple[RuntimeUnderTest, str]) -> str:
    return target[1]


@pytest.fixture
def name(request: pytest.FixtureRequest, runtime: RuntimeUnderTest) -> Iterator[str]:
    """A JobSet name of this test's own; what is submitted under it is stopped at the end."""
    name = request.node.name.removeprefix("test_").partition("[")[0].replace("_", "-")[:40].rstrip("-")
    yield name
    runtime.stop(name)
