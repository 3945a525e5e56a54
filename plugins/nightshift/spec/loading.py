"""From a file to a `JobSpec` or a `StreamSpec`, with every mistake of the file. `nightshift.spec.folder` reads many."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from nightshift.fields.mistakes import Finding, nearest
from nightshift.spec import job_checks, stream_checks
from nightshift.spec.document import BYTES_MAX, Document, Unreadable, contents
from nightshift.spec.errors import SpecError, SpecErrors
from nightshift.spec.explain import Parts, explain
from nightshift.spec.model import JobSpec
from nightshift.spec.sinks import sink_model
from nightshift.spec.stream import StreamSpec, source_model
from nightshift.tasks import TASK_KINDS, request_model

_Spec = TypeVar("_Spec", JobSpec, StreamSpec)
_KEYS_SHOWN: Final = 8
_KEY_MOST: Final = 40
"""Characters of a key of a file that describes something else."""
MISTAKES_MAX: Final = 50
"""Of one file. A user fixes these first; the next check reports what is left."""


def load(path: str | Path, *, shown: Path | None = None) -> JobSpec:
    """The nightly job in a file. Raises SpecErrors with every mistake of the file; no other error, whatever the file contains.

    shown: the file's name in messages, if it is not `path`. Time and memory are bounded (`nightshift.spec.document`), and so is
    what is reported: `MISTAKES_MAX` mistakes.
    """
    remedy = "Run it with nightshift stream; a nightly job has source.query"
    return _read(path, shown, JobSpec, "The file describes a stream", remedy)


def load_stream(path: str | Path, *, shown: Path | None = None) -> StreamSpec:
    """The stream in a file; otherwise like `load`."""
    remedy = "Airflow runs it if it is in dags/jobs/; a stream has source.subscription or source.prefix"
    return _read(path, shown, StreamSpec, "The file describes a nightly job", remedy)


def _read(path: str | Path, shown: Path | None, wanted: type[_Spec], problem: str, remedy: str) -> _Spec:
    """problem, remedy: if the file describes something else."""
    file = shown or Path(path)
    spec, document = parse(content_of(Path(path), file), file)
    if isinstance(spec, wanted):
        return spec
    raise SpecErrors(_located(file, document, [Finding(("source",), problem, remedy)]))


def parse(content: bytes, file: Path) -> tuple[JobSpec | StreamSpec, Document]:
    """What a file's bytes say. file: its name in messages. Raises SpecErrors."""
    document = _document(content, file)
    if not isinstance(document.value, dict):
        what = "The file is empty" if document.value is None else "The file is not a mapping"
        raise SpecErrors([SpecError(file, 1, "", what, "Write a job, starting with job: NAME")])
    if foreign := _foreign(document.value):
        raise SpecErrors([SpecError(file, 1, "", *foreign)])
    streams = _is_stream(document)
    model: type[JobSpec] | type[StreamSpec] = StreamSpec if streams else JobSpec
    spec: JobSpec | StreamSpec | None = None
    explained: Iterable[Finding] = ()
    try:
        spec = model.model_validate(document.value)
    except ValidationError as error:
        explained = explain(error, document, model, model.NOUN, _parts(document, streams=streams))
    checked = stream_checks.check(document) if streams else job_checks.check(document)
    # Each finding may cost a search through all keys or columns, so no more are made than are reported.
    findings = list(islice(chain(document.findings, explained, checked), MISTAKES_MAX))
    if findings or spec is None:
        raise SpecErrors(_located(file, document, findings))
    return spec, document


def _parts(document: Document, *, streams: bool) -> Parts:
    task = document.get("task")
    parts: dict[str, type[BaseModel] | None] = {"request": request_model(task) if task in TASK_KINDS else None}
    if streams:
        parts |= {"source": source_model(document.get("source")), "sink": sink_model(document.get("sink"))}
    return parts


def _foreign(value: dict[Any, Any]) -> tuple[str, str] | None:
    """Problem and remedy of a mapping that was not meant to be a job: it has no name, no task, and few of a job's keys."""
    known = value.keys() & (JobSpec.model_fields.keys() | StreamSpec.model_fields.keys())
    if not value or known & {"job", "task"} or 2 * len(known) > len(value):
        return None
    listed = ", ".join(str(key)[:_KEY_MOST] for key in islice(value, _KEYS_SHOWN))
    near = next((f": did you mean 'job' by {key!r}?" for key in value if nearest(str(key), ["job"])), "")
    return f"The file does not describe a job or a stream: its keys are {listed}{near}", "Write a job, starting with job: NAME"


def _is_stream(document: Document) -> bool:
    """A stream is a job whose source is a subscription or a folder. If the source is broken, sections of its own show it."""
    return any(
        document.get(*path) is not None for path in (("source", "subscription"), ("source", "prefix"), ("sink",), ("latency",))
    )


def content_of(path: Path, file: Path) -> bytes:
    """Raises SpecErrors if the file cannot be read."""
    try:
        return contents(path)
    except OSError as error:
        meant = _meant(path) if isinstance(error, FileNotFoundError) else None
        remedy = f"Did you mean {meant}" if meant else "Check its path"
        raise SpecErrors([SpecError(file, None, "", f"The file cannot be read: {error.strerror}", remedy)]) from None


def _meant(path: Path) -> str | None:
    """The file whose job a path names instead of the file itself, if it is where a clone of this repository has it."""
    names = [path.name] if path.suffix in (".yaml", ".yml") else [f"{path.name}{ending}" for ending in (".yaml", ".yml")]
    folders = (path.parent, path.parent / "dags" / "jobs", path.parent / "streams")
    return next((f"{each}?" for each in (folder / name for folder in folders for name in names) if each.is_file()), None)


def _document(content: bytes, file: Path) -> Document:
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


def _located(file: Path, document: Document, findings: Iterable[Finding]) -> Iterator[SpecError]:
    for finding in findings:
        line = finding.line if finding.line is not None else document.line(finding.path)
        yield SpecError(file, line, ".".join(map(str, finding.path)), finding.problem, finding.remedy)
