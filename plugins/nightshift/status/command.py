"""The command ``nightshift status``: its run, interval, output format and exit code."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import obstore

from nightshift.planner.costs.prices import Prices, load_prices
from nightshift.run.names import split_run_url
from nightshift.run.opening import NoSuchRun
from nightshift.status.report import Status
from nightshift.status.survey import Survey
from nightshift.status.text import text
from nightshift.store import StoreUnavailable, open_store

DONE: Final = 0
UNAVAILABLE: Final = 1
BAD_INPUT: Final = 2
INTERRUPTED: Final = 130


def run(url: str, *, every_s: float | None, as_json: bool, prices: str | Path | None = None) -> int:
    """Prints the run's status: once, or every `every_s` seconds until nothing is left to commit.

    prices: a file of them, by default what NIGHTSHIFT_PRICES names, else this release's. Returns 0; 1 if the store does not
    answer (while watching, it says so and tries again); 2 for a URL without a run, or bad prices.
    """
    try:
        return _show(_survey(url, load_prices(prices or os.environ.get("NIGHTSHIFT_PRICES"))), every_s, as_json)
    except (NoSuchRun, ValueError) as error:
        print(f"nightshift status: {error}", file=sys.stderr)
        return BAD_INPUT
    except StoreUnavailable as error:
        print(f"nightshift status: the store cannot be read: {error}", file=sys.stderr)
        return UNAVAILABLE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has closed the pipe. Without this Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE


def _survey(url: str, prices: Prices) -> Survey:
    base, run = split_run_url(url)
    parts = urlsplit(base)
    # A local store would create the folder.
    if parts.scheme == "file" and not Path(parts.path, run.prefix).is_dir():
        raise NoSuchRun(f"There is no run at {url}")
    try:
        return Survey(open_store(base), run, url, prices)
    except obstore.exceptions.BaseError as error:
        raise StoreUnavailable(str(error)) from error


def _show(survey: Survey, every_s: float | None, as_json: bool) -> int:
    screen = _Screen()
    seen = False
    while True:
        try:
            status = survey.refresh()
            seen = True
        except StoreUnavailable as error:
            if every_s is None or not seen:
                raise
            print(f"nightshift status: the store cannot be read, trying again: {error}", file=sys.stderr)
        else:
            if as_json:
                print(json.dumps(status.to_json()), flush=True)
            else:
                screen.show(status, redraw=every_s is not None)
            if every_s is None or status.complete or status.sealed_at is not None:
                return DONE
        time.sleep(every_s)


class _Screen:
    """On a terminal each status replaces the last one; elsewhere it follows after an empty line."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._lines = 0

    def show(self, status: Status, *, redraw: bool) -> None:
        lines = text(status).splitlines()
        if self._terminal and redraw:
            # A wrapped line takes two rows, and the cursor would move up too little.
            columns = shutil.get_terminal_size().columns
            lines = [line[: columns - 1] for line in lines]
            start = f"\x1b[{self._lines}A\x1b[J" if self._lines else ""
        else:
            start = "\n" if self._lines else ""
        print(start + "\n".join(lines), flush=True)
        self._lines = len(lines)
