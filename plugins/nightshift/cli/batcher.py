"""The command `nightshift batcher`."""

from __future__ import annotations

from typing import Final

from nightshift import exits
from nightshift.batcher.options import Options

__all__ = ["DESCRIPTION", "EPILOG", "Options", "run"]

DESCRIPTION: Final = (
    "Collects single requests to endpoints that take lists (embeddings, completions, classify, pooling, score, KServe's "
    "predict and infer) into one, sends it when it is full or its first caller has waited long enough, and gives each caller "
    "its own answer or error. Passes everything else through. Needs the extras driver and stream."
)
EPILOG: Final = "Exit codes: 0 drained after a signal; 1 drained, but callers were cut off; 2 wrong command line."


def run(options: Options) -> int:
    exits.on_signals(exits.DONE)
    # Here, because its packages are those of the extras driver and stream: the help does not need them.
    from nightshift.batcher import server

    return server.run(options)
