"""``python -m nightshift.driver``: see `nightshift.driver.process`.

A pod may be told to end while the driver is still being imported. Python's default would end it by the signal, a code that
nobody agreed on; as a container's first process it would not even notice. So the handlers come before the imports.
"""

import faulthandler
import os
import signal

from nightshift import exits

if __name__ == "__main__":
    faulthandler.enable()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(exits.RESUME))
    # Arrow's own pool keeps what it once had, some 30 MiB for good. Read when pyarrow is imported.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    from nightshift.driver.process import main

    main()
