"""Tokens of texts, counted by a model's own tokenizer, in a process of its own.

A ``tokenizer.json`` is foreign, and the library that reads it is Rust: it may raise an exception that is no Exception, end its
process, fill its memory, or match a regular expression for hours. None of that may end a night, or a command, for an estimate.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

TIMEOUT_S: Final = 60.0
MEMORY_BYTES: Final = 6 << 30
"""Address space, of which threads and the interpreter take a part."""
WORDS_MAX: Final = 200
"""Characters of a reason that are shown."""
_PROGRAM: Final = "from nightshift.planner.tokens import main; main()"


class Uncountable(ValueError):
    """The tokenizer cannot count these texts; the message says why."""


def count(texts: Sequence[Sequence[str]], tokenizer_json: bytes, *, timeout_s: float = TIMEOUT_S) -> list[float]:
    """Tokens of each row's texts together. Raises Uncountable, whatever the tokenizer does."""
    # Of the variables, which may be secrets, the library needs none.
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TOKENIZERS_PARALLELISM": "false"}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _PROGRAM],
            input=json.dumps([list(row) for row in texts]).encode() + b"\n" + tokenizer_json,
            env=environment,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Uncountable(f"the tokenizer took more than {timeout_s:g} s") from error
    except OSError as error:
        raise Uncountable(f"no process can be started for the tokenizer: {error}") from error
    try:
        reply = json.loads(done.stdout)
        counts = [float(each) for each in reply["counts"]]
    except (KeyError, TypeError, ValueError):
        why = reply.get("why") if done.returncode == 0 and isinstance(reply, dict) else None
        raise Uncountable(why or f"the tokenizer ended its process with {done.returncode}") from None
    if len(counts) != len(texts):
        raise Uncountable("the tokenizer counted other rows")
    return counts


def main() -> None:
    """The process: reads what `count` writes, and prints ``{"counts": [...]}`` or ``{"why": "..."}``."""
    for what, most in ((resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_CORE, 0)):
        # Not every system has such a limit.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(what, (most, most))
    texts = json.loads(sys.stdin.buffer.readline())
    try:
        reply: dict[str, object] = {"counts": _counted(texts, sys.stdin.buffer.read())}
    except BaseException as error:  # Rust's panics are no Exceptions.
        reply = {"why": _words(error)}
    print(json.dumps(reply))


def _counted(texts: Sequence[Sequence[str]], tokenizer_json: bytes) -> list[int]:
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError as error:
        raise Uncountable("the package tokenizers is not installed here") from error
    try:
        tokenizer = Tokenizer.from_buffer(tokenizer_json)
    except BaseException as error:
        raise Uncountable(f"tokenizer.json cannot be read: {_words(error)}") from error
    # Some tokenizers cut and pad what they are given.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    try:
        return [sum(len(each.ids) for each in tokenizer.encode_batch(list(row))) for row in texts]
    except BaseException as error:
        raise Uncountable(f"the tokenizer cannot read the texts: {_words(error)}") from error


def _words(error: BaseException) -> str:
    return (str(error).strip().partition("\n")[0] or type(error).__name__)[:WORDS_MAX]
