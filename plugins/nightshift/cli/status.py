"""The command `nightshift status`: of a run, its interval, output format and exit code; of a stream, the same."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import obstore

from nightshift import exits
from nightshift.fields.arguments import flag, option, seconds
from nightshift.planner.costs.prices import Prices, load_prices
from nightshift.run.names import split_run_url
from nightshift.run.opening import NoSuchRun
from nightshift.spec import SpecErrors, load_stream
from nightshift.status.report import Status
from nightshift.status.survey import Survey
from nightshift.status.text import text
from nightshift.store import StoreUnavailable, open_store
from nightshift.stream.status import report
from nightshift.stream.status.prometheus import NoAnswer

DESCRIPTION: Final = "Shows how far a run has got, from its ledger alone, or how a stream keeps up, from Prometheus."
EPILOG: Final = (
    "Exit codes: 0; 2 there is no such run or file, or its values are wrong; 75 the store or Prometheus does not answer."
)


@dataclass(frozen=True)
class Options:
    url: str = option(
        metavar="RUN_URL", help="gs://BUCKET/JOB/PARTITION/RUN or file:///FOLDER/JOB/PARTITION/RUN; or a stream's YAML file"
    )
    watch: float | None = option(
        "--watch",
        nargs="?",
        type=seconds,
        const=5.0,
        metavar="SECONDS",
        help="repeat until all chunks are committed, a stream's until Ctrl-C (default interval: 5 s)",
    )
    as_json: bool = flag("--json", "one JSON object per line (keys: docs/operate/status.md, of a stream docs/use/streams.md)")
    prometheus: str | None = option(
        "--prometheus", metavar="URL", help="for a stream: query this server instead of Cloud Monitoring"
    )
    window: float | None = option(
        "--window", type=seconds, metavar="SECONDS", help="for a stream: compute rates over this time (default: 600)"
    )
    prices: Path | None = option(
        "--prices", type=Path, metavar="FILE", help="of a run: its cost by these prices (docs/operate/costs.md)"
    )


def run(options: Options) -> int:
    """Prints the status: once, or again and again. While watching a store that does not answer, it says so and tries again."""
    try:
        if Path(options.url).is_file():
            return _of_stream(options)
        if options.prometheus or options.window:
            print(f"{options.url}: --prometheus and --window are for stream files. Leave them out.", file=sys.stderr)
            return exits.BAD_INPUT
        return _of_run(options)
    except KeyboardInterrupt:
        return exits.INTERRUPTED


def _of_stream(options: Options) -> int:
    window_s = options.window or report.WINDOW_S
    try:
        spec = load_stream(Path(options.url))
        url = options.prometheus
        sources = report.Sources.one(spec, url) if url else report.Sources.google(spec, os.environ)
        while True:
            numbers = report.measure(sources, spec, window_s)
            print(report.to_json(spec, numbers) if options.as_json else report.text(spec, numbers, window_s), flush=True)
            if options.watch is None:
                return exits.DONE
            time.sleep(options.watch)
    except SpecErrors as error:
        print(error, file=sys.stderr)
        return exits.BAD_INPUT
    except ValueError as error:
        print(f"{options.url}: {error}", file=sys.stderr)
        return exits.BAD_INPUT
    except NoAnswer as error:
        print(f"nightshift status: {error}", file=sys.stderr)
        return exits.RESUME


def _of_run(options: Options) -> int:
    """Watching ends when nothing is left to commit."""
    try:
        prices = load_prices(options.prices or os.environ.get("NIGHTSHIFT_PRICES"))
        return _show(_survey(options.url, prices), options.watch, options.as_json)
    except (NoSuchRun, ValueError) as error:
        print(f"nightshift status: {error}", file=sys.stderr)
        return exits.BAD_INPUT
    except StoreUnavailable as error:
        print(f"nightshift status: the store cannot be read: {error}", file=sys.stderr)
        return exits.RESUME
    except BrokenPipeError:
        # The reader has closed the pipe. Without this Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exits.DONE


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
                return exits.DONE
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
