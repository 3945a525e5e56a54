"""Many files at once: a folder of jobs as Airflow's DAG processor reads it, and the one job of it that a task needs.

Two files may claim one name. The file that is called after its job has it (``NAME.yaml``), so that no other file can take a
job's DAG away; between others, the first by file name. `load_job` finds the same file as `load_all` without reading the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from nightshift.fields.mistakes import FieldPath, Finding
from nightshift.spec import loading
from nightshift.spec.document import value_at_top
from nightshift.spec.errors import SpecError, SpecErrors
from nightshift.spec.memory import Memory, Said
from nightshift.spec.model import JobSpec
from nightshift.spec.stream import FileSink, Messages, StreamSpec
from nightshift.spec.tables import may_be, projects_unknown

_CLAIMS: Final[tuple[FieldPath, ...]] = (
    ("job",),
    ("destination", "table"),
    ("source", "subscription"),
    ("sink", "files"),
    ("sink", "bigquery"),
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
        if known := memory.get(content):
            return known if isinstance(known, Said) else known.of(shown)
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
    holders: dict[Path, JobSpec | StreamSpec] = {}
    for path in order:
        spec = said[path].spec
        taken = list(_taken(spec, holders))
        if owners[spec.job] != path:
            problem = f"The name {spec.job!r} is already used by {shown[owners[spec.job]]}"
            taken.insert(0, Finding(("job",), problem, "Give one of the two jobs another name"))
        if taken:
            errors[path] = SpecErrors(
                SpecError(shown[path], said[path].lines[each.path], ".".join(map(str, each.path)), each.problem, each.remedy)
                for each in taken
            )
        else:
            good[path] = holders[shown[path]] = spec
    return good


def _taken(spec: JobSpec | StreamSpec, holders: Mapping[Path, JobSpec | StreamSpec]) -> Iterator[Finding]:
    """What a job has in common with an earlier one, but must have for itself."""
    for file, holder in holders.items():
        match spec, holder:
            case JobSpec(), JobSpec():
                yield from _one_destination(spec.destination.table, holder.destination.table, file)
            case StreamSpec(), StreamSpec():
                yield from _one_stream(spec, holder, file)
        if (ours := _stream_table(spec)) and (theirs := _stream_table(holder) or _night_table(holder)):
            yield from _one_destination(ours, theirs, file, ("sink", "bigquery"))
        elif (ours := _night_table(spec)) and (theirs := _stream_table(holder)):
            yield from _one_destination(ours, theirs, file, ("destination", "table"))


def _one_stream(spec: StreamSpec, holder: StreamSpec, file: Path) -> Iterator[Finding]:
    match spec.source, holder.source:
        case Messages(subscription=ours), Messages(subscription=theirs) if ours == theirs:
            problem = f"The subscription is already that of {file}, and each stream would take messages from the other"
            yield Finding(("source", "subscription"), problem, "Make a subscription of its own for each stream")
    match spec.sink, holder.sink:
        case FileSink(files=ours), FileSink(files=theirs) if f"{ours}/".startswith(f"{theirs}/") or theirs.startswith(
            f"{ours}/"
        ):
            problem = f"The folder {ours} is already that of {file}, or one is inside the other: their files would be mixed"
            yield Finding(("sink", "files"), problem, "Give each stream a folder of its own")


def _stream_table(spec: JobSpec | StreamSpec) -> str | None:
    """The table of BigQuery that a stream's files are loaded into."""
    return spec.sink.bigquery if isinstance(spec, StreamSpec) and isinstance(spec.sink, FileSink) else None


def _night_table(spec: JobSpec | StreamSpec) -> str | None:
    return spec.destination.table if isinstance(spec, JobSpec) else None


def _one_destination(table: str, other: str, file: Path, path: FieldPath = ("destination", "table")) -> Iterator[Finding]:
    if not may_be(table, other):
        return
    problem = f"The table {table} is already the destination of {file}, and each job would replace the other's predictions"
    apart = ", or if they are in different projects, write the project in both files"
    remedy = f"Give one of the two jobs another table{apart if projects_unknown(table, other) else ''}"
    yield Finding(path, problem, remedy)


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
    files = job_files(Path(folder))
    after = [path for path in files if path.stem == name]
    for path in after or ():
        if job := _job_in(path, name):
            return {path: job}
    for path in files:
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
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix in (".yaml", ".yml") and not path.name.startswith(".") and not path.is_dir()
    )
