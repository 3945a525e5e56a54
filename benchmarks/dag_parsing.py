"""P17: what a folder of job files costs Airflow's DAG processor at each parse, and a task at its start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.job_files import DAG_FILES, deployment, job_name
from benchmarks.processes import environment
from benchmarks.report import Report, spread

METHOD: Final = """
CPU seconds of importing a DAG file in a process of its own, with everything that it imports already loaded. The job files
have 2 KB, like `dags/jobs/package-embeddings.yaml`, each with its own name and table. The DAG processor's parse is
`batch_inference.py` and `broken_jobs.py` together, the first time and when no file has changed. A task's is
`batch_inference.py` with Airflow's parsing context for the last job, whose file is named after it or has another name. The
peer is the plain factory that people write: `yaml.safe_load` of the same files, and for each a DAG of 7 PythonOperators in a
chain. The sides take turns; medians are compared.
"""
TIMES: Final = 3
FACTORY: Final = """
import datetime
from pathlib import Path

import yaml
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG
from airflow.sdk.bases.operator import chain

for path in sorted((Path(__file__).parent / "jobs").glob("*.yaml")):
    job = yaml.safe_load(path.read_text())
    with DAG(job["job"], start_date=datetime.datetime(2026, 1, 1), schedule="0 0 * * *", catchup=False) as dag:
        chain(*(PythonOperator(task_id=f"t{number}", python_callable=print) for number in range(7)))
    globals()[job["job"]] = dag
"""
IMPORT: Final = """
import ast, importlib, json, sys, time
from pathlib import Path

for path in sys.argv[1:]:
    for node in ast.walk(ast.parse(Path(path).read_text())):
        if isinstance(node, ast.ImportFrom):
            importlib.import_module(node.module)
took = []
for path in sys.argv[1:]:
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    began = time.process_time()
    spec.loader.exec_module(module)
    took.append(time.process_time() - began)
print(json.dumps(sum(took)))
"""


def measure(report: Report, folder: Path, quick: bool) -> None:
    sizes = (1, 30) if quick else (1, 300, 1000)
    found = {size: _of(folder / str(size), size) for size in sizes}
    one = found[1]
    for size, taken in found.items():
        for side, times in taken.items():
            report.add(f"{side}, {size:,} file{'s' if size > 1 else ''}, seconds", spread(times))
    for size in sizes[1:]:
        taken = found[size]
        for side in ("task", "task, file with another name"):
            ratio = median(taken[side]) / median(one[side])
            report.add(f"{side}, {size:,} files / 1 file", f"{ratio:.2f}", "<= 1.5", ratio <= 1.5)
        for side in ("DAG processor, first", "DAG processor, again"):
            report.add(f"{side} / plain factory, {size:,} files", f"{median(taken[side]) / median(taken['plain factory']):.2f}")


def _of(folder: Path, size: int) -> dict[str, list[float]]:
    """Seconds by side."""
    named, other = deployment(folder / "named", size), deployment(folder / "other", size, stem="file")
    (named / "factory.py").write_text(FACTORY)
    last = job_name(size - 1)
    taken: dict[str, list[float]] = {}
    for turn in range(TIMES):
        memory = folder / f"memory-{turn}"
        memory.mkdir()
        sides: dict[str, tuple[Path, tuple[str, ...], str]] = {
            "plain factory": (named, ("factory.py",), ""),
            "DAG processor, first": (named, DAG_FILES, ""),
            "DAG processor, again": (named, DAG_FILES, ""),
            "task": (named, DAG_FILES[:1], last),
            "task, file with another name": (other, DAG_FILES[:1], last),
        }
        for side, (dags, files, task) in sides.items():
            taken.setdefault(side, []).append(_seconds(dags, memory, files, task))
    return taken


def _seconds(dags: Path, memory: Path, files: tuple[str, ...], task: str) -> float:
    variables = {
        "AIRFLOW_HOME": str(memory / "airflow"),
        "NIGHTSHIFT_BUCKET": "bench",
        "NIGHTSHIFT_PROJECT": "bench",
        "TMPDIR": str(memory),
        **({"_AIRFLOW_PARSING_CONTEXT_DAG_ID": task} if task else {}),
    }
    done = subprocess.run(
        [sys.executable, "-c", IMPORT, *(str(dags / name) for name in files)],
        env=environment(**variables),
        capture_output=True,
        text=True,
        check=True,
    )
    seconds: float = json.loads(done.stdout.splitlines()[-1])
    return seconds
