"""The command `nightshift batch`."""

from __future__ import annotations

from typing import Final

from nightshift import exits
from nightshift.batch.options import Options

__all__ = ["DESCRIPTION", "EPILOG", "Options", "run"]

DESCRIPTION: Final = (
    "Sends every line of an OpenAI batch file (as `vllm run-batch` reads it) to an OpenAI-compatible server and writes a line "
    "for each, in order. If it ends early for any reason, run it again: saved lines are not sent again."
)
EPILOG: Final = (
    "OPENAI_API_KEY, if set, is sent as the bearer token. Exit codes: 0 the output is written; 1 the output is written but "
    "lines failed (--fail-on-error); 2 bad input; 75 work is left, run the same command again."
)


def run(options: Options) -> int:
    exits.on_signals(exits.RESUME)
    from nightshift.batch import command

    return command.run(options)
