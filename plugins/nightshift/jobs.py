"""The folder of job files: which of them can be used, and what is wrong with the others.

Both DAG files read it, so that a broken file is left out by the one and named by the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nightshift.spec import JobSpec, SpecError, SpecErrors, load

SUFFIXES = (".yaml", ".yml")


class BrokenJobs(Exception):
    """Job files that cannot be used; the message has a line for each mistake of each file."""

    def __init__(self, broken: Iterable[SpecErrors]) -> None:
        super().__init__("\n" + "\n".join(str(errors) for errors in broken))


@dataclass(frozen=True)
class Jobs:
    """What a folder holds. good: in the order of the files' names. broken: the others, in the same order."""

    good: tuple[JobSpec, ...]
    broken: tuple[SpecErrors, ...]


def load_folder(folder: Path) -> Jobs:
    """Reads every job file of `folder`. A second file with the name of an earlier job is broken. Raises nothing for a file."""
    good: dict[str, tuple[Path, JobSpec]] = {}
    broken = []
    for path in sorted(_files(folder)):
        shown = path.relative_to(folder.parent.parent)
        try:
            spec = load(path)
            if spec.job in good:
                raise _twice(shown, spec.job, good[spec.job][0])
        except SpecErrors as errors:
            broken.append(_renamed(errors, shown))
        except Exception as error:  # One file that breaks the reader itself must not take every other job's DAG down.
            problem = f"it cannot be read ({type(error).__name__}: {error})"
            broken.append(SpecErrors([SpecError(shown, None, "", problem, "Write a job file in UTF-8 YAML")]))
        else:
            good[spec.job] = (shown, spec)
    return Jobs(tuple(spec for _, spec in good.values()), tuple(broken))


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.iterdir() if path.suffix in SUFFIXES and path.is_file())


def _twice(path: Path, job: str, first: Path) -> SpecErrors:
    return SpecErrors([SpecError(path, None, "job", f"{job!r} is the job of {first} already", "Write another name")])


def _renamed(errors: SpecErrors, shown: Path) -> SpecErrors:
    """The same mistakes with the path as a person knows it, from the repository's root."""
    return SpecErrors(SpecError(shown, item.line, item.field, item.problem, item.remedy) for item in errors.errors)
