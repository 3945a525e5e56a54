"""Who may be at the test cluster at the same time: see `tests.cluster.turns`."""

from __future__ import annotations

import pytest

from local.cluster.cluster import STATE_VARIABLE

pytestmark = pytest.mark.unit
pytest_plugins = ["pytester"]

CONFTEST = """
import pytest
from tests.cluster.conftest import pytest_runtest_protocol

def pytest_configure(config):
    config.addinivalue_line("markers", "cluster: needs a cluster")

@pytest.fixture
def faults():
    pass
"""

# A module that held the mark itself would count as one of the cluster's tier.
MODULE = """
import fcntl
import os
from pathlib import Path

import pytest

def may_lock(how):
    state = Path(os.environ["{variable}"])
    with open(state.with_name(state.name + ".tests.lock"), "a") as lock:
        try:
            fcntl.flock(lock, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

def others():
    return {{"share": may_lock(fcntl.LOCK_SH), "alone": may_lock(fcntl.LOCK_EX)}}

@pytest.fixture(scope="module")
def world():
    yield others()
    assert not may_lock(fcntl.LOCK_EX)

def test_without_a_cluster():
    assert others() == {{"share": True, "alone": True}}

@pytest.mark.{tier}
def test_that_names_no_fixture():
    assert others() == {{"share": True, "alone": False}}

@pytest.mark.{tier}
def test_with_a_fixture_of_its_module(world):
    assert world == {{"share": True, "alone": False}}

@pytest.mark.{tier}
def test_that_breaks_things(faults):
    assert others() == {{"share": False, "alone": False}}
"""


def test_every_test_of_the_cluster_has_a_turn_and_one_that_breaks_things_is_alone(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STATE_VARIABLE, str(pytester.path / "cluster"))
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(MODULE.format(variable=STATE_VARIABLE, tier="cluster"))
    pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:asyncio").assert_outcomes(passed=4)
