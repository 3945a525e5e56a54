"""Exit codes in words, and the one with which a signal ends a program that cannot drain yet."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nightshift.jobset.verdict.exit_codes import in_words

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("code", "reason", "words"),
    [
        (1, "Error", "1"),
        (126, "Error", "126 (its command cannot be executed)"),
        (127, "Error", "127 (its command was not found)"),
        (128, "StartError", "128 (it could not be started)"),
        (134, "Error", "134 (SIGABRT)"),
        (137, "Error", "137 (SIGKILL)"),
        (137, "OOMKilled", "137 (SIGKILL, out of memory)"),
        (139, "Error", "139 (SIGSEGV)"),
        (143, "Error", "143 (SIGTERM)"),
        (75, "Error", "75 (work is left)"),
        (78, "Error", "78 (not retryable)"),
        (255, "Error", "255"),
    ],
)
def test_exit_codes_in_words(code: int, reason: str, words: str) -> None:
    assert in_words(code, reason, resume={75}, permanent={78}) == words


WAITS = """
import os, signal, sys
from nightshift import exits
exits.on_signals(exits.RESUME)
{before}
print("waits", flush=True)
sys.stdin.buffer.read()
"""
UNSEEN = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])"
"""The main thread's call is not interrupted, as if the signal had come just before it."""
OTHER = "signal.signal(signal.SIGTERM, lambda *_: os._exit(3)); signal.signal(signal.SIGINT, lambda *_: os._exit(3))"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(("before", "code"), [("", 75), (UNSEEN, 75), (OTHER, 3)], ids=["seen", "unseen", "other handlers"])
def test_a_signal_ends_a_program_that_waits_for_its_input(number: signal.Signals, before: str, code: int) -> None:
    command = [sys.executable, "-c", WAITS.format(before=before)]
    path = {"PYTHONPATH": str(ROOT / "plugins")}
    with subprocess.Popen(command, env=path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        try:
            assert process.wait(timeout=60) == code
        finally:
            process.kill()
