"""Which line of an engine's log says why it exited. The texts are vLLM's own (0.32, on a CPU), but for paths."""

from __future__ import annotations

import pytest

from nightshift.jobset.verdict.last_words import Words
from nightshift.run.observed.pods_now import CHARACTERS_MOST, LINES_MOST

pytestmark = pytest.mark.unit

OFFLINE = """\
  File "huggingface_hub/_snapshot_download.py", line 382, in snapshot_download
    raise LocalEntryNotFoundError(
huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder for the specified revision on\
 the local disk and outgoing traffic has been disabled. ..."""
UNREACHABLE = """\
'[Errno 111] Connection refused' thrown while requesting HEAD http://127.0.0.1:9/nobody/no-such-model/resolve/main/config.json
Retrying in 1s [Retry 1/5].
OSError: We couldn't connect to 'http://127.0.0.1:9' to load the files, and couldn't find them in the cached files."""
FLAG = """\
                     [--shutdown-timeout SHUTDOWN_TIMEOUT]
                     [model_tag]
main.py: error: unrecognized arguments: --no-such-flag"""
ENGINE = """\
(EngineCore pid=77) ERROR 11-27 23:07:08 [core.py:1136] EngineCore failed to start.
(EngineCore pid=77) ERROR 11-27 23:07:08 [core.py:1136] ValueError: Free memory on device cuda:0 (1.0 GiB) is less.
(EngineCore pid=77) ValueError: Free memory on device cuda:0 (1.0 GiB) is less.
(APIServer pid=1) Traceback (most recent call last):
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"""
CACHE = """\
ValueError: Available memory on node 0 (14.2/23.5 GiB) on kv cache allocation is less than requested memory for kv (100000.0\
 GiB). Decrease --kv-cache-memory-bytes, VLLM_CPU_KVCACHE_SPACE, or reduce CPU memory used by other processes."""
PYDANTIC = """\
pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, Invalid repository ID or local directory specified: '/models/x'. [type=value_error]
    For further information visit https://errors.pydantic.dev/2.12/v/value_error"""


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (OFFLINE, "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder"),
        (UNREACHABLE, "OSError: We couldn't connect to 'http://127.0.0.1:9'"),
        (FLAG, "main.py: error: unrecognized arguments: --no-such-flag"),
        (ENGINE, "ValueError: Free memory on device cuda:0 (1.0 GiB) is less."),
        (PYDANTIC, "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig Value error, Invalid"),
    ],
    ids=["offline", "unreachable", "flag", "engine", "pydantic"],
)
def test_the_line_that_says_why(log: str, cause: str) -> None:
    assert Words(log.splitlines()).cause.startswith(cause)


def test_only_a_server_that_does_not_answer_may_answer_later() -> None:
    assert Words(UNREACHABLE.splitlines()).may_pass
    for log in (OFFLINE, FLAG, ENGINE, PYDANTIC):
        assert not Words(log.splitlines()).may_pass, log


def test_a_line_that_only_mentions_an_error_is_none() -> None:
    warning = (
        "(APIServer pid=1) WARNING 11-27 23:07:08 [s.py:255] This can cause errors like `OSError: [Errno 24] Too many files`"
    )

    assert Words([warning, "INFO ready"]).cause == ""


def test_they_are_bounded() -> None:
    words = Words(["ValueError: " + "x" * 10_000_000, *("y" * 10_000 for _ in range(1000))])

    assert len(words.cause) == CHARACTERS_MOST
    assert [len(line) for line in words.lines] == [CHARACTERS_MOST] * LINES_MOST
