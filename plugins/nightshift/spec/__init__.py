"""The job a user writes: `load` reads one file and reports everything that is wrong with it; `JobSpec` is the result."""

from nightshift.spec.errors import SpecError, SpecErrors
from nightshift.spec.loading import load, load_all, load_files
from nightshift.spec.model import JobSpec

__all__ = ["JobSpec", "SpecError", "SpecErrors", "load", "load_all", "load_files"]
