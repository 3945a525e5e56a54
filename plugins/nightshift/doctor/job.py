"""The job that is asked about: its file, by path or by the job's name."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from nightshift.doctor.findings import Failed, Finding, Ok, Skipped
from nightshift.spec import JobSpec, SpecErrors, load
from nightshift.spec.folder import job_files

NAME: Final = "job"


def asked(path: Path | None) -> tuple[Finding, JobSpec | None]:
    """path: of a job's file; None if no job was named. The job is None then, and if its file has mistakes."""
    if path is None:
        return Skipped(NAME, "no job was named"), None
    try:
        spec = load(path)
    except SpecErrors as error:
        return Failed(NAME, str(error), "its DAG: Airflow does not show it", f"nightshift validate {path}"), None
    return Ok(NAME, f"{spec.job}: {spec.task} on {', '.join(spec.compute.profiles)}"), spec


def file_of(job: str, folder: Path) -> Path:
    """A job's file: job is its name, or a path. folder: of the deployment's job files.

    A name that no file has is taken for a path.
    """
    for file in job_files(folder):
        try:
            if file.stem == job or load(file).job == job:
                return file
        except SpecErrors:
            continue
    return Path(job)
