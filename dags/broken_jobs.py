"""Shows broken job files as an import error in Airflow, one line for each mistake.

Makes no DAG, and does nothing while every job file is good. Its neighbour batch_inference.py serves the good ones.
"""

from __future__ import annotations

import os
from pathlib import Path

from nightshift.operators.notify import mistakes
from nightshift.spec import load_all
from nightshift.spec.file_cache import Memory

DAGS = Path(__file__).parent

# Its neighbour has just read the same files: their content is cached.
memory = Memory.of(DAGS / "jobs")
jobs, broken = load_all(DAGS / "jobs", relative_to=DAGS.parent, memory=memory)
lines = [str(errors) for errors in broken.values()]
lines += [line for found in mistakes(jobs, DAGS.parent, os.environ.get("NIGHTSHIFT_NOTIFIERS", "")).values() for line in found]
lines += [f"{path.relative_to(DAGS.parent)}: {why}" for path, why in memory.noted.items() if path in jobs]
if lines:
    # Airflow would show a class of this file under the long name that it gives the module.
    raise ImportError("job files that cannot be used:\n" + "\n".join(lines))
