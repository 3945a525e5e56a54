"""A run in a folder, ready for a real driver process, and that process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from nightshift.run import chunks, opening
from nightshift.run.names import RunRef
from nightshift.run.plan import Plan, save_plan
from nightshift.spec import JobSpec
from nightshift.store import open_store
from tests.builders import a_spec, bound, write_input
from tests.launch import launched

PLUGINS = Path(__file__).resolve().parents[3] / "plugins"
HURRIED = (
    "from nightshift.driver import attribution, backoff, main, sender\n"
    "backoff.BACKOFF_S = backoff.BACKOFF_MAX_S = sender.RETRY_AFTER_MAX_S = 0.01\n"
    "attribution.ALIKE_S = 0.5\n"
    "main.main()\n"
)
"""The driver's process but for its pauses between two tries, and for how long it waits if all rows are refused alike."""
TO_THE_END = "from nightshift.driver import heartbeats, main\nheartbeats.LAST_S = 60.0\nmain.main()\n"
"""The driver's process, which takes its time to say how it ended: a busy machine may need longer than it has in a pod."""
MEASURED = (
    "import json, os, pathlib, re, runpy\n"
    "def leave(code, leave=os._exit):\n"
    "    kilobytes = re.search(r'VmHWM:\\s+(\\d+) kB', pathlib.Path('/proc/self/status').read_text())[1]\n"
    "    print(json.dumps({'message': 'measured', 'peak_bytes': 1024 * int(kilobytes)}), flush=True)\n"
    "    leave(code)\n"
    "os._exit = leave\n"
    "runpy.run_module('nightshift.driver', run_name='__main__')\n"
)
"""The driver's process, which says last how much memory it had at most.

The kernel's count for a child that has ended (wait4) would not do: it has in it what the process was before this program.
"""


@dataclass(frozen=True)
class PreparedRun:
    """A frozen run of `texts` in a folder store at `url`."""

    url: str
    run: RunRef
    spec: JobSpec
    plan: Plan

    @property
    def folder(self) -> Path:
        """The run's own."""
        return Path(self.url.removeprefix("file://")) / self.run.prefix

    @property
    def work(self) -> Path:
        """Where its workers write."""
        return Path(self.url.removeprefix("file://")) / self.run.work(self.plan.uid).prefix

    def rows(self) -> dict[int, dict[str, Any]]:
        """All committed rows by ordinal. Fails on an ordinal that stands there twice."""
        found: dict[int, dict[str, Any]] = {}
        for path in sorted(self.work.glob("ledger/*.parquet")):
            table, _ = chunks.decode(path.read_bytes())
            for row in table.to_pylist():
                assert row["ordinal"] not in found
                found[row["ordinal"]] = row
        return found

    def partial_rows(self) -> list[int]:
        tables = [chunks.decode(path.read_bytes())[0] for path in sorted(self.work.glob("partials/*/*.parquet"))]
        return [] if not tables else sorted(pa.concat_tables(tables).column("ordinal").to_pylist())


def prepare(
    folder: Path,
    texts: list[str | None],
    *,
    chunk_rows: int = 8,
    workers: int = 1,
    per_file: int = 50,
    per_group: int = 20,
    url: str | None = None,
    **changes: Any,
) -> PreparedRun:
    """per_file, per_group: rows of an input file, and of a row group in it. url: of the store, by default the folder."""
    spec = a_spec(**changes)
    url = url or f"file://{folder}/bucket"
    store = open_store(url)
    run = opening.open_run(store, spec, "2026-11-20", opened_by="test")
    files = write_input(store, run, texts, per_file=per_file, per_group=per_group)
    plan = save_plan(store, run, bound(store, run, Plan(run.run_id, len(texts), chunk_rows, workers, files)))
    return PreparedRun(url, run, spec, plan)


class DriverProcess:
    """``python -m nightshift.driver`` on a run, as a pod would start it."""

    def __init__(
        self,
        prepared: PreparedRun,
        engine_url: str,
        index: int | str = 0,
        run_url: str | None = None,
        extra: dict[str, str] | None = None,
        *,
        hurried: bool = False,
        descriptors: tuple[int, int] | None = None,
        program: str | None = None,
    ) -> None:
        """hurried: it hardly waits before it tries again. descriptors: its soft and its hard limit of file descriptors.

        program: Python that is run instead of the driver's module.
        """
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(PLUGINS),
            "NIGHTSHIFT_RUN_URL": run_url or f"{prepared.url}/{prepared.run.prefix}",
            "JOB_COMPLETION_INDEX": str(index),
            "ENGINE_URL": engine_url,
            "POD_NAME": "pod",
            **(extra or {}),
        }
        if emulator := os.environ.get("STORAGE_EMULATOR_HOST"):
            environment["STORAGE_EMULATOR_HOST"] = emulator
        program = program or (HURRIED if hurried else None)
        command = [sys.executable, *(("-c", program) if program else ("-m", "nightshift.driver"))]
        if descriptors:
            command = launched(command, descriptors=descriptors)
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        self.log: list[dict[str, Any]] = []

    def wait_for(self, message: str) -> dict[str, Any]:
        """Reads the log up to a message."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.log.append(json.loads(line))
            if self.log[-1]["message"] == message:
                return self.log[-1]
        raise AssertionError(f"no {message!r} in {self.log}")

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def finish(self) -> int:
        """Waits for the end; the exit code."""
        assert self.process.stdout is not None
        self.log += [json.loads(line) for line in self.process.stdout]
        return self.process.wait()

    @property
    def peak_bytes(self) -> int:
        """Of memory that a `MEASURED` process had at most. Only after `finish`."""
        assert self.log[-1]["message"] == "measured"
        return int(self.log[-1]["peak_bytes"])

    def messages(self) -> list[str]:
        return [entry["message"] for entry in self.log]
