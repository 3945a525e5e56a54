"""``python -m nightshift.driver``: see `nightshift.driver.process`.

A pod may be told to end while the driver is still being imported. Python's default would end it by the signal, a code that
nobody agreed on; as a container's first process it would not even notice. So the handlers come before the imports.
"""

import faulthandler
import os
import signal
import sys

from nightshift import exits

if __name__ == "__main__":
    faulthandler.enable()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(exits.RESUME))
    # Arrow's own pool keeps what it once had, some 30 MiB for good. Read when pyarrow is imported.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    from nightshift.driver.process import main

    code = main()
    sys.stdout.flush()
    # Not sys.exit. obstore's threads still let go of Python objects when their work is done; an interpreter that is being taken
    # down meanwhile aborts (SIGABRT, in one of four tries on a busy machine). And it would wait for a thread that hangs.
    os._exit(code)
