"""A real Airflow triggerer with its own database and triggers that tasks wait for. No scheduler: nothing resumes them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from benchmarks.processes import cpu_s, tree
from benchmarks.report import ROOT

DAG: Final = "waiting_jobsets"
CONNECTION: Final = "cluster"
START_S: Final = 180.0


class Triggerer:
    """kubeconfig: what the connection `CONNECTION` uses. tasks: how many may wait."""

    def __init__(self, folder: Path, kubeconfig: Path, tasks: int) -> None:
        folder.mkdir()
        dags = folder / "dags"
        dags.mkdir()
        (dags / f"{DAG}.py").write_text(
            "from airflow.sdk import DAG\n"
            "from airflow.providers.standard.operators.empty import EmptyOperator\n"
            f"with DAG({DAG!r}, schedule=None):\n"
            f"    for number in range({tasks}):\n"
            "        EmptyOperator(task_id=f'wait-{number}')\n"
        )
        connection = {"conn_type": "kubernetes", "extra": {"kube_config_path": str(kubeconfig)}}
        self._environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'plugins'}:{ROOT}",
            "AIRFLOW_HOME": str(folder),
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__HOSTNAME_CALLABLE": "socket.gethostname",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{folder}/airflow.db?timeout=60",
            f"AIRFLOW_CONN_{CONNECTION.upper()}": json.dumps(connection),
        }
        self.logs = folder / "logs"
        self._log = folder / "triggerer.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Starts it with its database and no triggers, and returns once it has settled."""
        for words in (("db", "migrate"), ("dags", "reserialize"), ("dags", "trigger", DAG)):
            self._run("airflow", *words)
        with self._log.open("wb") as log:
            command = [sys.executable, "-m", "airflow", "triggerer", "--skip-serve-logs"]
            self._process = subprocess.Popen(command, env=self._environment, cwd=ROOT, stdout=log, stderr=log)
        end = time.monotonic() + START_S
        while self.runner() is None:
            if self._process.poll() is not None or time.monotonic() > end:
                self.__exit__(None, None, None)
                raise RuntimeError(f"the triggerer does not start: {self._log.read_text()[-2000:]}")
            time.sleep(0.5)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._process is not None
        for pid in tree(self._process.pid):
            subprocess.run(["kill", "-9", str(pid)], check=False)
        self._process.wait()

    def defer(self, triggers: Sequence[tuple[str, dict[str, Any]]]) -> None:
        """Makes one task of the DAG wait for each (class path, arguments)."""
        self._run("benchmarks.deferred", DAG, text=json.dumps(triggers))

    def runner(self) -> int | None:
        """The process whose event loop runs the triggers: the child of the one that talks to the database."""
        assert self._process is not None
        return next((pid for pid in tree(self._process.pid) if pid != self._process.pid), None)

    def memory_mib(self) -> float:
        """Proportional set size of the runner."""
        lines = Path(f"/proc/{self.runner()}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024

    def cpu_s(self) -> float:
        """Of the runner."""
        runner = self.runner()
        assert runner is not None, "the triggerer has ended"
        return cpu_s(runner)

    def sockets(self) -> int:
        """Of the runner."""
        found = 0
        for entry in Path(f"/proc/{self.runner()}/fd").iterdir():
            try:
                found += str(entry.readlink()).startswith("socket:")
            except FileNotFoundError:
                continue
        return found

    def _run(self, module: str, *words: str, text: str | None = None) -> None:
        command = [sys.executable, "-m", module, *words]
        done = subprocess.run(command, env=self._environment, cwd=ROOT, input=text, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stdout[-1000:]}{done.stderr[-3000:]}")
