"""The command `nightshift status`: of a run, found by its name, or of a stream."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nightshift import exits
from nightshift.cli import status_engines, status_rows, status_watch, trouble, unopened
from nightshift.cli.target import NAMES, target
from nightshift.fields.arguments import flag, option, positive, seconds
from nightshift.planner.costs.prices import load_prices
from nightshift.run.opening import NoSuchRun
from nightshift.spec import SpecErrors, load_stream
from nightshift.store import StoreUnavailable
from nightshift.stream.status import report
from nightshift.stream.status.prometheus import NoAnswer

DESCRIPTION: Final = (
    "Shows how far a run has got and how its night ended, from its folder in the bucket alone; its dead letters, samples and "
    "single rows on request. Of a stream's file: how the stream keeps up, from Prometheus."
)
EPILOG: Final = (
    "Exit codes: 0, with --watch: the run is published; 1 with --watch: it has failed, or nothing says that it was published; "
    "2 there is no such run, row or file, or its values are wrong; 75 the store or Prometheus does not answer; 78 the store "
    "refuses; 130 Ctrl-C."
)
ROWS: Final = "rows of a run"


@dataclass(frozen=True)
class Options:
    run: str = option(metavar="RUN", help=f"{NAMES}; or a stream's YAML file")
    watch: float | None = option(
        "--watch",
        nargs="?",
        type=seconds,
        const=5.0,
        metavar="SECONDS",
        help="repeat until the run is published or has failed, a stream's until Ctrl-C (default interval: 5 s)",
    )
    as_json: bool = flag("--json", "one JSON object per line")
    dead_letters: str | None = option(
        "--dead-letters",
        group=ROWS,
        nargs="?",
        const="",
        metavar="REASON",
        help="show dead letters, of one reason or of all, with their messages and prompts; with --json all, else the first 20",
    )
    samples: int | None = option(
        "--samples",
        group=ROWS,
        type=positive,
        metavar="N",
        help="show N rows with their prompts and answers, from a few chunks",
    )
    row: str | None = option(
        "--row",
        group=ROWS,
        metavar="KEY",
        help="show one row with its prompt, its answer and where the proof is; of several key columns, NAME=VALUE,...",
    )
    engines: bool = flag(
        "--engines", "show where the pods are, who has to act, and the last words of engines that cannot start"
    )
    prometheus: str | None = option(
        "--prometheus", metavar="URL", help="for a stream: query this server instead of Cloud Monitoring"
    )
    window: float | None = option(
        "--window", type=seconds, metavar="SECONDS", help="for a stream: compute rates over this time (default: 600)"
    )
    prices: Path | None = option("--prices", type=Path, metavar="FILE", help="of a run: its cost by these prices")


def run(options: Options) -> int:
    """Prints the status: once, or again and again. While watching a store that does not answer, it says so and tries again."""
    try:
        if Path(options.run).is_file():
            return _of_stream(options)
        if options.prometheus or options.window:
            print(f"{options.run}: --prometheus and --window are for stream files. Leave them out.", file=sys.stderr)
            return exits.BAD_INPUT
        return _of_run(options)
    except KeyboardInterrupt:
        return exits.INTERRUPTED


def _of_stream(options: Options) -> int:
    window_s = options.window or report.WINDOW_S
    try:
        spec = load_stream(Path(options.run))
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
        print(f"{options.run}: {error}", file=sys.stderr)
        return exits.BAD_INPUT
    except NoAnswer as error:
        print(f"nightshift status: {error}", file=sys.stderr)
        return exits.RESUME


def _of_run(options: Options) -> int:
    try:
        prices = load_prices(options.prices or os.environ.get("NIGHTSHIFT_PRICES"))
        found = target(options.run)
        if options.dead_letters is not None:
            return status_rows.dead_letters(found, options.dead_letters or None, as_json=options.as_json)
        if options.engines:
            return status_engines.engines(found, as_json=options.as_json)
        if options.samples is not None:
            return status_rows.samples(found, options.samples, as_json=options.as_json)
        if options.row is not None:
            return status_rows.row(found, options.row, as_json=options.as_json)
        code = status_watch.show(found, prices, options.watch, as_json=options.as_json)
        if options.run == found.run.job and (newer := unopened.words_of(found.run.job, os.environ)):
            print(newer, file=sys.stderr)
        return code
    except (LookupError, ValueError, trouble.NoAccount, StoreUnavailable) as error:
        if not isinstance(error, NoSuchRun) or "://" in options.run:
            return trouble.tell("status", error)
        # First why: a name that the bucket lacks is what follows from it.
        if words := unopened.words_of(options.run.partition("/")[0], os.environ):
            print(words, file=sys.stderr)
        code = trouble.tell("status", error)
        if not words:
            print(unopened.NO_RUN, file=sys.stderr)
        return code
    except BrokenPipeError:
        # The reader has closed the pipe. Without this Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exits.DONE
