"""A folder of job files and the DAG files that read them: what P17 and P18 have in common."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from benchmarks.report import ROOT

DAG_FILES: Final = ("batch_inference.py", "broken_jobs.py")


def deployment(folder: Path, size: int, *, stem: str = "job") -> Path:
    """The repository's job file under `size` names, each with its own table. stem: of the files; by default as their jobs."""
    (folder / "jobs").mkdir(parents=True)
    for name in DAG_FILES:
        shutil.copy(ROOT / "dags" / name, folder)
    text = (ROOT / "dags" / "jobs" / "package-embeddings.yaml").read_text()
    for number in range(size):
        named = text.replace("job: package-embeddings", f"job: {job_name(number)}")
        whole = named.replace("table: catalog.package_embeddings", f"table: catalog.table_{number:04}")
        (folder / "jobs" / f"{stem}-{number:04}.yaml").write_text(whole)
    return folder


def job_name(number: int) -> str:
    return f"job-{number:04}"
