"""The seconds of a drain, and the signal that begins it."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys

import pytest

from local.environments import ROOT
from nightshift import exits
from nightshift.driver import drain
from nightshift.jobset.manifest.constants import GRACE_SECONDS

pytestmark = pytest.mark.unit


def test_the_steps_of_a_drain_fit_into_what_a_spot_machine_leaves_a_pod() -> None:
    steps = [0, drain.DRAIN_IN_FLIGHT_S, drain.DRAIN_SAVED_S, drain.DRAIN_LIMIT_S, drain.DRAIN_GONE_S, drain.SPOT_S]

    assert drain.SPOT_S == 15
    assert drain.SPOT_S <= GRACE_SECONDS, "Kubernetes must not end the pod before"
    assert all(later - sooner >= 0.5 for sooner, later in itertools.pairwise(steps)), "each step has time of its own"


EARLY = """
import asyncio, signal, sys
from nightshift.driver.drain import DrainOnSignal

async def main():
    asked = DrainOnSignal()
    signal.raise_signal(int(sys.argv[1]))
    await asked.asked.wait()
    asked.attach(lambda: print("drained"))

asyncio.run(main())
"""
HANGING = """
import asyncio, logging, signal, time
from nightshift.driver import drain

class Stuck(logging.Handler):
    def emit(self, record):
        time.sleep(600)

async def main():
    drain.DrainOnSignal()
    signal.raise_signal(signal.SIGTERM)
    time.sleep(600)

logging.getLogger().addHandler(Stuck())
drain.DRAIN_LIMIT_S = 0.1
asyncio.run(main())
"""
LOCKED = """
import asyncio, ctypes, signal
from nightshift.driver import drain

async def main():
    drain.DrainOnSignal()
    signal.raise_signal(signal.SIGTERM)
    ctypes.PyDLL(None).sleep(600)  # with Python's lock

drain.DRAIN_LIMIT_S, drain.DRAIN_GONE_S = 0.1, 0.2
asyncio.run(main())
"""


def process(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A process of its own: signals concern all of it."""
    command = [sys.executable, "-c", program, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "plugins")}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_comes_before_the_worker_drains_it_when_it_is_there(number: signal.Signals) -> None:
    done = process(EARLY, str(int(number)))

    assert (done.returncode, done.stdout, done.stderr) == (0, "drained\n", "")


def test_a_process_whose_loop_and_log_hang_leaves_by_itself_and_asks_to_be_resumed() -> None:
    assert process(HANGING).returncode == exits.RESUME


def test_a_process_whose_lock_some_c_code_holds_leaves_by_itself_too() -> None:
    assert process(LOCKED).returncode == exits.RESUME
