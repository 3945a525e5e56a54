"""The command `nightshift run`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from nightshift import exits
from nightshift.cli.airflow_rest import AirflowApi, Refused, Unreachable
from nightshift.cli.follow import Follower
from nightshift.cli.given import Wrong, partition_of
from nightshift.cli.trouble import EMULATORS, guarded
from nightshift.fields.arguments import flag, option
from nightshift.fields.mistakes import nearest
from nightshift.run.models.hub_cache import absent_at
from nightshift.spec import fingerprint, load

DESCRIPTION: Final = (
    "Triggers a job's DAG in Airflow, for one partition; with --wait, follows it to its end and says what was published, or "
    "which task failed and why. After a new or edited file it waits until Airflow has read it. Airflow is found by "
    "NIGHTSHIFT_AIRFLOW_URL, with NIGHTSHIFT_AIRFLOW_TOKEN, USER:PASSWORD@ in the address, or this machine's Google account "
    "(Cloud Composer); the variables of the local stack name it already."
)
EPILOG: Final = (
    "Exit codes: 0 it is triggered, with --wait: it has succeeded (without rows too, and warns); 1 it has failed; 2 bad "
    "input: a file with mistakes, or one that Airflow does not have, no such DAG, a conf that Airflow refuses; 75 Airflow does "
    "not answer; 78 it is not known where Airflow is, or it refuses this account. Ctrl-C (130) ends the waiting, not the run."
)
READ_S: Final = 180.0
"""How long Airflow may take to read a new file: half a minute on the local stack; minutes where files are copied first."""
POLL_S: Final = 1.0
ERRORS_EVERY_S: Final = 5.0
DAGS_MOST: Final = 1000


@dataclass(frozen=True)
class Options:
    job: str = option(metavar="JOB", help="the job's name, or its YAML file in Airflow's folder of jobs")
    partition: str | None = option(
        "--partition", metavar="DATE", help="the day, or the start of a period (default: the last one that is over)"
    )
    wait: bool = flag("--wait", "follow it to its end")
    fresh: bool = flag("--fresh", "compute all rows again, even if the day is published")
    redo: str | None = option(
        "--redo",
        choices=("dead_letters", "corrected"),
        help="compute only the rows without an answer: once more, or as the source and the job have them now",
    )
    republish: str | None = option("--republish", metavar="RUN", help="show this finished run of the day again")


def run(options: Options, environment: Mapping[str, str] | None = None, clock: Callable[[float], None] = time.sleep) -> int:
    """Triggers the DAG, and follows it; the exit code. clock: sleeps."""
    given = os.environ if environment is None else environment
    try:
        return guarded("run", lambda: _Command(options, AirflowApi.from_environment(given), given, clock).run())
    except Refused as error:
        print(f"nightshift run: {error}", file=sys.stderr)
        return exits.BAD_INPUT
    except Unreachable as error:
        stack = " The local stack may be down: make status." if given.get(EMULATORS[0]) else ""
        print(f"nightshift run: {error}.{stack}", file=sys.stderr)
        return exits.RESUME


class _Command:
    """One run of the command."""

    def __init__(
        self, options: Options, api: AirflowApi, environment: Mapping[str, str], sleep: Callable[[float], None]
    ) -> None:
        self._options, self._api, self._environment, self._sleep = options, api, environment, sleep
        path = Path(options.job)
        self._file = path if path.suffix in (".yaml", ".yml") or path.is_file() else None
        self._spec = spec = load(self._file) if self._file else None
        self._name = spec.job if spec else options.job
        asked = options.partition
        self._partition = partition_of(spec, asked) if spec and asked is not None else asked

    def run(self) -> int:
        conf = self._conf()
        spec = self._spec
        if spec and (missing := absent_at(spec.model.uri, spec.model.revision, self._environment)):
            raise Wrong(str(missing))
        dag = self._find()
        if dag.get("is_paused"):
            raise Wrong(
                f"The DAG {self._name} is paused in Airflow, so a run of it would wait for ever. Unpause it there: "
                f"{self._api.page('dags', self._name)}"
            )
        run_id = f"nightshift__{self._partition or 'last'}__{datetime.now(UTC):%Y%m%dT%H%M%S%f}"
        self._api.post(f"/dags/{self._name}/dagRuns", {"dag_run_id": run_id, "logical_date": None, "conf": conf})
        page = self._api.page("dags", self._name, "runs", run_id)
        print(f"started {self._name} for {self._partition or 'the last day or period'}: {page}", flush=True)
        if not self._options.wait:
            return exits.DONE
        try:
            follower = Follower(self._api, self._name, run_id, self._environment, self._sleep, self._partition)
            return follower.to_the_end()
        except KeyboardInterrupt:
            print(f"No longer waiting; the run goes on: {page}", file=sys.stderr)
            return exits.INTERRUPTED

    def _conf(self) -> dict[str, Any]:
        options = self._options
        asked = {"fresh": options.fresh, "redo": options.redo, "republish": options.republish}
        set_ = [f"--{name}" for name, value in asked.items() if value]
        if len(set_) > 1:
            raise Wrong(f"{' and '.join(set_)} contradict each other. Give one of them.")
        conf = {"partition": options.partition, **asked}
        return {name: value for name, value in conf.items() if value}

    def _find(self) -> dict[str, Any]:
        """The DAG, as it is made from the file, if one is given; waits for that of a new or an edited file.

        Raises Wrong, with Airflow's import errors or what may have been meant.
        """
        waited, said, asked = 0.0, False, 0.0
        while True:
            dag: dict[str, Any] | None = None
            try:
                dag = self._api.get(f"/dags/{self._name}/details")
            except Refused as error:
                if error.status != 404:
                    raise
            if self._file is None:
                if dag is None:
                    raise Wrong(self._unknown())
                return dag
            if dag is not None and self._is_of_the_file(dag):
                return dag
            if waited >= asked:
                asked = waited + ERRORS_EVERY_S
                self._belongs(dag)
                if problem := self._import_error(self._file.name):
                    raise Wrong(f"Airflow cannot read {self._file}: {problem}")
            if waited >= READ_S:
                has = f"no DAG {self._name}" if dag is None else f"a DAG {self._name} that says something else"
                raise Wrong(f"Airflow has not read {self._file} within {READ_S:.0f} s: it has {has}. {self._instead()}")
            if not said:
                said = True
                print(f"waiting until Airflow has read {self._file} (about half a minute after a change) ...", flush=True)
            self._sleep(POLL_S)
            waited += POLL_S

    def _is_of_the_file(self, dag: Mapping[str, Any]) -> bool:
        """Whether a DAG is what the file says. One of a release whose pages do not tell is taken by its name."""
        told = fingerprint.said_by(dag.get("doc_md"))
        return told is None or self._spec is None or told[1] == fingerprint.of(self._spec)

    def _belongs(self, dag: Mapping[str, Any] | None) -> None:
        """Raises Wrong for a file that Airflow will never read: its folder of jobs is on this machine, and elsewhere."""
        assert self._file is not None, "the caller has one"
        made = [dag] if dag else self._api.get("/dags", tags="nightshift", limit=DAGS_MOST)["dags"]
        folders = {Path(str(each["fileloc"])).parent / "jobs" for each in made if each.get("fileloc")}
        there = sorted(folder for folder in folders if folder.is_dir())
        here = self._file.resolve()
        if not there or any(here.parent == folder.resolve() for folder in there):
            return
        told = fingerprint.said_by(dag.get("doc_md")) if dag else None
        of = f": its job {self._name} is {there[0] / told[0]}, and that says something else" if told else ""
        raise Wrong(f"{self._file} is not in Airflow's folder of jobs, {there[0]}{of}. {self._instead()}")

    def _instead(self) -> str:
        return (
            f"Airflow runs only what is in its folder of jobs: move the file there, or run what is there by its name: "
            f"nightshift run {self._name}. To try a file: nightshift preview {self._file}."
        )

    def _unknown(self) -> str:
        dags = self._api.get("/dags", tags="nightshift", limit=DAGS_MOST)["dags"]
        names = sorted(str(each["dag_id"]) for each in dags)
        near = nearest(self._name, names)
        meant = f" Did you mean {near}?" if near else ""
        there = f" It has {', '.join(names[:20])}{' and others' if len(names) > 20 else ''}." if names and not near else ""
        new = "For a file that is new, name the file: nightshift run dags/jobs/NAME.yaml."
        return f"Airflow has no DAG {self._name}.{meant}{there} {new}"

    def _import_error(self, name: str) -> str | None:
        """What Airflow says of the job's file, if it cannot use it."""
        for each in self._api.get("/importErrors", limit=100)["import_errors"]:
            for line in str(each.get("stack_trace", "")).splitlines():
                if name in line and ": " in line:
                    return line.strip()
        return None
