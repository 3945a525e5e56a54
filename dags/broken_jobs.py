"""Shows job files that cannot be used as an import error of Airflow, one line for each mistake.

It makes no DAG. While every job file is good it does nothing; its neighbour batch_inference.py serves the good ones.
"""

from __future__ import annotations

from pathlib import Path

from nightshift.jobs import BrokenJobs, load_folder

broken = load_folder(Path(__file__).parent / "jobs").broken
if broken:
    raise BrokenJobs(broken)
