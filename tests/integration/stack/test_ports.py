"""Ports that are chosen before their servers begin."""

from __future__ import annotations

import subprocess
import sys

import pytest

from local.ports import new_port

pytestmark = [pytest.mark.integration, pytest.mark.gate]

CHOOSE = "from local.ports import new_port; print(*(new_port() for _ in range(400)), flush=True); input()"


def test_processes_that_choose_at_once_never_choose_the_same() -> None:
    """Each has so many that two of them would share some by chance."""
    processes = [
        subprocess.Popen([sys.executable, "-c", CHOOSE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    try:
        chosen = [port for process in processes if process.stdout for port in process.stdout.readline().split()]
    finally:
        for process in processes:
            process.kill()
            process.communicate()

    assert len(chosen) == len(set(chosen)) == 1200


def test_one_process_gets_no_port_twice() -> None:
    chosen = [new_port() for _ in range(100)]

    assert len(set(chosen)) == 100
