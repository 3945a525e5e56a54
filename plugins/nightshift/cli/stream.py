"""The command `nightshift stream`."""

from __future__ import annotations

from typing import Final

from nightshift import exits
from nightshift.stream.options import Options

__all__ = ["DESCRIPTION", "EPILOG", "Options", "run"]

DESCRIPTION: Final = (
    "Pulls a subscription's messages, sends them to the engine, writes each answer to the sink, and then acknowledges the "
    "message. Runs until SIGTERM, and returns the messages that it cannot finish within 15 s. Two more commands begin with the "
    "same word: `nightshift stream redrive` publishes dead letters again, `nightshift stream load` merges new files into "
    "BigQuery."
)
EPILOG: Final = (
    "NIGHTSHIFT_PROJECT is the project of names without one. Exit codes: 0 no message is held; 2 bad input; 75 some are held, "
    "and will be redelivered; 78 not retryable."
)


def run(options: Options) -> int:
    exits.on_signals(exits.DONE)
    from nightshift.stream import command

    return command.run(options)
