"""Renders templates in a process of their own, which the kernel ends when one takes too long, whatever C code it sits in.

The process begins with the first rendering that needs it and serves all later ones, one at a time. It is trusted with no more
than the sandbox: it gets a template and a row's values, and gives back a text.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection, Pipe
from typing import Any, Final

from nightshift.tasks._null import NullWritten
from nightshift.tasks._values import NoProcess, Rendering

LIMIT_S: Final = 5.0
"""Processor seconds that one rendering may take."""
MEMORY: Final = 1 << 30
"""Bytes of its address space."""
_TEXT: Final = b"T"
_NULL: Final = b"N"
"""Begins the name of a column whose NULL may not be written."""
_ENCODING: Final = ("utf-8", "surrogatepass")


class Failed(Exception):
    """The template failed on the row, or took too long for it."""


class TooLong(Failed):
    """It took more than `LIMIT_S`."""


class _Renderer:
    def __init__(self) -> None:
        self.owner = os.getpid()
        ours, theirs = Pipe()
        path = os.pathsep.join(each for each in sys.path if each)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", f"from nightshift.tasks import _subprocess; _subprocess.serve({theirs.fileno()})"],
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                # What a terminal sends to its programs is for the one that asks.
                start_new_session=True,
            )
        finally:
            theirs.close()
        self._connection = ours

    def ask(self, question: bytes) -> bytes | int:
        """The answer; if the process has ended instead, how: its return code."""
        try:
            self._connection.send_bytes(question)
            return self._connection.recv_bytes()
        except (EOFError, ConnectionError):
            self._connection.close()
            return self._process.wait()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._connection.close()


_renderer: _Renderer | None = None


def render(source: str, values: Mapping[str, Any], rendering: Rendering) -> str:
    """The text of a template for the values of one row. Raises Failed, NullWritten and NoProcess.

    Waits for it, and may be broken off by whatever a signal's handler raises.
    """
    question = pickle.dumps((source, dict(values), rendering))
    for _ in range(2):
        answer = _asked(question)
        if isinstance(answer, bytes):
            text = answer[1:].decode(*_ENCODING)
            if answer[:1] == _TEXT:
                return text
            raise NullWritten(text) if answer[:1] == _NULL else Failed(text)
        if answer == -signal.SIGPROF:
            raise TooLong(f"it took more than {LIMIT_S:g} s of processor time")
        # Perhaps the machine was short of memory.
        ended = signal.Signals(-answer).name if answer < 0 else f"exit code {answer}"
    raise Failed(f"the process that renders it ended twice ({ended})")


def _asked(question: bytes) -> bytes | int:
    global _renderer
    if _renderer is None or _renderer.owner != os.getpid():
        try:
            _renderer = _Renderer()
        except OSError as error:
            raise NoProcess(f"no process to render templates in: {error}") from error
    renderer, _renderer = _renderer, None
    try:
        answer = renderer.ask(question)
    except BaseException:
        renderer.end()
        raise
    if isinstance(answer, bytes):
        _renderer = renderer
    return answer


def serve(descriptor: int) -> None:
    """The process itself: answers until its parent closes the connection."""
    from nightshift.tasks import _templates

    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    # Python has no handler for it: it ends the process, even if C code holds Python's lock.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    compiled: dict[str, Any] = {}
    with Connection(descriptor) as connection, contextlib.suppress(EOFError, ConnectionError):
        while True:
            source, values, rendering = pickle.loads(connection.recv_bytes())
            if source not in compiled:
                compiled[source], _ = _templates.compile_template(source)
            signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
            try:
                answer = _TEXT + _templates.render(compiled[source], values, rendering).encode(*_ENCODING)
            except MemoryError:
                answer = f"Eit takes more than {MEMORY >> 20:,} MiB".encode()
            except NullWritten as error:
                answer = _NULL + error.column.encode(*_ENCODING)
            except Exception as error:
                answer = b"E" + str(error).encode(*_ENCODING)
            signal.setitimer(signal.ITIMER_PROF, 0)
            connection.send_bytes(answer)
