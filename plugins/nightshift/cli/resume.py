"""The command `nightshift resume`."""

from __future__ import annotations

from nightshift.cli.pause import DESCRIPTION, EPILOG, Options, request

__all__ = ["DESCRIPTION", "EPILOG", "Options", "run"]


def run(options: Options) -> int:
    return request("resume", options, paused=False)
