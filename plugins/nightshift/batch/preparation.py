"""What `nightshift batch` finds out before it sends anything: whether its command line can be obeyed, and what the input holds.

All of it before the event loop runs, so that a signal ends the process even while it reads from a pipe.
"""

from __future__ import annotations

import contextlib
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from nightshift.batch import paths
from nightshift.batch import source as sources
from nightshift.batch.engine import Server, base_of
from nightshift.batch.options import Options
from nightshift.batch.progress import say
from nightshift.batch.source import BatchFile, Index
from nightshift.batch.spool import ready
from nightshift.batch.state import chunk_lines_most, kept_in, place_of
from nightshift.batch.target import Target, target_of
from nightshift.fields.values import is_this_machine
from nightshift.run.inputs import InputChanged


class Usage(ValueError):
    """The command or the file is wrong; not retryable."""


@dataclass(frozen=True)
class Prepared:
    """place: where progress is kept, a folder or a URL."""

    source: BatchFile
    index: Index
    target: Target
    place: str
    server: Server


@contextlib.contextmanager
def prepared(options: Options) -> Iterator[Prepared]:
    """Reads the input once. Raises Usage, WrongEngine, InputChanged, StoreUnavailable, OSError."""
    if options.fresh and options.retry_failed:
        raise Usage("--fresh sends all lines, and --retry-failed the failed ones. Leave one of the two out")
    server = Server(base_of(options.base_url), options.api_key, options.timeout_s)
    where = urlsplit(options.base_url)
    if options.api_key and where.scheme == "http" and not is_this_machine(options.base_url):
        say(f"OPENAI_API_KEY goes to {where.hostname} unencrypted. Write https:// in --base-url, or unset it")
    with _named("-i", options.input):
        is_file = _is_file(options.input)
    with _named("-o", options.output):
        target = target_of(options.output, options.input)
    place = _place(options, target, is_file=is_file)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(kept_in(place))
        except ValueError as error:
            raise Usage(str(error)) from error
        with _named("-i", options.input):
            source = ready(options.input, tempfile.gettempdir() if "://" in place else place, say)
            index = sources.index(source)
        _check_chunks(options.chunk_rows, index)
        if target.waits:
            say(f"{target.name} waits for a reader")
        target.open()
        yield Prepared(source, index, target, place, server)


def _is_file(name: str) -> bool:
    """Whether the input keeps what it holds, so that progress can lie beside it. Raises ValueError, OSError."""
    if "://" in name:
        sources.source_of(name)
        return True
    return paths.descriptor_of(name, paths.STDIN) is None and stat.S_ISREG(Path(name).stat().st_mode)


def _place(options: Options, target: Target, *, is_file: bool) -> str:
    beside = options.input if target.passing else options.output
    if options.state is None and target.passing and not is_file:
        raise Usage("neither -i nor -o is a file beside which progress could be kept. Name a folder for it with --state")
    try:
        return place_of(options.state, beside)
    except ValueError as error:
        raise Usage(f"--state: {error}" if options.state else str(error)) from error


def _check_chunks(chunk_rows: int | None, index: Index) -> None:
    most = chunk_lines_most(index)
    if chunk_rows is not None and min(chunk_rows, index.lines) > most:
        raise Usage(
            f"--chunk-rows {chunk_rows}: lines that are saved together are in memory until then, with their replies. "
            f"Write {most} or less for this file, or leave it out"
        )


@contextlib.contextmanager
def _named(option: str, value: str) -> Iterator[None]:
    """What is wrong with the value of an option as Usage."""
    try:
        yield
    except InputChanged:
        raise
    except (ValueError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError) as error:
        problem = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise Usage(f"{option} {value}: {problem}") from error
