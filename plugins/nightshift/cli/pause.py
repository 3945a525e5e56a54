"""The words of `nightshift pause` and `nightshift resume`."""

from __future__ import annotations

import argparse
import getpass
import os
import sys
from typing import TYPE_CHECKING, Final

from nightshift.cli.values import Commands

if TYPE_CHECKING:
    from nightshift.jobset.runtime import Runtime
    from nightshift.run.pauses import Wish

DONE: Final = 0
NOT_APPLIED: Final = 1
BAD_INPUT: Final = 2


def add_to(commands: Commands) -> None:
    for name, does in (
        ("pause", "stop a run's workers and keep what is committed"),
        ("resume", "resume a paused run"),
    ):
        parser = commands.add_parser(
            name,
            help=f"{does} (docs/pausing.md)",
            description="Writes the request into the run's folder and applies it to the run's JobSets in the runtime that "
            "NIGHTSHIFT_RUNTIME names. Paused pods get SIGTERM and save every finished row. The run's deadline does not move.",
            epilog="Exit codes: 0 done; 1 the request is written but not applied, or the store does not answer; 2 bad input.",
        )
        parser.add_argument("url", metavar="RUN_URL", help="gs://BUCKET/JOB/PARTITION/RUN, as the task plan logs it")
        parser.add_argument("--by", metavar="NAME", help="who asks for it (default: the user of this machine)")
        parser.set_defaults(command=_run, paused=name == "pause")


def _run(options: argparse.Namespace) -> int:
    from nightshift.jobset.pausing import NotPausable, record
    from nightshift.run.names import split_run_url
    from nightshift.store import StoreUnavailable, open_store

    name = "pause" if options.paused else "resume"
    try:
        base, run = split_run_url(options.url)
        wish = record(open_store(base), run, paused=options.paused, by=options.by or getpass.getuser())
    except (NotPausable, ValueError) as error:
        print(f"nightshift {name}: {error}", file=sys.stderr)
        return BAD_INPUT
    except StoreUnavailable as error:
        print(f"nightshift {name}: {error}", file=sys.stderr)
        return NOT_APPLIED
    print(f"{run.prefix} is {wish}")
    return _apply(options.url.rstrip("/"), wish)


def _apply(url: str, wish: Wish) -> int:
    from nightshift.jobset.pausing import apply, tell

    try:
        names = apply(_runtime(), url, wish)
    except Exception as error:  # Connections raise what they like, Airflow's among them.
        print(
            f"The request is written, but not applied to the run's JobSets: {error}\nWhile the task infer waits, it applies "
            "the request within minutes. To apply it at once, trigger the DAG nightshift_pause with this run, or repeat the "
            "command where the cluster can be reached.",
            file=sys.stderr,
        )
        return NOT_APPLIED
    print(tell(names, wish))
    return DONE


def _runtime() -> Runtime:
    """Raises ImportError without Airflow, whose connections lead to a cluster, and any exception of theirs."""
    from nightshift.jobset.kubernetes.runtime import KubernetesRuntime
    from nightshift.jobset.local.client import LocalRuntime
    from nightshift.settings import Settings

    kind, _, folder = os.environ.get("NIGHTSHIFT_RUNTIME", "").partition(":")
    if kind == "local":
        return LocalRuntime(folder)
    settings = Settings.from_environment()
    from nightshift.operators.connections import AirflowConnections

    api = AirflowConnections(settings).cluster()
    if api is None:
        raise LookupError(f"NIGHTSHIFT_RUNTIME is {settings.runtime!r}, which names no cluster")
    return KubernetesRuntime(api, settings.namespace)
