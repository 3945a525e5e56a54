"""The command `nightshift resume`."""

from __future__ import annotations

from typing import Final

from nightshift.cli.pause import EPILOG, Options, request

__all__ = ["DESCRIPTION", "EPILOG", "Options", "run"]

DESCRIPTION: Final = (
    "Takes back a pause: writes that into the run's folder, and lets the run's JobSets in the runtime that NIGHTSHIFT_RUNTIME "
    "names start their pods again, which continue with the chunks that are not committed. The run's deadline has not moved."
)


def run(options: Options) -> int:
    return request("resume", options, paused=False)
