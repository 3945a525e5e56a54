"""Many files at once: a folder of jobs as Airflow's DAG processor reads it, and the one job of it that a task needs.

Two files may claim one name. The file that is called after its job has it (``NAME.yaml``), so that no other file can take a
job's DAG away; between others, the first by file name. `load_job` finds the same file as `load_all` without reading the others.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from nightshift.fields.mistakes import FieldPath, Finding
from nightshift.spec import loading
from nightshift.spec.document import value_at_top
from nightshift.spec.errors import SpecError, SpecErrors
from nightshift.spec.file_cache import Memory, Said
from nightshift.spec.model import JobSpec
from nightshift.spec.sinks import SINKS
from nightshift.spec.stream import Messages, StreamSpec
from nightshift.spec.tables import may_be, parts, projects_unknown

_CLAIMS: Final[tuple[FieldPath, ...]] = (
    ("job",),
    ("destination", "table"),
    ("source", "subscription"),
    *(("sink", key) for sink in SINKS for key in sink.CLAIMS),
)
"""What a file has for itself alone."""


def load_files(
    paths: Iterable[Path], *, relative_to: Path | None = None, memory: Memory | None = None
) -> tuple[dict[Path, JobSpec | StreamSpec], dict[Path, SpecErrors]]:
    """Every good job or stream and every bad file of `paths`.

    Of two with one name, one destination or one subscription, one file is bad: see the module.

    A path twice counts once. relative_to: a folder above all files; messages then name them relative to it. memory: what files
    said before.
    """
    known = memory or Memory()
    errors: dict[Path, SpecErrors] = {}
    said: dict[Path, Said] = {}
    shown = {path: path.relative_to(relative_to) if relative_to else path for path in dict.fromkeys(paths)}
    try:
        for path, name in shown.items():
            found = _said(path, name, known)
            if isinstance(found, SpecErrors):
                errors[path] = found
            else:
                said[path] = found
    finally:
        known.save()  # Also of a parse that Airflow breaks off: the next one goes on behind it.
    good = _settled(said, shown, errors)
    return {path: good[path] for path in shown if path in good}, {path: errors[path] for path in shown if path in errors}


def _said(path: Path, shown: Path, memory: Memory) -> Said | SpecErrors:
    try:
        content = loading.content_of(path, shown)
        if known := memory.get(content, shown):
            return known
        try:
            spec, document = loading.parse(content, shown)
        except SpecErrors as error:
            memory.put_errors(content, error)
            return error
        found = Said(spec, {claim: document.line(claim) for claim in _CLAIMS})
        memory.put(content, found)
        return found
    except SpecErrors as error:
        return error
    except Exception as error:  # A file that breaks the reader itself must not take down every other job.
        problem = f"nightshift fails to read the file ({type(error).__name__}: {error})"
        return SpecErrors([SpecError(shown, None, "", problem, "Simplify it, and report this as a bug")])


def _settled(
    said: Mapping[Path, Said], shown: Mapping[Path, Path], errors: dict[Path, SpecErrors]
) -> dict[Path, JobSpec | StreamSpec]:
    """The files that are good beside each other; adds the others to `errors`."""
    order = sorted(said, key=lambda path: path.stem != said[path].spec.job)
    owners: dict[str, Path] = {}
    for path in order:
        owners.setdefault(said[path].spec.job, path)
    good: dict[Path, JobSpec | StreamSpec] = {}
    tables: dict[tuple[str, str], list[tuple[Path, str]]] = {}
    streams: dict[Path, StreamSpec] = {}
    for path in order:
        spec = said[path].spec
        taken = list(_taken(spec, tables, streams))
        if owners[spec.job] != path:
            problem = f"The name {spec.job!r} is already used by {shown[owners[spec.job]]}"
            taken.insert(0, Finding(("job",), problem, "Give one of the two jobs another name"))
        if taken:
            errors[path] = SpecErrors(
                SpecError(shown[path], said[path].lines[each.path], ".".join(map(str, each.path)), each.problem, each.remedy)
                for each in taken
            )
            continue
        good[path] = spec
        if table := _table(spec):
            tables.setdefault(parts(table)[1:], []).append((shown[path], table))
        if isinstance(spec, StreamSpec):
            streams[shown[path]] = spec
    return good


def _taken(
    spec: JobSpec | StreamSpec, tables: Mapping[tuple[str, str], list[tuple[Path, str]]], streams: Mapping[Path, StreamSpec]
) -> Iterator[Finding]:
    """What a job has in common with an earlier one, but must have for itself. tables: by dataset and short name."""
    if isinstance(spec, StreamSpec):
        for file, holder in streams.items():
            yield from _one_stream(spec, holder, file)
    if (table := _table(spec)) is None:
        return
    for file, other in tables.get(parts(table)[1:], ()):
        if may_be(table, other):
            path: FieldPath = ("destination", "table") if isinstance(spec, JobSpec) else ("sink", "bigquery")
            problem = (
                f"The table {table} is already the destination of {file}, and each job would replace the other's predictions"
            )
            apart = ", or if they are in different projects, write the project in both files"
            remedy = f"Give one of the two jobs another table{apart if projects_unknown(table, other) else ''}"
            yield Finding(path, problem, remedy)


def _one_stream(spec: StreamSpec, holder: StreamSpec, file: Path) -> Iterator[Finding]:
    match spec.source, holder.source:
        case Messages(subscription=ours), Messages(subscription=theirs) if ours == theirs:
            problem = f"The subscription is already that of {file}, and each stream would take messages from the other"
            yield Finding(("source", "subscription"), problem, "Make a subscription of its own for each stream")
    yield from spec.sink.clash(holder.sink, file)


def _table(spec: JobSpec | StreamSpec) -> str | None:
    """The table of BigQuery that a job publishes to, or that a stream's files are loaded into."""
    return spec.destination.table if isinstance(spec, JobSpec) else spec.sink.loaded_into


def load_all(
    folder: str | Path, *, relative_to: Path | None = None, memory: Memory | None = None
) -> tuple[dict[Path, JobSpec], dict[Path, SpecErrors]]:
    """`load_files` of a folder of nightly jobs; a stream is a mistake there."""
    specs, errors = load_files(job_files(Path(folder)), relative_to=relative_to, memory=memory)
    jobs: dict[Path, JobSpec] = {}
    for path, spec in specs.items():
        if isinstance(spec, JobSpec):
            jobs[path] = spec
        else:
            shown = path.relative_to(relative_to) if relative_to else path
            remedy = "Move it to another folder, and run it with nightshift stream"
            errors[path] = SpecErrors([SpecError(shown, None, "", "The file describes a stream, not a nightly job", remedy)])
    return jobs, errors


def load_job(folder: str | Path, name: str) -> dict[Path, JobSpec]:
    """The file that `load_all` would take for a job, without reading what other files say; empty if there is none.

    What files must not have in common is not asked: a task runs, and its DAG is there.
    """
    after = [Path(folder) / f"{name}{ending}" for ending in (".yaml", ".yml")]
    for path in after:
        if job := _job_in(path, name):
            return {path: job}
    for path in job_files(Path(folder)):
        if path not in after and _names(path, name) and (job := _job_in(path, name)):
            return {path: job}
    return {}


def _job_in(path: Path, name: str) -> JobSpec | None:
    try:
        job = loading.load(path)
    except SpecErrors:
        return None
    return job if job.job == name else None


def _names(path: Path, name: str) -> bool:
    """Whether a file is that of the job, from as little of it as says so."""
    try:
        content = loading.content_of(path, path)
    except SpecErrors:
        return False
    # A text in YAML holds the name letter for letter, unless it is written with escapes.
    return (name.encode() in content or b"\\" in content) and value_at_top(content, "job") == name


def job_files(folder: Path) -> list[Path]:
    """A folder's ``*.yaml`` and ``*.yml`` in the order of their names, without hidden ones. Raises OSError."""
    with os.scandir(folder) as entries:
        names = [
            entry.name
            for entry in entries
            if entry.name.endswith((".yaml", ".yml")) and not entry.name.startswith(".") and not _is_folder(entry)
        ]
    return [folder / name for name in sorted(names)]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False  # Links in a circle: reading the file says so.
