"""The job or the stream that is asked about: its file, by path or by the name in it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from nightshift.doctor.findings import Failed, Finding, Ok, Skipped
from nightshift.spec import JobSpec, SpecErrors, StreamSpec
from nightshift.spec.folder import job_files
from nightshift.spec.loading import content_of, parse

NAME: Final = "job"
STREAM: Final = "stream"


def asked(path: Path | None) -> tuple[Finding, JobSpec | StreamSpec | None]:
    """path: of the file of a job or a stream; None if none was named. The spec is None then, and if the file has mistakes."""
    if path is None:
        return Skipped(NAME, "no job was named"), None
    try:
        spec, _ = parse(content_of(path, path), path)
    except SpecErrors as error:
        return Failed(NAME, str(error), "its DAG: Airflow does not show it", f"nightshift validate {path}"), None
    if isinstance(spec, StreamSpec):
        return Ok(STREAM, f"{spec.job}: {spec.task} on {spec.compute.profile}, {spec.summary}"), spec
    return Ok(NAME, f"{spec.job}: {spec.task} on {', '.join(spec.compute.profiles)}"), spec


def file_of(job: str, *folders: Path) -> Path:
    """The file of a job or a stream. job: its name, or a path. folders: of the deployment, in which a name is looked for.

    A name that no file has is taken for a path.
    """
    for file in (file for folder in folders for file in job_files(folder)):
        try:
            if file.stem == job or parse(content_of(file, file), file)[0].job == job:
                return file
        except SpecErrors:
            continue
    return Path(job)
