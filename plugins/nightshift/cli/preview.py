"""The command `nightshift preview`."""

from __future__ import annotations

import getpass
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nightshift import exits
from nightshift.cli.engine_work import world_here
from nightshift.cli.given import Wrong, partition_of
from nightshift.cli.trouble import guarded
from nightshift.fields.arguments import flag, option, positive

if TYPE_CHECKING:
    from nightshift.trial.preview.previews import Question
    from nightshift.trial.world import World

DESCRIPTION: Final = (
    "Tries a job on some rows of its query: shows each prompt, answer, finish reason and tokens, the rows that would be dead "
    "letters, and what the whole night would take. Nothing is opened or published. The engine is the one at --engine; "
    "without it, one like the night's is started in the runtime that NIGHTSHIFT_RUNTIME names, and stays for ten minutes after "
    "its last question. The rows are kept: the next preview of the same query reads no table."
)
EPILOG: Final = (
    "Exit codes: 0 all rows were answered; 1 there are dead letters; 2 bad input; 75 the store, the warehouse or the engine "
    "does not answer; 78 the engine does not start or serves another model, or the warehouse refuses."
)
ROWS: Final = 20
ROWS_MOST: Final = 1_000


@dataclass(frozen=True)
class Options:
    file: Path = option(type=Path, metavar="JOB", help="the job's YAML file")
    rows: int = option("--rows", type=positive, default=ROWS, metavar="N", help="how many rows (default: %(default)s)")
    partition: str | None = option(
        "--partition", metavar="DATE", help="the day, or the start of a period (default: the last one that is over)"
    )
    against: Path | None = option(
        "--against", type=Path, metavar="OTHER", help="another YAML file: its prompts and answers beside the job's, with a diff"
    )
    engine: str | None = option("--engine", metavar="URL", help="a vLLM server that serves the job's model: http://HOST:PORT")
    as_json: bool = flag("--json", "one JSON object")


def run(
    options: Options,
    environment: Mapping[str, str] | None = None,
    world: Callable[[Mapping[str, str]], World] | None = None,
) -> int:
    """Prints the preview; the exit code."""
    given = os.environ if environment is None else environment
    return guarded("preview", lambda: _run(options, given, world or world_here))


def _run(options: Options, environment: Mapping[str, str], world: Callable[[Mapping[str, str]], World]) -> int:
    import nightshift.trial.compute  # noqa: F401 - says what is not installed before anything is asked
    from nightshift.trial.preview.preview_text import lines
    from nightshift.trial.preview.previews import preview

    found = preview(_question(options), world(environment))
    if options.as_json:
        print(json.dumps(found.to_json()))
    else:
        for line in lines(found, colour=sys.stdout.isatty() and not environment.get("NO_COLOR")):
            print(line)
    return exits.FAILED if any(variant.dead for variant in found.variants) else exits.DONE


def _question(options: Options) -> Question:
    from nightshift.spec import load
    from nightshift.trial.preview.previews import Question

    if options.rows > ROWS_MOST:
        raise Wrong(f"--rows is {options.rows:,}. A preview takes at most {ROWS_MOST:,}; run the night for more.")
    files = tuple((str(path), load(path)) for path in (options.file, options.against) if path is not None)
    partition = partition_of(files[0][1], options.partition)
    if len(files) > 1 and files[1][1].every != files[0][1].every:
        raise Wrong(f"{files[1][0]}: its periods are not those of {files[0][0]} (every). Compare jobs of the same periods.")
    return Question(files, partition, options.rows, getpass.getuser(), options.engine)
