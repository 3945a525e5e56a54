"""Shows job files that cannot be used as an import error of Airflow, one line for each mistake.

It makes no DAG. While every job file is good it does nothing; its neighbour batch_inference.py serves the good ones.
"""

from __future__ import annotations

from pathlib import Path

from nightshift.spec import load_all

DAGS = Path(__file__).parent

broken = load_all(DAGS / "jobs", relative_to=DAGS.parent)[1]
if broken:
    # A class of this file would be shown under the long name that Airflow gives the module.
    raise ImportError("job files that cannot be used:\n" + "\n".join(str(errors) for errors in broken.values()))
