"""From files to `JobSpec`s and `StreamSpec`s, with every mistake of every file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from nightshift.fields.mistakes import FieldPath, Finding
from nightshift.spec import stream_checks
from nightshift.spec.checks import check
from nightshift.spec.document import BYTES_MAX, Document, Unreadable, contents
from nightshift.spec.errors import SpecError, SpecErrors
from nightshift.spec.explain import explain
from nightshift.spec.model import JobSpec
from nightshift.spec.stream import FileSink, Messages, StreamSpec
from nightshift.spec.tables import may_be, projects_unknown

MISTAKES_MAX: Final = 50
"""Of one file. A person mends these first; the next check reports what is left."""


def load(path: str | Path, *, shown: Path | None = None) -> JobSpec:
    """The nightly job in a file. Raises SpecErrors with every mistake of the file; no other error, whatever the file contains.

    shown: the file's name in messages, if it is not `path`. Time and memory are bounded (`nightshift.spec.document`), and so is
    what is reported: `MISTAKES_MAX` mistakes.
    """
    spec, document = _load(Path(path), shown or Path(path))
    if isinstance(spec, JobSpec):
        return spec
    remedy = "Run it with nightshift stream; a nightly job has source.query"
    raise SpecErrors(_located(shown or Path(path), document, [Finding(("source",), "The file describes a stream", remedy)]))


def load_stream(path: str | Path, *, shown: Path | None = None) -> StreamSpec:
    """The stream in a file; otherwise like `load`."""
    spec, document = _load(Path(path), shown or Path(path))
    if isinstance(spec, StreamSpec):
        return spec
    remedy = "Airflow runs it if it is in dags/jobs/; a stream has source.subscription or source.prefix"
    raise SpecErrors(
        _located(shown or Path(path), document, [Finding(("source",), "The file describes a nightly job", remedy)])
    )


def _load(path: Path, file: Path) -> tuple[JobSpec | StreamSpec, Document]:
    document = _read(path, file)
    if not isinstance(document.value, dict):
        what = "The file is empty" if document.value is None else "The file is not a mapping"
        raise SpecErrors([SpecError(file, 1, "", what, "Write a job, starting with job: NAME")])
    streams = _is_stream(document)
    model: type[JobSpec] | type[StreamSpec] = StreamSpec if streams else JobSpec
    spec: JobSpec | StreamSpec | None = None
    explained: Iterable[Finding] = ()
    try:
        spec = model.model_validate(document.value)
    except ValidationError as error:
        explained = explain(error, document, model)
    checked = stream_checks.check(document) if streams else check(document)
    # Each finding may cost a search through all keys or columns, so no more are made than are reported.
    findings = list(islice(chain(document.findings, explained, checked), MISTAKES_MAX))
    if findings or spec is None:
        raise SpecErrors(_located(file, document, findings))
    return spec, document


def _is_stream(document: Document) -> bool:
    """A stream is a job whose source is a subscription or a folder. If the source is broken, sections of its own show it."""
    return any(
        document.get(*path) is not None for path in (("source", "subscription"), ("source", "prefix"), ("sink",), ("latency",))
    )


def _read(path: Path, file: Path) -> Document:
    try:
        content = contents(path)
    except OSError as error:
        raise SpecErrors([SpecError(file, None, "", f"The file cannot be read: {error.strerror}", "Check its path")]) from None
    if len(content) > BYTES_MAX:
        problem = f"The file has more than {BYTES_MAX >> 10} KiB, the most that a job may have"
        raise SpecErrors([SpecError(file, None, "", problem, "Keep long lists in a table, and join it in the query")])
    try:
        return Document(content.decode())
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        problem = f"The file is not UTF-8: it contains the byte 0x{error.object[error.start]:02x}"
        raise SpecErrors([SpecError(file, line, "", problem, "Save it as UTF-8")]) from None
    except Unreadable as error:
        raise SpecErrors([SpecError(file, error.line, "", error.problem, error.remedy)]) from None


def load_files(
    paths: Iterable[Path], *, relative_to: Path | None = None
) -> tuple[dict[Path, JobSpec | StreamSpec], dict[Path, SpecErrors]]:
    """Every good job or stream and every bad file of `paths`.

    Of two with one name, one destination or one subscription the later file is bad.

    A path twice counts once. relative_to: a folder above all files; messages then name them relative to it.
    """
    specs: dict[Path, JobSpec | StreamSpec] = {}
    errors: dict[Path, SpecErrors] = {}
    holders: dict[Path, JobSpec | StreamSpec] = {}
    for path in dict.fromkeys(paths):
        shown = path.relative_to(relative_to) if relative_to else path
        try:
            spec, document = _load(path, shown)
        except SpecErrors as error:
            errors[path] = error
            continue
        except Exception as error:  # A file that breaks the reader itself must not take down every other job.
            problem = f"nightshift fails to read the file ({type(error).__name__}: {error})"
            errors[path] = SpecErrors([SpecError(shown, None, "", problem, "Simplify it, and report this as a bug")])
            continue
        taken = list(_taken(spec, holders))
        if taken:
            errors[path] = SpecErrors(_located(shown, document, taken))
        else:
            specs[path] = holders[shown] = spec
    return specs, errors


def _taken(spec: JobSpec | StreamSpec, holders: Mapping[Path, JobSpec | StreamSpec]) -> Iterator[Finding]:
    """What a job has in common with an earlier one, but must have for itself."""
    for file, holder in holders.items():
        if holder.job == spec.job:
            problem = f"The name {spec.job!r} is already used by {file}"
            yield Finding(("job",), problem, "Give one of the two jobs another name")
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


def load_all(folder: str | Path, *, relative_to: Path | None = None) -> tuple[dict[Path, JobSpec], dict[Path, SpecErrors]]:
    """`load_files` of a folder of nightly jobs; a stream is a mistake there."""
    specs, errors = load_files(job_files(Path(folder)), relative_to=relative_to)
    jobs: dict[Path, JobSpec] = {}
    for path, spec in specs.items():
        if isinstance(spec, JobSpec):
            jobs[path] = spec
        else:
            shown = path.relative_to(relative_to) if relative_to else path
            remedy = "Move it to another folder, and run it with nightshift stream"
            errors[path] = SpecErrors([SpecError(shown, None, "", "The file describes a stream, not a nightly job", remedy)])
    return jobs, errors


def job_files(folder: Path) -> list[Path]:
    """A folder's ``*.yaml`` and ``*.yml`` in the order of their names, without hidden ones. Raises OSError."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix in (".yaml", ".yml") and not path.name.startswith(".") and not path.is_dir()
    )


def _located(file: Path, document: Document, findings: Iterable[Finding]) -> Iterator[SpecError]:
    for finding in findings:
        line = finding.line if finding.line is not None else document.line(finding.path)
        yield SpecError(file, line, ".".join(map(str, finding.path)), finding.problem, finding.remedy)
