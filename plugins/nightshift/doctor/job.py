"""The job that is asked about: its file, by path or by the job's name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nightshift.doctor.findings import Failed, Finding, Ok, Skipped
from nightshift.spec import JobSpec, SpecErrors, load
from nightshift.spec.folder import job_files

NAME: Final = "job"


@dataclass(frozen=True)
class Asked:
    """spec: None if no job was named, or its file has mistakes; they are in finding."""

    finding: Finding
    spec: JobSpec | None = None


def asked(path: Path | None) -> Asked:
    """path: of a job's file; None if no job was named."""
    if path is None:
        return Asked(Skipped(NAME, "no job was named"))
    try:
        spec = load(path)
    except SpecErrors as error:
        return Asked(Failed(NAME, str(error), "its DAG: Airflow does not show it", f"nightshift validate {path}"))
    return Asked(Ok(NAME, f"{spec.job}: {spec.task} on {', '.join(spec.compute.profiles)}"), spec)


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
