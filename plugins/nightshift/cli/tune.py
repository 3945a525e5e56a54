"""The command `nightshift tune`."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nightshift import exits
from nightshift.cli.engine_work import guarded, surroundings
from nightshift.cli.given import Wrong, partition_of
from nightshift.fields.arguments import flag, option, positive
from nightshift.fields.values import DURATION_PATTERN, duration_seconds

if TYPE_CHECKING:
    from nightshift.preview import session as previews
    from nightshift.spec import JobSpec
    from nightshift.tuner.engines import Engines
    from nightshift.tuner.session import Result

DESCRIPTION: Final = (
    "Finds the settings under which the job's engine answers the most rows a second, and prints a patch of the job file. For "
    "each trial it starts an engine in the runtime that NIGHTSHIFT_RUNTIME names, and sends it real rows of the job by the "
    "driver's own request loop; the job's own settings come first. Only settings that change no answer are tried, and none is "
    "recommended that did not hold the longest rows. Trials are kept in the bucket: run it again after a crash, or with a "
    "larger budget, and it goes on."
)
EPILOG: Final = (
    "Exit codes: 0 there is a result, also that the job's own settings are best; 1 no settings held the longest rows, or too "
    "many rows are dead letters; 2 bad input; 75 the store, the warehouse or the runtime does not answer, or another tune of "
    "the job runs; 78 the engine serves another model, or the warehouse refuses."
)
ROWS: Final = 1_000
ROWS_MOST: Final = 100_000
BUDGET: Final = "1h"


@dataclass(frozen=True)
class Budget:
    """seconds of trials, or an amount of money in the currency of the prices."""

    seconds: float | None
    money: float | None = None


def budget(text: str) -> Budget:
    if re.fullmatch(DURATION_PATTERN, text) and duration_seconds(text) > 0:
        return Budget(float(duration_seconds(text)))
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,4})?", text) and float(text) > 0:
        return Budget(None, float(text))
    raise argparse.ArgumentTypeError(f"{text!r} is neither a time, for example 30m, nor an amount of money, for example 4.50")


@dataclass(frozen=True)
class Options:
    file: Path = option(type=Path, metavar="JOB", help="the job's YAML file")
    budget: Budget = option(
        "--budget",
        type=budget,
        default=budget(BUDGET),
        metavar="TIME",
        help=f"how long all trials may take, or what they may cost by the list of prices: 30m, 4.50 (default: {BUDGET})",
    )
    rows: int = option("--rows", type=positive, default=ROWS, metavar="N", help="rows of a trial (default: %(default)s)")
    partition: str | None = option(
        "--partition", metavar="DATE", help="the day, or the start of a period (default: the last one that is over)"
    )
    as_json: bool = flag("--json", "one JSON object at the end (docs/use/tune.md)")


def run(
    options: Options,
    environment: Mapping[str, str] | None = None,
    world: Callable[[Mapping[str, str]], previews.Surroundings] | None = None,
    engines: Callable[[previews.Surroundings], Engines] | None = None,
) -> int:
    """Prints the trials and the result; the exit code. engines: by default JobSets of the deployment's runtime."""
    given = os.environ if environment is None else environment
    return guarded("tune", lambda: _run(options, (world or surroundings)(given), engines or _jobsets))


def _run(options: Options, world: previews.Surroundings, engines: Callable[[previews.Surroundings], Engines]) -> int:
    import nightshift.preview.compute  # noqa: F401 - says what is not installed before anything is asked
    from nightshift.spec import load
    from nightshift.tuner import session, text
    from nightshift.tuner.trials import Elsewhere, NotReadable

    if options.rows > ROWS_MOST:
        raise Wrong(f"--rows is {options.rows:,}. A trial takes at most {ROWS_MOST:,}.")
    spec = load(options.file)
    task = session.Task(spec, partition_of(spec, options.partition), options.rows, _seconds(options.budget, spec, world))

    def told(number: int, trial: Any, space: Any, rate: float | None) -> None:
        print(text.trial_line(number, trial, space, rate), file=sys.stderr if options.as_json else sys.stdout, flush=True)

    beside = session.Surroundings(
        world.store, world.settings.project, world.warehouse, engines(world), world.environment, world.say, told
    )
    try:
        found = session.tune(task, beside)
    except session.UnfitRows as error:
        return _failed(error, exits.FAILED)
    except Elsewhere as error:
        return _failed(error, exits.RESUME)
    except NotReadable as error:
        return _failed(error, exits.BAD_INPUT)
    _tell(options, found)
    return exits.DONE if found.choice.point is not None else exits.FAILED


def _jobsets(world: previews.Surroundings) -> Engines:
    from nightshift.tuner.engines import JobSetEngines

    return JobSetEngines(world.store, world.settings, world.runtime, lambda sentence: None)


def _seconds(given: Budget, spec: JobSpec, world: previews.Surroundings) -> float:
    """Raises Wrong for money where no price is known."""
    if given.seconds is not None or given.money is None:
        return given.seconds or 0.0
    worker = spec.compute.worker()
    price = world.prices.machines.get(worker.price_name)
    if not price:
        raise Wrong(f"--budget is an amount, and no price of {worker.price_name} is known. Write a time, for example 30m.")
    return given.money / (price * worker.machines) * 3600


def _failed(error: Exception, code: int) -> int:
    print(f"nightshift tune: {error}", file=sys.stderr)
    return code


def _tell(options: Options, found: Result) -> None:
    from nightshift.tuner import text

    said = text.sentence(found.choice, found.space, found.trials)
    patched = _patch(options.file, found.changes)
    if options.as_json:
        choice, point = found.choice, found.choice.point
        body = {
            "default": found.space.default.to_json(),
            "chosen": point and point.to_json(),
            "ratio": choice.ratio,
            "low": choice.low,
            "high": choice.high,
            "better": choice.better,
            "changes": found.changes,
            "patch": patched,
            "sentence": said,
            "folder": found.folder,
            "trials": [trial.to_json() for trial in found.trials],
        }
        print(json.dumps(body, ensure_ascii=False))
        return
    print("", *text.plot(found.space, found.trials, found.choice), "", said, sep="\n")
    if advice := text.too_short(found.trials):
        print(advice, file=sys.stderr)
    if patched:
        print("", patched, sep="\n")


def _patch(file: Path, changes: Mapping[str, Any]) -> str:
    """As `patch` takes it; the changes themselves if the file cannot be changed line by line."""
    import yaml

    from nightshift.tuner.patch import changed, patch

    if not changes:
        return ""
    text = file.read_text(encoding="utf-8-sig")
    try:
        return patch(text, changed(text, changes), str(file))
    except (ValueError, yaml.YAMLError):
        return f"Write into {file}:\n{yaml.safe_dump(dict(changes), sort_keys=False)}".rstrip()
