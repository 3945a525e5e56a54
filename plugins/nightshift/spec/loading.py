"""From files to `JobSpec`s, with every mistake of every file."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from nightshift.fields.mistakes import Finding
from nightshift.spec.checks import check
from nightshift.spec.document import BYTES_MAX, Document, Unreadable
from nightshift.spec.errors import SpecError, SpecErrors
from nightshift.spec.explain import explain
from nightshift.spec.model import JobSpec
from nightshift.spec.tables import may_be, projects_unknown

MISTAKES_MAX: Final = 50
"""Of one file. A person mends these first; the next check reports what is left."""


def load(path: str | Path, *, shown: Path | None = None) -> JobSpec:
    """The job in a file. Raises SpecErrors with every mistake of the file; no other error, whatever the file contains.

    shown: the file's name in messages, if it is not `path`. Time and memory are bounded (`nightshift.spec.document`), and so is
    what is reported: `MISTAKES_MAX` mistakes.
    """
    return _load(Path(path), shown or Path(path))[0]


def _load(path: Path, file: Path) -> tuple[JobSpec, Document]:
    document = _read(path, file)
    if not isinstance(document.value, dict):
        what = "The file is empty" if document.value is None else "The file is not a mapping"
        raise SpecErrors([SpecError(file, 1, "", what, "Write a job, starting with job: NAME")])
    spec: JobSpec | None = None
    explained: Iterable[Finding] = ()
    try:
        spec = JobSpec.model_validate(document.value)
    except ValidationError as error:
        explained = explain(error, document)
    # Each finding may cost a search through all keys or columns, so no more are made than are reported.
    findings = list(islice(chain(document.findings, explained, check(document)), MISTAKES_MAX))
    if findings or spec is None:
        raise SpecErrors(_located(file, document, findings))
    return spec, document


def _read(path: Path, file: Path) -> Document:
    try:
        content = _content(path)
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


def _content(path: Path) -> bytes:
    """The file's first bytes, one more than a job may have. Raises OSError, also for a pipe or a device: it may never end."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "It is a pipe or a device, not a regular file")
        return file.read(BYTES_MAX + 1)


def load_files(paths: Iterable[Path], *, relative_to: Path | None = None) -> tuple[dict[Path, JobSpec], dict[Path, SpecErrors]]:
    """Every good job and every bad file of `paths`. Of two jobs with one name or one destination the later file is bad.

    A path twice counts once. relative_to: a folder above all files; messages then name them relative to it.
    """
    specs: dict[Path, JobSpec] = {}
    errors: dict[Path, SpecErrors] = {}
    holders: dict[Path, JobSpec] = {}
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


def _taken(spec: JobSpec, holders: Mapping[Path, JobSpec]) -> Iterator[Finding]:
    """What a job has in common with an earlier one, but must have for itself."""
    for file, holder in holders.items():
        if holder.job == spec.job:
            problem = f"The name {spec.job!r} is already used by {file}"
            yield Finding(("job",), problem, "Give one of the two jobs another name")
        table, other = spec.destination.table, holder.destination.table
        if may_be(table, other):
            problem = (
                f"The table {table} is already the destination of {file}, and each job would replace the other's predictions"
            )
            apart = ", or if they are in different projects, write the project in both files"
            remedy = f"Give one of the two jobs another table{apart if projects_unknown(table, other) else ''}"
            yield Finding(("destination", "table"), problem, remedy)


def load_all(folder: str | Path, *, relative_to: Path | None = None) -> tuple[dict[Path, JobSpec], dict[Path, SpecErrors]]:
    """`load_files` of a folder's job files."""
    return load_files(job_files(Path(folder)), relative_to=relative_to)


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
