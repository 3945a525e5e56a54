"""``python -m tests.integration.warehouse.peak TASK STORE RUN_PREFIX COUNT``: one task's work in its own process.

COUNT: how many objects, or rows, the task must find. Prints how much memory the process held at most, in bytes.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

from obstore.store import ObjectStore

from nightshift.run.inputs import InputReader
from nightshift.run.names import RunRef
from nightshift.run.opening import load_run
from nightshift.run.pins import UNPINNED
from nightshift.run.plan import ExportedSource, Plan, load_plan
from nightshift.run.redo import redo_rows
from nightshift.run.redo.corrected_rows import take_corrected
from nightshift.run.redo.redo import Redo
from nightshift.run.seal import close, keep_closing, seal
from nightshift.status.dead_letters import DeadLetters
from nightshift.status.explanation import explain
from nightshift.store import open_store
from nightshift.trial.rows import kept_rows
from nightshift.warehouse.extract import build_plan
from tests.builders import a_fix, a_spec

REDO = "00000000000000ed"


def planned(store: ObjectStore, run: RunRef) -> Plan:
    plan = load_plan(store, run)
    assert plan is not None
    return plan


def plan(store: ObjectStore, run: RunRef, count: int) -> None:
    spec = a_spec()
    found = build_plan(store, run, spec, ExportedSource({"id": "INT64", "text": "STRING"}, ()), fix=a_fix(spec), attempt=0)
    assert len(found.files) == count


def seal_it(store: ObjectStore, run: RunRef, count: int) -> None:
    assert len(seal(store, run, a_spec(), planned(store, run)).chunks) == count


def seal_carried(store: ObjectStore, run: RunRef, count: int) -> None:
    spec, _ = load_run(store, run)
    assert len(seal(store, run, spec, planned(store, run)).chunks) == count


def page(store: ObjectStore, run: RunRef, count: int) -> None:
    """As the API server shows a row, and as `publish` and `audit_failure` read the prompts of dead letters."""
    assert len(explain(store, run, ordinal=count - 1).sample.prompt.text) > 1000
    assert len(DeadLetters(store, run).page().rows) == 50


def redo(store: ObjectStore, run: RunRef, count: int) -> None:
    """The rows are copied, and then those of the query as it is now: the same."""
    spec, _ = load_run(store, run)
    closing = keep_closing(store, run, close(store, run, spec, planned(store, run), UNPINNED, None))
    assert closing.as_completed.left == count
    copied = RunRef(run.job, run.partition, REDO)
    redo_rows.copy_rows(store, copied, run, planned(store, run), closing)
    corrected = Redo.after(closing, corrected=True)
    take_corrected(store, RunRef(run.job, run.partition, REDO[::-1]), corrected, spec.source.key, {}, attempt=0)


def preview(store: ObjectStore, run: RunRef, count: int) -> None:
    """A file of other rows in place of a sample's."""
    spec, _ = load_run(store, run)
    assert kept_rows(store, spec, run.partition, 20, "") is None


def tune(store: ObjectStore, run: RunRef, count: int) -> None:
    """Rows from places spread over a run."""
    spec, _ = load_run(store, run)
    reader = InputReader(store, run, planned(store, run), (*spec.source.key, "text"))
    assert sum(len(reader.rows(range(start, start + 100))) for start in range(0, count, count // 32)) > 3_000


TASKS: dict[str, Callable[[ObjectStore, RunRef, int], None]] = {
    "idle": lambda *_: None,
    "page": page,
    "plan": plan,
    "preview": preview,
    "redo": redo,
    "seal": seal_it,
    "seal_carried": seal_carried,
    "tune": tune,
}


def main(task: str, url: str, prefix: str, count: str) -> None:
    TASKS[task](open_store(url), RunRef.from_prefix(prefix), int(count))
    # getrusage would count what the parent had at the fork; this begins again with the program.
    (kilobytes,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    print(int(kilobytes) * 1024, flush=True)
    # As the driver and the commands end: with Arrow's or the store's threads still there, Python's own end can abort.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
