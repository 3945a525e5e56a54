"""The deployment that a smoke test is about: what the variables NIGHTSHIFT_* name, with its tables in the test's own dataset.

Airflow runs it in processes of their own, from the package as it would be installed, in a folder that is removed at the end.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from local.environments import ROOT, environment_dir
from local.package import installed
from local.smoke.place import Place

CONNECTION: Final = "AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT"
TAIL: Final = 40
"""Lines that are shown of a command that failed."""


class CommandFailed(Exception):
    """A command ended with another code than 0, or took too long; the message has the end of its output."""


@dataclass(frozen=True)
class Deployment:
    """environment: of every process. home: Airflow's folder; it has the DAGs and no job."""

    environment: Mapping[str, str]
    home: Path

    @property
    def bucket(self) -> str:
        return self.environment["NIGHTSHIFT_BUCKET"]

    @property
    def runtime(self) -> str:
        """Where JobSets run; '' if unset."""
        return self.environment.get("NIGHTSHIFT_RUNTIME", "")

    def job_file(self, name: str) -> Path:
        return self.home / "dags" / "jobs" / f"{name}.yaml"

    def add_job(self, job: Mapping[str, Any]) -> None:
        self.job_file(job["job"]).write_text(yaml.safe_dump(dict(job)))

    def run(self, program: str, *arguments: str, limit_s: float, codes: tuple[int, ...] = (0,)) -> str:
        """What a program of Airflow's environment prints. Raises CommandFailed; its processes are gone then."""
        command = [str(environment_dir("airflow") / "bin" / program), *arguments]
        said = self.home / "output.log"
        with said.open("w") as file:
            process = subprocess.Popen(
                command,
                env=dict(self.environment),
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                start_new_session=True,
            )
            try:
                output, _ = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                ended = f"did not end within {limit_s:.0f} s"
            else:
                ended = "" if process.returncode in codes else f"ended with exit code {process.returncode}"
            finally:
                _end(process)
        if ended:
            tail = "\n".join(said.read_text().splitlines()[-TAIL:])
            raise CommandFailed(f"{program} {' '.join(arguments)} {ended}:\n{tail}")
        return output


@contextmanager
def deployed(place: Place, cluster: str) -> Iterator[Deployment]:
    """cluster: ``projects/PROJECT/locations/LOCATION/clusters/CLUSTER`` on GKE; '' for NIGHTSHIFT_RUNTIME's."""
    with tempfile.TemporaryDirectory(prefix="nightshift-smoke-") as folder:
        home = Path(folder)
        (home / "dags" / "jobs").mkdir(parents=True)
        for file in (ROOT / "dags").glob("*.py"):
            shutil.copy(file, home / "dags")
        yield Deployment(_environment(place, home, cluster), home)


def _environment(place: Place, home: Path, cluster: str) -> dict[str, str]:
    account = {"is_anonymous": True} if "BIGQUERY_EMULATOR_HOST" in os.environ else {}
    connection = {"conn_type": "google_cloud_platform", "extra": {**account, "project": place.bigquery.project}}
    environment = {
        CONNECTION: json.dumps(connection),
        "NIGHTSHIFT_BUCKET": place.name,
        **os.environ,
        "NIGHTSHIFT_PROJECT": place.bigquery.project,
        "NIGHTSHIFT_LOCATION": place.location,
        "NIGHTSHIFT_DATASET": place.name,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
        # The user's own Airflow must not see the night of a smoke test.
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "PYTHONPATH": str(installed()),
    }
    return environment | ({"NIGHTSHIFT_RUNTIME": f"gke:{cluster}"} if cluster else {})


def _end(process: subprocess.Popen[str]) -> None:
    """Kills it with all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
