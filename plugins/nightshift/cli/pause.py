"""The command `nightshift pause`, and what `nightshift resume` shares with it."""

from __future__ import annotations

import getpass
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nightshift import cli, exits
from nightshift.cli import trouble
from nightshift.cli.target import NAMES, target
from nightshift.fields.arguments import option
from nightshift.hooks.deployment import PATIENCE_S
from nightshift.store import StoreUnavailable

if TYPE_CHECKING:
    from nightshift.jobset.runtime import Runtime
    from nightshift.run.pauses import PauseRequest

DESCRIPTION: Final = (
    "Writes the request into the run's folder and applies it to the run's JobSets in the runtime that NIGHTSHIFT_RUNTIME "
    "names. Paused pods get SIGTERM and save every finished row. The run's deadline does not move."
)
EPILOG: Final = (
    "Exit codes: 0 done; 2 bad input, or there is nothing to do; 75 the request is written but not applied, or the store does "
    "not answer: run the same command again; 78 the store refuses, or there are no credentials."
)


@dataclass(frozen=True)
class Options:
    run: str = option(metavar="RUN", help=NAMES)
    by: str | None = option("--by", metavar="NAME", help="who asks for it (default: the user of this machine)")


def run(options: Options) -> int:
    return request("pause", options, paused=True)


def request(name: str, options: Options, *, paused: bool) -> int:
    """Writes and applies it; the exit code. name: of the command, for messages."""
    from nightshift.run.pauses import record

    try:
        found = target(options.run)
        asked = record(found.store, found.run, paused=paused, by=options.by or getpass.getuser())
    except (LookupError, ValueError, trouble.NoAccount, StoreUnavailable) as error:
        return trouble.tell(name, error)
    print(f"{found.run.prefix} is {asked}")
    return _apply(name, found.url, asked)


def _apply(command: str, url: str, asked: PauseRequest) -> int:
    from nightshift.jobset.fleet.pause import apply, tell

    try:
        names = apply(_runtime(), url, asked)
    except Exception as error:  # Connections raise what they like, Airflow's among them.
        why = cli.lacks(command, error) if isinstance(error, ModuleNotFoundError) else error
        print(
            f"The request is written, but not applied to the run's JobSets: {why}\nWhile the task infer waits, it applies "
            "the request within minutes. To apply it at once, trigger the DAG nightshift_pause with this run, or repeat the "
            "command where the cluster can be reached.",
            file=sys.stderr,
        )
        return exits.RESUME
    print(tell(names, asked))
    return exits.DONE


def _runtime() -> Runtime:
    """Raises ImportError without Airflow, whose connections lead to a cluster, and any exception of theirs."""
    from nightshift.hooks.runtime import runtime_for
    from nightshift.settings import Settings

    reached = runtime_for(Settings.from_environment())
    reached.api.patience_s = PATIENCE_S
    return reached.runtime
