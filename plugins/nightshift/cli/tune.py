"""The command `nightshift tune`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nightshift import exits
from nightshift.cli.engine_work import world_here
from nightshift.cli.given import Wrong, partition_of
from nightshift.cli.trouble import guarded
from nightshift.fields.arguments import flag, option, positive
from nightshift.trial.tune.budget import DEFAULT, ROWS, ROWS_MOST, Budget

if TYPE_CHECKING:
    from nightshift.trial.engine_jobset import Engines
    from nightshift.trial.tune.also import Setting
    from nightshift.trial.tune.tuner import Result
    from nightshift.trial.world import World

DESCRIPTION: Final = (
    "Finds the settings under which the job's engine answers the most rows a second, and prints a patch of the job file. For "
    "each trial it starts an engine in the runtime that NIGHTSHIFT_RUNTIME names, and sends it real rows of the job by the "
    "driver's own request loop; the job's own settings come first. Only settings that change no answer are tried, besides "
    "those of --also, and none is recommended that did not hold the longest rows. Trials are kept in the bucket: run it again "
    "after a crash, or with a larger budget, and it goes on."
)
EPILOG: Final = (
    "Exit codes: 0 there is a result, also that the job's own settings are best; 1 no settings held the longest rows, or too "
    "many rows are dead letters; 2 bad input; 75 the store, the warehouse or the runtime does not answer, or another tune of "
    "the job runs; 78 the engine serves another model, or the warehouse refuses."
)


def budget(text: str) -> Budget:
    try:
        return Budget.read(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def setting(text: str) -> Setting:
    from nightshift.trial.tune.also import Setting

    try:
        return Setting.read(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


@dataclass(frozen=True)
class Options:
    file: Path = option(type=Path, metavar="JOB", help="the job's YAML file")
    budget: Budget = option(
        "--budget",
        type=budget,
        default=budget(DEFAULT),
        metavar="TIME",
        help=f"how long all trials may take, or what they may cost by the list of prices: 30m, 4.50 (default: {DEFAULT})",
    )
    rows: int = option("--rows", type=positive, default=ROWS, metavar="N", help="rows of a trial (default: %(default)s)")
    partition: str | None = option(
        "--partition", metavar="DATE", help="the day, or the start of a period (default: the last one that is over)"
    )
    also: list[Setting] = option(
        "--also",
        type=setting,
        action="append",
        default=[],
        metavar="SETTING",
        help="a setting that may change answers, tried at the end, its answers compared with those without it: "
        "kv-cache-dtype=fp8; may be given again",
    )
    as_json: bool = flag("--json", "one JSON object at the end")


def run(
    options: Options,
    environment: Mapping[str, str] | None = None,
    world: Callable[[Mapping[str, str]], World] | None = None,
    engines: Engines | None = None,
) -> int:
    """Prints the trials and the result; the exit code. engines: by default JobSets of the deployment's runtime."""
    given = os.environ if environment is None else environment
    return guarded("tune", lambda: _run(options, (world or world_here)(given), engines))


def _run(options: Options, world: World, engines: Engines | None) -> int:
    import nightshift.trial.compute  # noqa: F401 - says what is not installed before anything is asked
    from nightshift.spec import load
    from nightshift.trial.tune import tune_text, tuner

    if options.rows > ROWS_MOST:
        raise Wrong(f"--rows is {options.rows:,}. A trial takes at most {ROWS_MOST:,}.")
    spec = load(options.file)
    try:
        seconds = options.budget.seconds_for(spec, world.prices)
        for each in options.also:
            each.on(spec)
    except ValueError as error:
        raise Wrong(str(error)) from None
    task = tuner.Task(spec, partition_of(spec, options.partition), options.rows, seconds, tuple(options.also))

    def told(number: int, trial: Any, space: Any, rate: float | None) -> None:
        print(tune_text.trial_line(number, trial, space, rate), file=sys.stderr if options.as_json else sys.stdout, flush=True)

    found = tuner.tune(task, world, told, engines)
    _tell(options, found)
    return exits.DONE if found.choice.point is not None else exits.FAILED


def _tell(options: Options, found: Result) -> None:
    from nightshift.trial.tune import tune_text

    if options.as_json:
        print(json.dumps(found.to_json(options.file)))
        return
    print("", *tune_text.plot(found.space, found.trials, found.choice), "", found.sentence, sep="\n")
    if advice := tune_text.too_short(found.trials):
        print(advice, file=sys.stderr)
    if patched := found.patch(options.file):
        print("", patched, sep="\n")
    for each in found.also:
        print("", each.sentence, sep="\n")
        if patched := found.patch_with(each, options.file):
            print("", "This patch opens a new run, because answers may change:", patched, sep="\n")
