"""``python -m nightshift.driver``: see `nightshift.driver.main`.

A pod may be told to end while the driver is still being imported. By default Python would die of the signal, with an
exit code that means nothing here; as a container's first process it would ignore it. So the handlers come before the imports.
"""

import faulthandler
import os
import signal

from nightshift import exits

if __name__ == "__main__":
    faulthandler.enable()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(exits.RESUME))
    # Arrow's own pool never gives back some 30 MiB. pyarrow reads this on import.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    from nightshift.driver.main import main

    main()
