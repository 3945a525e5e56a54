"""``python -m local.demo [--partition DAY] [--fresh] [--runtime kubernetes] [--airflow composer | --at URL]`` runs a night;
``python -m local.demo --search QUESTION`` searches what it published.

Runs in an environment of Airflow, which has Google's clients. Exit codes: 0 success, 1 the night failed, 2 wrong arguments.
"""

from __future__ import annotations

import argparse
import datetime
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import requests
from google.api_core.exceptions import NotFound
from google.auth.credentials import AnonymousCredentials
from google.cloud import bigquery

from local import hub
from local.cluster.cluster import STATE_VARIABLE, Cluster, ClusterError
from local.cluster.deployment import deploy
from local.cluster.layout import DEFAULT_STATE as DEFAULT_CLUSTER
from local.cluster.processes import StartError
from local.demo import catalog, summary
from local.demo.airflow_api import AirflowApi
from local.demo.clock import Clock
from local.demo.given import Given
from local.demo.night import NightFailed, spend
from local.demo.search import embed, nearest
from local.environments import ROOT, environment_dir
from local.stack import Stack, StackDown, StackError
from local.stack.airflow import ENVIRONMENTS as AIRFLOWS
from local.stack.stack import DEFAULT_STATE
from nightshift.spec import JobSpec, load
from nightshift.store import open_store

JOB_FILE = ROOT / "dags" / "jobs" / "package-embeddings.yaml"
ENVIRONMENTS = ("airflow", "driver", "emulators", "server")
RUNTIMES = ("local", "kubernetes")
QUESTIONS = ("HTTP client", "parse yaml", "work with dates and time zones")


Installation = AbstractContextManager[tuple[Stack | Given, Callable[[], object]]]
"""What a night runs in, and a function that raises StackDown or ClusterError once it is gone."""


def night(partition: str, fresh: bool, installation: Callable[[Callable[[str], None]], Installation]) -> int:
    """Runs the whole demo; returns its exit code. installation: `_stack` or `_given`, but for their last argument."""
    clock, began = Clock(), datetime.datetime.now(datetime.UTC)
    spec = load(JOB_FILE)
    hub.ensure()
    with installation(clock.say) as (stack, still_up):
        client = _client(stack)
        rows = catalog.load(client, partition, [environment_dir(name) for name in ENVIRONMENTS])
        clock.say(
            f"{catalog.TABLE} has {rows} rows for {partition}: the packages installed in {len(ENVIRONMENTS)} environments"
        )
        airflow = stack.airflow()
        api = AirflowApi(airflow["url"], airflow["user"], airflow["password"])
        store = open_store(f"gs://{stack.environment()['NIGHTSHIFT_BUCKET']}")
        try:
            api.wait_for_dag(spec.job, still_up=still_up)
            spent = spend(api, store, spec.job, partition, fresh=fresh, since=began, say=clock.say, still_up=still_up)
        except (StackDown, ClusterError) as error:
            clock.say(f"stopped from outside: {error}; run the same command again to continue")
            return 1
        except (NightFailed, TimeoutError, requests.RequestException) as error:
            clock.say(str(error))
            return 1
        clock.say("the night is over")
        told = summary.tell(spent, spec, client, store, print)
        clock.say("three questions to the published vectors")
        _answer(client, spec, QUESTIONS)
    if isinstance(stack, Stack):
        print("", *summary.lead_on(spec, told, stack), sep="\n")
    return 0 if told.whole else 1


@contextmanager
def _given(address: str, _say: Callable[[str], None]) -> Iterator[tuple[Given, Callable[[], object]]]:
    """What runs at an address of Airflow's. It may go away at any time, which `_stack` would notice."""
    yield Given(address), lambda: None


@contextmanager
def _stack(
    state: Path, runtime: str, environment: str, say: Callable[[str], None]
) -> Iterator[tuple[Stack, Callable[[], object]]]:
    """A stack that is tied to this process, unless one was up before; likewise the cluster, if one runs the JobSets.

    Also yields a function that raises StackDown or ClusterError once either is gone.
    """
    if runtime == "local":
        with Stack(state, airflow_environment=environment, say=say) as stack:
            yield stack, stack.document
        return
    with Cluster(Path(os.environ.get(STATE_VARIABLE) or DEFAULT_CLUSTER), kwok=0, say=say) as cluster:
        state.mkdir(parents=True, exist_ok=True)
        jobsets = deploy(cluster, state, say)
        with Stack(state, airflow_environment=environment, kubernetes=jobsets, say=say) as stack:
            yield stack, lambda: (stack.document(), cluster.document())


def search(question: str, state: Path) -> int:
    """Answers one question from what is published; returns the exit code."""
    with Stack(state, parts=("storage", "bigquery")) as stack:
        try:
            _answer(_client(stack), load(JOB_FILE), [question])
        except NotFound:
            print("Nothing is published yet: make demo", file=sys.stderr)
            return 1
    return 0


def _client(stack: Stack | Given) -> bigquery.Client:
    # Google's clients and obstore learn from the environment where the emulators are.
    os.environ.update(stack.environment())
    return bigquery.Client(project=os.environ["NIGHTSHIFT_PROJECT"], credentials=AnonymousCredentials())  # type: ignore[no-untyped-call]


def _answer(client: bigquery.Client, spec: JobSpec, questions: Sequence[str]) -> None:
    for question, vector in zip(questions, embed(list(questions), spec), strict=True):
        print(f"  {question}")
        for hit in nearest(client, spec, vector):
            print(f"      {hit.similarity:.3f}  {hit.name} {hit.version}")


def _day(text: str) -> str:
    try:
        return datetime.date.fromisoformat(text).isoformat()
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a date; write for example 2026-11-19") from None


def _address(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme in ("http", "https") and parts.hostname and parts.username and parts.password is not None:
        return text
    raise argparse.ArgumentTypeError(
        "this is not an address with user and password; write for example http://admin:secret@host:8080"
    )


def main(arguments: Sequence[str]) -> int:
    yesterday = (datetime.datetime.now(datetime.UTC).date() - datetime.timedelta(days=1)).isoformat()
    parser = argparse.ArgumentParser(prog="python -m local.demo", description=__doc__)
    parser.add_argument("--partition", type=_day, default=yesterday, help="the day to compute (default: yesterday)")
    parser.add_argument("--fresh", action="store_true", help="compute the day again even if it exists")
    parser.add_argument("--runtime", choices=RUNTIMES, default=RUNTIMES[0], help="what runs the JobSet (default: %(default)s)")
    parser.add_argument("--airflow", choices=AIRFLOWS, default=AIRFLOWS[0], help="its environment (default: %(default)s)")
    given = "use the Airflow at this address, with user and password in it, and the emulators that the environment names"
    parser.add_argument("--at", metavar="URL", type=_address, help=given)
    parser.add_argument("--search", metavar="QUESTION", help="search the published vectors instead")
    parser.add_argument("--state", type=Path, help="the stack's state folder (default: .state, or .state-kubernetes-composer)")
    options = parser.parse_args(arguments)
    chosen = [(options.runtime, RUNTIMES), (options.airflow, AIRFLOWS)]
    suffix = "".join(f"-{choice}" for choice, choices in chosen if choice != choices[0])
    state = options.state or DEFAULT_STATE.with_name(f"{DEFAULT_STATE.name}{suffix}")
    if options.search is not None and not options.search.strip():
        parser.error('say what to look for: make search Q="parse yaml"')
    # If the terminal closes, or on `kill`, end the demo as on Ctrl-C: the stack shuts down in order.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        if options.search is not None:
            return search(options.search, state)
        stack = partial(_stack, state, options.runtime, options.airflow)
        return night(options.partition, options.fresh, partial(_given, options.at) if options.at else stack)
    except (StackError, ClusterError, StartError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; run the same command again to continue", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
