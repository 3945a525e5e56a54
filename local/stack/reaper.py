"""The reaper: ``python -m local.stack.reaper STATE LIFE``. Ends what is left of a stack when its supervisor is gone.

It waits on its standard input, a pipe whose other end only the supervisor holds: when the supervisor ends, however that
happens, the pipe closes. It knows only one run of the supervisor, so it never touches what a later one started.
"""

from __future__ import annotations

import os
import signal
import sys

from local.stack import marks


def main() -> None:
    state, life = sys.argv[1:]
    # It reacts only to the supervisor's death.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 64):
        pass
    marks.sweep({marks.STACK: state, marks.LIFE: life})


if __name__ == "__main__":
    main()
