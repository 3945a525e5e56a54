"""What a user writes: `load` reads a nightly job and reports everything that is wrong with it, `load_stream` a stream."""

from nightshift.spec.errors import SpecError, SpecErrors
from nightshift.spec.folder import load_all, load_files, load_job
from nightshift.spec.loading import load, load_stream
from nightshift.spec.model import JobSpec
from nightshift.spec.stream import StreamSpec

__all__ = ["JobSpec", "SpecError", "SpecErrors", "StreamSpec", "load", "load_all", "load_files", "load_job", "load_stream"]
