"""``python -m tests.integration.warehouse.peak seal|plan STORE RUN_PREFIX COUNT``: one task's work in its own process.

COUNT: how many objects the task must find. Prints how much memory the process held at most, in bytes.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from nightshift.run.names import RunRef
from nightshift.run.plan import ExportedSource, load_plan
from nightshift.run.seal import seal
from nightshift.store import open_store
from nightshift.warehouse.extract import build_plan
from tests.builders import a_fix, a_spec


def main(task: str, url: str, prefix: str, count: str) -> None:
    store, run, spec = open_store(url), RunRef.from_prefix(prefix), a_spec()
    if task == "seal":
        plan = load_plan(store, run)
        assert plan is not None
        assert len(seal(store, run, spec, plan).chunks) == int(count)
    else:
        plan = build_plan(store, run, spec, ExportedSource({"id": "INT64", "text": "STRING"}, ()), fix=a_fix(spec))
        assert len(plan.files) == int(count)
    # getrusage would count what the parent had at the fork; this begins again with the program.
    (kilobytes,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    print(int(kilobytes) * 1024, flush=True)
    # As the driver and the commands end: with Arrow's or the store's threads still there, Python's own end can abort.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
