"""The exit codes of the driver and of every command. No process of nightshift returns another one on purpose.

The driver's are a contract with the manifests that run it: Kubernetes reads them in the Job's podFailurePolicy
(`nightshift.jobset.manifest`). 75 and 78 are those of BSD's sysexits.h.
"""

import os
import signal
import threading
from types import FrameType
from typing import Final

DONE: Final = 0
"""Everything that was asked for is done. A driver: every chunk of the worker's home range is committed. Never returned after a
SIGTERM that left work open."""

FAILED: Final = 1
"""A command has done its work, and the result is not good: a check failed, a plan does not fit, lines have no answer."""

BAD_INPUT: Final = 2
"""A command line or a file is wrong, and stderr says where. argparse returns it too."""

RESUME: Final = 75
"""Work is left that another attempt can do (EX_TEMPFAIL): after a drain, with an engine, a store or a service that cannot be
reached, or with an engine that answers nobody. Run the same command again."""

CONFIG: Final = 78
"""Not retryable (EX_CONFIG): a spec, plan or model that does not fit, or a right that is missing. The index of a JobSet fails
immediately."""

INTERRUPTED: Final = 130
"""Ctrl-C, as shells have it."""


def on_signals(code: int) -> None:
    """Makes SIGTERM and SIGINT end the process with this exit code until it has other handlers for them. Main thread only.

    For the time before a program can drain: while it imports, or waits for its input. A container's first process would ignore
    the signals; elsewhere Python would print a traceback or die of them.

    Handlers alone are not enough: Python runs them between two steps of the main thread. A signal that comes just before a
    system call that waits, such as reading a pipe, would be seen when that call returns, which may be never. So another thread
    waits for the number that Python writes as soon as a signal comes (`signal.set_wakeup_fd`).
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def end(_number: int, _frame: FrameType | None) -> None:
        os._exit(code)

    def wait() -> None:
        while number := os.read(reading, 1):
            if signal.getsignal(number[0]) is end:
                os._exit(code)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=wait, name="signals", daemon=True).start()
