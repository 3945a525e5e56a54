"""Exit codes in words."""

from __future__ import annotations

import pytest

from nightshift.jobset.verdict.exit_codes import in_words

pytestmark = pytest.mark.unit


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
        (78, "Error", "78 (trying again cannot help)"),
        (255, "Error", "255"),
    ],
)
def test_exit_codes_in_words(code: int, reason: str, words: str) -> None:
    assert in_words(code, reason, resume={75}, permanent={78}) == words
